"""A real process is killed again and again; what it ends with equals an unbroken run to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import relpos

STEPS = 400
OPTIONS = f"--schemes t5,learned --length 16 --multiples 1,2 --steps {STEPS} --size tiny --threads 1".split()


def start(text: str, folder: Path) -> "subprocess.Popen[str]":
    source = str(Path(relpos.__file__).parents[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "relpos.cli", "study", *OPTIONS, "--text", text, "--out", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def numbers(folder: Path) -> dict[str, Any]:
    """Every number of a finished run but seconds: each step's loss, each score, attention by distance, memory."""
    data = json.loads((folder / "results.json").read_text())
    return {
        trial["config"]["scheme"]: {key: trial[key] for key in ("train_losses", "scores", "attended", "memory")}
        for trial in data["trials"]
    }


def logs(folder: Path) -> set[Path]:
    """One more once a process has begun to train."""
    return set(folder.rglob("events.out.tfevents.*"))


def checkpoints(folder: Path) -> dict[str, int]:
    """The step of each trial's newest checkpoint."""
    found = folder.glob("trials/*/checkpoints/latest")
    return {path.parents[1].name: int(path.read_text().removeprefix("step-")) for path in found}


def test_kill_at_random_moments_and_ctrl_c(text: str, tmp_path: Path) -> None:
    whole = start(text, tmp_path / "whole")
    output, errors = whole.communicate(timeout=100)
    assert whole.returncode == 0, errors
    assert "undefined" in output

    chance = random.Random(2)  # noqa: S311 (moments, not secrets)
    folder = tmp_path / "broken"
    killed = 0
    for signal_number, first in (
        (signal.SIGKILL, logs),
        (signal.SIGINT, checkpoints),
        (signal.SIGKILL, checkpoints),
        (signal.SIGKILL, logs),
    ):
        before, known = checkpoints(folder), first(folder)
        process = start(text, folder)
        while process.poll() is None and first(folder) == known:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.5))
        process.send_signal(signal_number)
        _, errors = process.communicate(timeout=100)
        if process.returncode == -signal.SIGKILL:
            killed += 1
        elif signal_number == signal.SIGINT:
            assert process.returncode == 130, errors
            assert "the same command goes on from there" in errors
        # What had been saved is still there.
        assert all(checkpoints(folder)[name] >= step for name, step in before.items())
    assert killed >= 2, "the kills came too late to say anything"
    assert checkpoints(folder), "the kills came too early to say anything"

    last = start(text, folder)
    _, errors = last.communicate(timeout=100)
    assert last.returncode == 0, errors
    assert numbers(folder) == numbers(tmp_path / "whole")
    assert len(numbers(folder)["t5"]["train_losses"]) == STEPS


def test_at_most_one_checkpoint_interval_is_lost(text: str, tmp_path: Path) -> None:
    """The log says how far a killed process came; its checkpoint is less than 50 steps behind."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    process = start(text, tmp_path / "run")
    while process.poll() is None and checkpoints(tmp_path / "run").get("t5-seed0", 0) < 50:
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    process.communicate(timeout=100)
    saved = checkpoints(tmp_path / "run")["t5-seed0"]
    assert saved % 50 == 0 or saved == STEPS
    events = EventAccumulator(str(tmp_path / "run" / "trials" / "t5-seed0" / "tensorboard"))
    events.Reload()
    logged = [event.step for event in events.Scalars("train/loss")]
    assert logged[-1] - saved < 50
