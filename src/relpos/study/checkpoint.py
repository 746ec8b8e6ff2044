"""Where a trial goes on after it was stopped: weights, optimizer state and every loss so far, without pickles.

A checkpoint is a folder `checkpoints/step-000050/` with one safetensors file. It is written under a temporary name,
forced to disk and renamed; then the file `checkpoints/latest` is replaced, atomically, by the new folder's name; only
then are older folders removed. At every moment `latest` names a whole checkpoint or does not exist.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW

from relpos import errors, files

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Progress:
    """How far a trial is: the training loss of every step done, and the seconds they took."""

    losses: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """The number of steps done, which is the next step's number."""
        return len(self.losses)


def save(folder: Path, model: nn.Module, optimizer: AdamW, progress: Progress) -> None:
    """Write a checkpoint into `folder`, point `latest` to it, and remove the older ones."""
    name = f"step-{progress.step:06d}"
    temporary = folder / f"{name}.tmp"
    _remove(temporary)
    temporary.mkdir(parents=True)
    file = temporary / "state.safetensors"
    tensors = _state(model, optimizer) | {"losses": torch.tensor(progress.losses, dtype=torch.float64)}
    save_file(tensors, file, metadata={"seconds": repr(progress.seconds)})
    files.sync(file)
    files.sync(temporary)
    # Left over from a process that was killed between this rename and the pointer's: not named by `latest`.
    if _pointer(folder) != name:
        _remove(folder / name)
        os.rename(temporary, folder / name)
        files.sync(folder)
        files.write_text(folder / "latest", f"{name}\n")
    for old in folder.iterdir():
        if old.is_dir() and old.name != name:
            _remove(old)


@torch.no_grad()
def load(folder: Path, model: nn.Module, optimizer: AdamW) -> Progress:
    """Restore the checkpoint that `latest` names into `model` and `optimizer`; step 0 where there is none yet."""
    name = _pointer(folder)
    if name is None:
        return Progress()
    path = folder / name / "state.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            seconds = float(file.metadata()["seconds"])
        _restore(tensors, model, optimizer)
        losses = tensors["losses"].tolist()
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise errors.value(
            "checkpoint.load",
            f"{path} ({error})",
            "a checkpoint as this version writes it",
            f"remove {folder} and run again; the trial then starts from its first step.",
        ) from error
    return Progress(tuple(losses), seconds)


def _restore(tensors: dict[str, Tensor], model: nn.Module, optimizer: AdamW) -> None:
    for key, parameter in model.named_parameters():
        parameter.copy_(tensors[f"model.{key}"])
        # Copies: a tensor that lies in the mapped file may be aligned otherwise, and kernels may then add in another
        # order.
        optimizer.state[parameter] = {
            moment: torch.empty_like(tensors[f"optimizer.{key}.{moment}"]).copy_(tensors[f"optimizer.{key}.{moment}"])
            for moment in _MOMENTS
        }


def _state(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for key, parameter in model.named_parameters():
        tensors[f"model.{key}"] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"optimizer.{key}.{moment}"] = optimizer.state[parameter][moment]
    return {key: tensor.contiguous() for key, tensor in tensors.items()}


def _pointer(folder: Path) -> str | None:
    pointer = folder / "latest"
    return pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
