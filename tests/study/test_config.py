"""Configurations survive JSON, and wrong ones are refused with a message that names them."""

import json
from dataclasses import replace

import pytest

from relpos.study import DEFAULT_SCHEMES, Recipe, StudyConfig, TrialConfig
from relpos.study.config import differences

STUDY = StudyConfig(("alibi", "t5"), (3, 4), Recipe(length=32, multiples=(1, 4), text="some/file"))


def test_json_round_trip() -> None:
    assert StudyConfig.from_json(json.loads(json.dumps(STUDY.to_json()))) == STUDY
    for trial in STUDY.trials("abc"):
        assert TrialConfig.from_json(json.loads(json.dumps(trial.to_json()))) == trial
        assert json.loads(json.dumps(trial.to_json())) == trial.to_json()


def test_trials_are_every_scheme_from_every_seed() -> None:
    assert [trial.name for trial in STUDY.trials("abc")] == ["alibi-seed3", "t5-seed3", "alibi-seed4", "t5-seed4"]


def test_the_default_study_is_the_published_one() -> None:
    config = StudyConfig()
    assert config.schemes == DEFAULT_SCHEMES
    assert set(DEFAULT_SCHEMES) == {
        "nope",
        "learned",
        "sinusoidal",
        "shaw_bias",
        "t5",
        "alibi",
        "alibi_reversed",
        "deberta",
        "rope",
    }
    assert config.recipe.lengths == (64, 128, 256, 512, 640, 1024)
    assert all(config.recipe.segment_length % length == 0 for length in config.recipe.lengths)


def test_differences_name_the_fields() -> None:
    other = replace(STUDY, seeds=(3,), recipe=replace(STUDY.recipe, steps=7))
    assert differences(STUDY.to_json(), STUDY.to_json()) == []
    assert differences(STUDY.to_json(), other.to_json()) == [
        "recipe.steps: 320 here, 7 there",
        "seeds: [3, 4] here, [3] there",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, r"Recipe\(steps=...\): got 0"),
        ({"length": 10}, "a multiple of 4"),
        ({"multiples": ()}, "multiples"),
        ({"multiples": (1, 1)}, "multiples"),
        ({"multiples": (0, 1)}, "multiples"),
        ({"size": "huge"}, "one of tiny, small, medium"),
        ({"learning_rate": 0.0}, "a number above 0"),
        ({"position_rate": float("nan")}, "a number above 0"),
        ({"weight_decay": -1.0}, "0 or more"),
    ],
)
def test_wrong_values_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Recipe(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"steps": "400"}, {"steps": True}, {"multiples": [1, 2]}, {"multiples": ("1",)}, {"text": 3}]
)
def test_wrong_types_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="What to do"):
        replace(Recipe(), **changes)  # type: ignore[arg-type]


def test_an_unknown_scheme_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'alibi'"):
        StudyConfig(schemes=("alibbi",))


@pytest.mark.parametrize(("schemes", "seeds"), [((), (0,)), (("t5", "t5"), (0,)), (("t5",), (1, 1)), (("t5",), (-1,))])
def test_empty_repeated_or_negative_items_are_refused(schemes: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="StudyConfig"):
        StudyConfig(schemes, seeds)


def test_json_of_another_version_is_refused() -> None:
    data = STUDY.to_json()
    del data["recipe"]["threads"]
    with pytest.raises(ValueError, match="another version"):
        StudyConfig.from_json(data)
