"""Position parameters have their own learning rate, and the schedule is a function of the step."""

from dataclasses import replace
from itertools import pairwise

import pytest

from relpos.study import Recipe, TrialConfig
from relpos.study.model import build_model
from relpos.study.optimizer import learning_rate, make_optimizer, set_learning_rate

RECIPE = Recipe(size="tiny", length=16, steps=100, warmup=10, learning_rate=1.0, position_rate=7.0, input_rate=3.0)


@pytest.mark.parametrize(("scheme", "factor"), [("t5", 7.0), ("deberta", 7.0), ("learned", 3.0)])
def test_tables_in_attention_learn_faster_and_no_table_decays(scheme: str, factor: float) -> None:
    model = build_model(TrialConfig(scheme, 0, "", RECIPE))
    optimizer = make_optimizer(model, RECIPE)
    rate = set_learning_rate(optimizer, 50, RECIPE)
    wanted = {id(parameter) for parameter in model.position_parameters().values()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            of_position = id(parameter) in wanted
            assert group["lr"] == pytest.approx(rate * (factor if of_position else 1.0))
            assert group["weight_decay"] == (RECIPE.weight_decay if parameter.dim() > 1 and not of_position else 0.0)


def test_every_parameter_is_in_one_group() -> None:
    model = build_model(TrialConfig("shaw", 0, "", RECIPE))
    groups = make_optimizer(model, RECIPE).param_groups
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in model.parameters())


def test_schedule() -> None:
    rates = [learning_rate(step, RECIPE) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.55)
    assert 0.1 < rates[99] < 0.102
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert learning_rate(0, replace(RECIPE, warmup=0)) == pytest.approx(1.0)
