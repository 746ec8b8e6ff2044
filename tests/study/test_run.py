"""Folders: what is written, what is kept, what is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from relpos.study import Silent, StudyConfig, StudyResult, TrialConfig, TrialResult, load_corpus, run_study, run_trial
from relpos.study.results import load_result


class Counting(Silent):
    """Counts the training steps and remembers the finished trials."""

    def __init__(self) -> None:
        self.steps = 0
        self.finished: list[str] = []

    def step_done(self, config: TrialConfig, step: int, loss: float) -> None:
        self.steps += 1

    def trial_done(self, result: TrialResult) -> None:
        self.finished.append(result.config.name)


def test_what_comes_out(config: StudyConfig, finished: tuple[Path, StudyResult]) -> None:
    folder, result = finished
    data = json.loads((folder / "results.json").read_text())
    assert data["config"] == config.to_json()
    assert {"relpos", "torch", "python", "system", "cpu", "cores", "threads"} == set(data["environment"])
    assert data["environment"]["threads"] == 1
    assert data["corpus"]["sha256"] == load_corpus(config.recipe.text).sha256
    assert {"files", "bytes", "rule", "held_out_files", "train_bytes", "held_out_bytes"} <= set(data["corpus"])
    assert [trial["config"]["scheme"] for trial in data["trials"]] == ["learned", "rope", "learned", "rope"]
    assert json.loads((folder / "config.json").read_text())["config"] == config.to_json()
    for name in ("learned-seed0", "rope-seed0", "learned-seed1", "rope-seed1"):
        trial = folder / "trials" / name
        assert {p.name for p in trial.iterdir()} == {
            "config.json",
            "checkpoints",
            "tensorboard",
            "evaluation",
            "result.json",
        }
        assert list((trial / "tensorboard").glob("events.out.tfevents.*"))
        assert (trial / "checkpoints" / "latest").read_text() == "step-000012\n"
    assert (folder / "extrapolation.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "extrapolation.svg").read_text()[:500]
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert not list(folder.rglob("*.tmp"))
    assert not [p for p in folder.rglob("*") if p.suffix in {".pt", ".pth", ".pkl", ".pickle", ".bin"}]
    assert result.environment["threads"] == 1


def test_every_scheme_and_length_scores_the_same_tokens(finished: tuple[Path, StudyResult]) -> None:
    _, result = finished
    counts = {score.tokens for trial in result.trials for score in trial.scores}
    assert counts == {2 * 64}
    assert {(s.rule, s.window) for s in result.trials[0].scores} == {
        (rule, window) for rule in ("non_overlapping", "sliding") for window in (16, 32, 64)
    }


def test_undefined_is_null_with_a_reason_in_the_file(finished: tuple[Path, StudyResult]) -> None:
    data = json.loads((finished[0] / "results.json").read_text())
    learned, rope = data["trials"][:2]
    for score in learned["scores"]:
        if score["window"] > 16:
            assert score["loss"] is None
            assert score["perplexity"] is None
            assert "past the table's 16 rows" in score["undefined"]
        else:
            assert score["perplexity"] > 1
            assert score["undefined"] is None
    assert all(score["perplexity"] > 1 for score in rope["scores"])


def test_a_result_survives_json(finished: tuple[Path, StudyResult]) -> None:
    folder, result = finished
    for trial in result.trials:
        assert load_result(folder / "trials" / trial.config.name, trial.config) == trial


def test_a_finished_run_only_prints_and_draws_again(config: StudyConfig, finished: tuple[Path, StudyResult]) -> None:
    folder, result = finished
    (folder / "extrapolation.svg").unlink()
    before = (folder / "results.json").read_bytes()
    counting = Counting()
    assert run_study(config, folder, counting) == result
    assert counting.steps == 0
    assert len(counting.finished) == 4
    assert (folder / "results.json").read_bytes() == before
    assert (folder / "extrapolation.svg").exists()
    assert (folder / "report.html").exists()


def test_another_configuration_is_refused_by_name_and_nothing_is_touched(
    config: StudyConfig, finished: tuple[Path, StudyResult]
) -> None:
    folder, _ = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = replace(config, recipe=replace(config.recipe, steps=13))
    with pytest.raises(ValueError, match=r"config.recipe.steps: 13 here, 12 there.*another --out"):
        run_study(other, folder, Silent())
    with pytest.raises(ValueError, match=r"config\.schemes"):
        run_study(replace(config, schemes=("rope",)), folder, Silent())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_another_text_under_the_same_name_is_refused(config: StudyConfig, finished: tuple[Path, StudyResult]) -> None:
    folder, _ = finished
    path = Path(str(config.recipe.text))
    content = path.read_text()
    try:
        path.write_text(content.replace("bias", "mask"))
        with pytest.raises(ValueError, match=r"corpus\.sha256"):
            run_study(config, folder, Silent())
    finally:
        path.write_text(content)
    with pytest.raises(ValueError, match="the trial's text"):
        run_trial(TrialConfig("alibi", 0, "0" * 64, config.recipe), folder / "trials" / "alibi-seed0", Silent())


def test_a_trial_needs_its_configuration_and_folder_only(
    config: StudyConfig, finished: tuple[Path, StudyResult], tmp_path: Path
) -> None:
    """The same trial alone, elsewhere, gives the same numbers to the bit, and touches its folder only."""
    _, result = finished
    wanted = result.trials[-1]
    alone = run_trial(wanted.config, tmp_path / "elsewhere" / "trial", Silent())
    assert alone.train_losses == wanted.train_losses
    assert alone.scores == wanted.scores
    assert (alone.attended, alone.memory) == (wanted.attended, wanted.memory)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["trial"]


def test_a_trial_folder_of_another_trial_is_refused(config: StudyConfig, finished: tuple[Path, StudyResult]) -> None:
    folder, result = finished
    with pytest.raises(ValueError, match="seed: 5 here, 0 there"):
        run_trial(replace(result.trials[0].config, seed=5), folder / "trials" / "learned-seed0", Silent())


def test_a_stopped_evaluation_goes_on_at_the_next_length(config: StudyConfig, tmp_path: Path) -> None:
    trial = config.trials(load_corpus(config.recipe.text).sha256)[1]
    whole = run_trial(trial, tmp_path / "whole", Silent())

    class StopsAfterOneLength(Counting):
        def length_scored(self, config: TrialConfig, scores: object) -> None:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_trial(trial, tmp_path / "broken", StopsAfterOneLength())
    assert not (tmp_path / "broken" / "result.json").exists()
    first = tmp_path / "broken" / "evaluation" / "window-16.json"
    written = first.stat().st_mtime_ns
    counting = Counting()
    broken = run_trial(trial, tmp_path / "broken", counting)
    assert first.stat().st_mtime_ns == written
    assert counting.steps == 0
    assert broken.scores == whole.scores
    assert (broken.attended, broken.memory) == (whole.attended, whole.memory)
    assert broken.train_losses == whole.train_losses


def test_a_half_written_file_is_not_taken_for_a_whole_one(config: StudyConfig, tmp_path: Path) -> None:
    trial = config.trials(load_corpus(config.recipe.text).sha256)[1]
    folder = tmp_path / "trial"
    whole = run_trial(trial, folder, Silent())
    half = (folder / "result.json").read_text()[:200]
    (folder / "result.json").unlink()
    (folder / "result.json.tmp").write_text(half)
    (folder / "evaluation" / "window-16.json").unlink()
    (folder / "evaluation" / "window-16.json.tmp").write_text("[")
    again = run_trial(trial, folder, Silent())
    assert (again.scores, again.train_losses) == (whole.scores, whole.train_losses)


def test_a_text_too_small_is_refused_before_anything_is_written(config: StudyConfig, tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    path.write_text("too small" * 20)
    with pytest.raises(ValueError, match="give more text"):
        run_study(replace(config, recipe=replace(config.recipe, text=str(path))), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_two_processes_in_one_folder(config: StudyConfig, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    code = f"""
import fcntl, time
file = open({str(folder / ".lock")!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ValueError, match="another process"):
            run_study(config, folder, Silent())
        other.kill()
    run_study(config, folder, Silent())


def test_versions_that_differ_between_trials_are_listed(finished: tuple[Path, StudyResult]) -> None:
    _, result = finished
    first = replace(result.trials[0], environment=result.trials[0].environment | {"torch": "0.1"})
    mixed = replace(result, trials=(first, *result.trials[1:]))
    assert mixed.environment["torch"] == ["0.1", result.environment["torch"]]
