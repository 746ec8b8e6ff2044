"""Whole models of transformers before and after `relpos.hf.patch`: time, peak memory, and whether they agree.

`python -m relpos.bench.whole` with a model, a length and who computes it measures memory in a process of its own.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import relpos.hf
from relpos import errors, files, machine
from relpos.bench.memory import alone, extra
from relpos.bench.timing import Timing, interleaved

THEIRS, OURS = "transformers", "relpos"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: How far apart outputs may be, as a fraction of the largest, in float32; in lower precision ours may be twice as far
#: from float32 as transformers' own.
TOLERANCE, TIMES = 1e-4, 2.0


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Attributes:
        source: a folder of `save_pretrained`, a config.json, or the name of a model.
        batch: rows of the input.
        dtype: a name of `DTYPES`.
    """

    source: str
    batch: int = 1
    dtype: str = "float32"

    def __post_init__(self) -> None:
        errors.positive_int("relpos bench --model", batch=self.batch)
        if self.dtype not in DTYPES:
            raise errors.unknown_name("relpos bench --model", "dtype", self.dtype, DTYPES)

    def load(self) -> tuple[nn.Module, str]:
        """The model in evaluation mode (of an encoder and decoder, the encoder), and where its weights are from."""
        model, weights = _load(self.source)
        if model.config.is_encoder_decoder:
            model, weights = model.get_encoder(), f"{weights}; its encoder"
        return model.eval().to(DTYPES[self.dtype]), weights

    def input(self, model: nn.Module, length: int) -> dict[str, Tensor]:
        """Random input without padding."""
        generator = torch.Generator().manual_seed(0)
        config: Any = model.config
        if getattr(model, "main_input_name", "input_ids") == "input_features":
            shape = (self.batch, length, config.feature_projection_input_dim)
            return {"input_features": torch.randn(shape, generator=generator).to(DTYPES[self.dtype])}
        return {"input_ids": torch.randint(config.vocab_size, (self.batch, length), generator=generator)}


@dataclass(frozen=True)
class Measured:
    """One way to compute one length.

    Attributes:
        timing: seconds, None where there is no number.
        bytes: peak memory beyond weights and input.
        reason: why there is no number.
    """

    length: int
    who: str
    timing: Timing | None = None
    bytes: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Whole:
    """All that was measured of one model; `summary` is that of `relpos.hf`."""

    environment: dict[str, Any]
    subject: Subject
    weights: str
    summary: str
    rows: tuple[Measured, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run_whole(
    subject: Subject,
    lengths: Sequence[int],
    path: Path | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Whole:
    """Measure a model at these lengths, before and after.

    Args:
        subject: the model.
        lengths: tokens of an input.
        path: JSON file, replaced as a whole after each length.
        progress: called before each length with what comes.
    """
    progress(f"loading {subject.source}")
    model, weights = subject.load()
    patched = relpos.hf.patch(sharing_weights(model))
    environment = {**machine.environment(torch.get_num_threads()), "transformers": transformers.__version__}
    rows: list[Measured] = []
    for length in lengths:
        progress(f"{length} tokens")
        rows += _measure(subject, length, {THEIRS: model, OURS: patched})
        whole = Whole(environment, subject, weights, str(relpos.hf.summary(patched)), tuple(rows))
        if path is not None:
            files.write_json(path, whole.to_json())
    return whole


def _measure(subject: Subject, length: int, models: dict[str, Any]) -> list[Measured]:
    given = subject.input(models[THEIRS], length)
    calls: dict[str, Callable[[], Tensor]] = {
        who: lambda model=model: model(**given)[0]  # type: ignore[misc]
        for who, model in models.items()
    }
    with torch.no_grad():
        reason = _disagreement(subject, calls, models[THEIRS], given)
        ready = {who: call for who, call in calls.items() if who == THEIRS or reason is None}
        timings = interleaved(ready)
    rows = []
    for who in models:
        if who not in timings:
            rows.append(Measured(length, who, reason=reason))
            continue
        found = alone("relpos.bench.whole", json.dumps(asdict(subject)), str(length), who)
        peak, why = (None, found) if isinstance(found, str) else (found, None)
        rows.append(Measured(length, who, timings[who], peak, why))
    return rows


def _disagreement(
    subject: Subject, calls: dict[str, Callable[[], Tensor]], model: nn.Module, given: dict[str, Tensor]
) -> str | None:
    """Why ours gets no number, None where it agrees."""
    theirs, ours = (calls[who]().double() for who in (THEIRS, OURS))
    if subject.dtype == "float32":
        apart = float((ours - theirs).abs().max() / theirs.abs().max())
        return None if apart <= TOLERANCE else f"differs from transformers by {apart:.1e} of the largest output"
    wide = copy.deepcopy(model).float()
    exact = wide(**{name: x.float() if x.is_floating_point() else x for name, x in given.items()})[0].double()
    mine, other = (float((output - exact).norm()) for output in (ours, theirs))
    return None if mine <= TIMES * other else f"{mine / other:.1f} times as far from float32 as transformers"


def sharing_weights(model: nn.Module) -> nn.Module:
    """A copy of the modules around the same tensors."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _load(source: str) -> tuple[Any, str]:
    path = Path(source)
    if path.is_file() or (path.is_dir() and not _has_weights(path)):
        return AutoModel.from_config(AutoConfig.from_pretrained(source)), "random weights, made from the configuration"
    try:
        return AutoModel.from_pretrained(source), "pretrained weights"
    except OSError as error:
        raise errors.value(
            "relpos bench --model",
            f"{source!r}, which cannot be loaded ({str(error).splitlines()[0]})",
            "a folder, a config.json, or the name of a model that is here or can be fetched",
            "give the path of a config.json: its weights are then random.",
        ) from error


def _has_weights(folder: Path) -> bool:
    return any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir())


def main() -> None:
    """One measurement of memory, printed in bytes."""
    subject, length, who = Subject(**json.loads(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    model = subject.load()[0]
    if who == OURS:
        relpos.hf.patch(model)
    with torch.no_grad():
        model(**subject.input(model, 64))
        given = subject.input(model, length)
        sys.stdout.write(str(extra(lambda: model(**given))))


if __name__ == "__main__":
    main()
