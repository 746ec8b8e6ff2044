"""`results.json` is read whole or refused with a message that names the place."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from altered import as_file, study

from relpos.study import StudyResult, load_study


def test_a_real_file_is_read_back(finished: tuple[Path, StudyResult]) -> None:
    folder, result = finished
    assert load_study(folder) == result
    assert load_study(folder).to_json() == json.loads((folder / "results.json").read_text())


def test_what_is_measured_is_in_the_file(finished: tuple[Path, StudyResult]) -> None:
    data = json.loads((finished[0] / "results.json").read_text())
    for trial in data["trials"]:
        trained, longer = trial["attended"]
        assert (trained["window"], longer["window"]) == (16, 64)
        assert [len(trained["shares"]), len(trained["shares"][0]), len(trained["shares"][0][0])] == [2, 2, 5]
        undefined = trial["config"]["scheme"] == "learned"
        assert (longer["shares"] is None, longer["undefined"] is not None) == (undefined, undefined)
        assert trial["memory"]["train_step"] > 0
        assert (trial["memory"]["window"], trial["memory"]["longest_window"] is None) == (64, undefined)
        bins = [score["by_position"] for score in trial["scores"] if score["rule"] == "non_overlapping"]
        assert [each and len(each["loss"]) for each in bins] == [4, None if undefined else 8, None if undefined else 16]


def of_an_older_version(data: Any) -> None:
    for trial in data["trials"]:
        del trial["attended"], trial["memory"]


def one_trial_less(data: Any) -> None:
    data["trials"].pop()


def a_scheme_twice(data: Any) -> None:
    data["trials"][1] = data["trials"][0]


def a_length_less(data: Any) -> None:
    del data["trials"][0]["scores"][-2:]


def a_length_twice(data: Any) -> None:
    scores = data["trials"][0]["scores"]
    scores[2:4] = scores[0:2]


def set_to(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    change.__name__ = f"{'.'.join(map(str, path))} = {str(value)[:20]}"
    return change


FIRST = ("trials", 0)
SCORE = (*FIRST, "scores", 0)
DAMAGE = [
    (of_an_older_version, r"trials\[0\]: got fields .*Allowed: exactly .*'attended'"),
    (one_trial_less, "one result each of"),
    (a_scheme_twice, "one result each of"),
    (a_length_less, "nope-seed0.scores"),
    (a_length_twice, "nope-seed0.scores"),
    (set_to(*SCORE, "loss", value="2.0"), r"trials\[0\]\.scores\[0\]\.loss: got '2.0'"),
    (set_to(*SCORE, "loss", value=True), r"scores\[0\]\.loss: got True"),
    (set_to(*SCORE, "loss", value=math.nan), r"scores\[0\]\.loss: got nan"),
    (set_to(*SCORE, "loss", value=1.0), r"scores\[0\]\.perplexity: got"),
    (set_to(*SCORE, "perplexity", value=8.1), r"scores\[0\]\.perplexity: got 8.1"),
    (set_to(*SCORE, "rule", value="other"), r"scores\[0\]\.rule: got 'other'"),
    (set_to(*SCORE, "by_position", value=None), "nope-seed0.scores"),
    (set_to(*SCORE, "by_position", "loss", value=[1.0]), "nope-seed0.scores"),
    (set_to(*SCORE, "by_position", "bin_width", value=0), "nope-seed0.scores"),
    (set_to(*SCORE, "by_position", "tokens", value=[0, 0, 0, 0]), "nope-seed0.scores"),
    (set_to(*FIRST, "attended", value=[]), "nope-seed0.attended"),
    (set_to(*FIRST, "attended", 0, "window", value=32), "nope-seed0.attended"),
    (set_to(*FIRST, "attended", 0, "starts", value=[0, 1]), "nope-seed0.attended"),
    (set_to(*FIRST, "attended", 0, "shares", value=[[[1.0]]]), "nope-seed0.attended"),
    (set_to(*FIRST, "attended", 0, "shares", 0, 0, value=[0.5] * 5), "nope-seed0.attended"),
    (set_to(*FIRST, "attended", 0, "shares", 0, 0, value=[2.0, -1.0, 0.0, 0.0, 0.0]), "nope-seed0.attended"),
    (set_to(*FIRST, "attended", 0, "shares", value=None), "nope-seed0.attended"),
    (set_to(*FIRST, "memory", "train_step", value=1.5), r"memory\.train_step: got 1.5"),
    (set_to(*FIRST, "memory", "window", value=64), r"nope-seed0\.memory"),
    (set_to(*FIRST, "train_losses", value=[]), "nope-seed0.train_losses"),
    (set_to(*FIRST, "train_seconds", value=None), r"train_seconds: got None"),
    (set_to(*FIRST, "environment", value=[]), r"environment: got \[\]"),
    (set_to(*FIRST, "config", "scheme", value="</script>"), "did you mean"),
    (set_to("config", "recipe", "steps", value=5), "one result each of|another configuration"),
    (set_to("corpus", "files", value="two"), r"corpus\.files: got 'two'"),
    (set_to("corpus", value=None), "corpus: got None"),
    (set_to("environment", value={}), "environment: got"),
    (set_to("extra", value=1), "got fields"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=lambda each: getattr(each, "__name__", ""))
def test_a_damaged_file_is_refused_by_place(damage: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    data = as_file(study())
    assert StudyResult.from_json(data) == study()
    damage(data)
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message) as refusal:
        load_study(tmp_path)
    assert str(tmp_path / "results.json") in str(refusal.value)
    assert "What to do: run the study again in a new folder." in str(refusal.value)


@pytest.mark.parametrize("content", ["", "{", "null", "[]", "{}", '"text"', "\x00", "[" * 100_000])
def test_what_is_no_such_json_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results\.json, damaged or of another version"):
        load_study(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match=r"results\.json, damaged or of another version"):
        load_study(tmp_path)


def test_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no .*results\.json.*run the study first"):
        load_study(tmp_path / "nothing here")
