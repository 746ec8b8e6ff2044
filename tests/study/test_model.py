"""Between trials nothing differs but the position scheme."""

from dataclasses import replace

import pytest
import torch

from relpos.schemes import Scheme
from relpos.study import Recipe, TrialConfig, scheme_names
from relpos.study.model import build_model
from relpos.study.presets import build_scheme


def config(scheme: str, seed: int = 0, **changes: object) -> TrialConfig:
    return TrialConfig(scheme, seed, "", replace(Recipe(size="tiny", length=16), **changes))  # type: ignore[arg-type]


def test_the_default_network_has_about_seven_hundred_thousand_parameters() -> None:
    model = build_model(config("nope", size="small"))
    assert 600_000 < sum(parameter.numel() for parameter in model.parameters()) < 750_000


@pytest.mark.parametrize("scheme", scheme_names())
def test_shared_parts_start_equal_and_depend_on_the_seed(scheme: str) -> None:
    reference = dict(build_model(config("nope")).named_parameters())
    model = build_model(config(scheme))
    positions = model.position_parameters()
    shared = {name: p for name, p in model.named_parameters() if name not in positions}
    assert shared.keys() == reference.keys()
    assert all(torch.equal(p, reference[name]) for name, p in shared.items())
    other_seed = build_model(config(scheme, seed=1))
    assert not torch.equal(other_seed.head.weight, model.head.weight)


def test_the_same_seed_gives_the_same_position_tables_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = build_model(config("shaw")).position_parameters()
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(6)
    second = build_model(config("shaw")).position_parameters()
    assert first
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("scheme", scheme_names())
def test_logits_look_at_the_past_only_and_the_scheme_is_in_use(scheme: str) -> None:
    torch.manual_seed(0)
    model = build_model(config(scheme)).eval()
    with torch.no_grad():
        for parameter in model.position_parameters().values():
            parameter.normal_()
        tokens = torch.randint(256, (2, 16))
        changed = tokens.clone()
        changed[:, 10] = (changed[:, 10] + 1) % 256
        plain, other = model(tokens), model(changed)
        assert torch.equal(plain[:, :10], other[:, :10])
        assert not torch.allclose(plain[:, 10:], other[:, 10:])
        without = build_model(config("nope")).eval()(tokens)
        assert torch.allclose(plain, without) == (scheme == "nope")


def test_position_parameters_are_those_of_the_scheme_in_every_block() -> None:
    names = build_model(config("t5")).position_parameters()
    assert len(names) == 2
    assert all(parameter.shape == (2, 16) for parameter in names.values())
    assert [tuple(p.shape) for p in build_model(config("learned")).position_parameters().values()] == [(16, 64)]
    assert build_model(config("alibi")).position_parameters() == {}


def test_only_the_learned_table_ends() -> None:
    limits = {scheme: build_model(config(scheme)).max_length() for scheme in scheme_names()}
    assert limits.pop("learned") == 16
    assert set(limits.values()) == {None}


def test_the_control_rewards_what_alibi_punishes() -> None:
    alibi, reversed_ = (build_scheme(name, width=64, heads=2, length=16) for name in ("alibi", "alibi_reversed"))
    assert torch.equal(alibi.bias(8), -reversed_.bias(8))
    assert bool((alibi.bias(8).tril(-1) <= 0).all())


def test_t5_takes_the_usual_scale() -> None:
    scheme = build_scheme("t5", width=128, heads=4, length=64)
    assert scheme.scale is None


def test_every_row_that_a_long_window_reads_is_trained() -> None:
    """A far distance must meet no row of a table that the trained length never touched."""
    for name in ("t5", "shaw_bias", "shaw", "deberta", "huang"):
        scheme = build_scheme(name, width=128, heads=4, length=64)
        trained, long = rows_read(scheme, 64), rows_read(scheme, 1024)
        assert trained, name
        assert trained == long, name


def rows_read(scheme: Scheme, length: int) -> list[set[int]]:
    """For each table of the scheme, the rows that receive a gradient in causal attention over `length` tokens."""
    import relpos

    torch.manual_seed(0)
    x = torch.randn(1, 4, length, 32)
    scheme.zero_grad()
    relpos.attention(x, x, x, scheme, is_causal=True).square().sum().backward()
    rows = []
    for parameter in scheme.parameters():
        assert parameter.grad is not None
        size = parameter.shape[-1] if name_is_bias(parameter) else parameter.shape[-2]
        moved = parameter.grad.abs().reshape(-1, size) if name_is_bias(parameter) else parameter.grad.abs()
        summed = moved.sum(0) if name_is_bias(parameter) else moved.reshape(-1, *moved.shape[-2:]).sum((0, 2))
        rows.append({row for row in range(size) if summed[row] > 0})
    return rows


def name_is_bias(parameter: torch.Tensor) -> bool:
    """Bias tables are `[H, R]`; vector tables end in the head size, 32."""
    return parameter.shape[-1] != 32 or (parameter.dim() == 2 and parameter.shape[0] == 4)
