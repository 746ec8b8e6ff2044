"""A checkpoint is whole or absent, has everything, and is no pickle."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.optim import AdamW

from relpos import files
from relpos.study import Recipe, TrialConfig, checkpoint
from relpos.study.checkpoint import Progress
from relpos.study.model import ByteLM, build_model
from relpos.study.optimizer import make_optimizer

RECIPE = Recipe(size="tiny", length=16)


def trained(steps: int) -> tuple[ByteLM, AdamW]:
    """A model and an optimizer after some steps on random numbers."""
    model = build_model(TrialConfig("t5", 0, "", RECIPE))
    optimizer = make_optimizer(model, RECIPE)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(256, (2, 16))).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_round_trip_to_the_bit(tmp_path: Path) -> None:
    model, optimizer = trained(3)
    progress = Progress((5.5, 0.1, 1 / 3), 12.25)
    checkpoint.save(tmp_path, model, optimizer, progress)
    other, other_optimizer = trained(1)
    assert checkpoint.load(tmp_path, other, other_optimizer) == progress
    assert progress.step == 3
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for moment in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[mine][moment], other_optimizer.state[theirs][moment])
    for _ in range(2):
        torch.manual_seed(7)
        for m, o in ((model, optimizer), (other, other_optimizer)):
            torch.manual_seed(8)
            o.zero_grad()
            m(torch.randint(256, (2, 16))).square().mean().backward()
            o.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_it_is_safetensors_and_nothing_else(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, *trained(1), Progress((1.0,), 0.5))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"latest", "step-000001/state.safetensors"}
    with safe_open(tmp_path / "step-000001" / "state.safetensors", framework="pt") as file:
        kinds = {key.split(".")[0] for key in file.keys()}  # noqa: SIM118
    assert kinds == {"model", "optimizer", "losses"}


def test_without_a_checkpoint_a_trial_starts_at_step_0(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path, *trained(1)) == Progress()


def test_older_checkpoints_go_once_the_pointer_has_moved(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    for steps in (1, 2, 3):
        checkpoint.save(tmp_path, model, optimizer, Progress((1.0,) * steps))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-000003"]


class Killed(BaseException):
    """Stands for a kill: nothing in the code catches it."""


@pytest.mark.parametrize("last_call", range(12))
def test_killed_at_any_point_of_a_save_the_old_or_the_new_checkpoint_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_call: int
) -> None:
    model, optimizer = trained(1)
    checkpoint.save(tmp_path, model, optimizer, Progress((1.0,)))
    calls = 0

    def limited(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if calls == last_call:
                raise Killed
            calls += 1
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", limited(os.replace))
        patch.setattr(os, "rename", limited(os.rename))
        patch.setattr(os, "fsync", limited(os.fsync))
        patch.setattr(shutil, "rmtree", limited(shutil.rmtree))
        patch.setattr(checkpoint, "save_file", limited(save_file))
        with contextlib.suppress(Killed):
            checkpoint.save(tmp_path, model, optimizer, Progress((1.0, 2.0)))
    assert checkpoint.load(tmp_path, model, optimizer).losses in ((1.0,), (1.0, 2.0))
    # And the next process saves as if nothing had happened.
    checkpoint.save(tmp_path, model, optimizer, Progress((1.0, 2.0)))
    assert checkpoint.load(tmp_path, model, optimizer).losses == (1.0, 2.0)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["step-000002"]


def test_a_damaged_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model, optimizer = trained(1)
    checkpoint.save(tmp_path, model, optimizer, Progress((1.0,)))
    path = tmp_path / "step-000001" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="remove"):
        checkpoint.load(tmp_path, model, optimizer)
    path.unlink()
    with pytest.raises(ValueError, match="remove"):
        checkpoint.load(tmp_path, model, optimizer)


def test_json_is_replaced_whole_and_never_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            files.write_json(path, {"a": 2})
    assert path.read_text() == '{\n "a": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"a": float("nan")})
    assert path.read_text() == '{\n "a": 1\n}\n'
