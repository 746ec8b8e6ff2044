"""Whole models of transformers before and after `relpos.hf.patch`, and exported: time, peak memory, who agrees.

`python -m relpos.bench.whole` with a model, a length and who computes it measures memory in a process of its own.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import relpos.hf
from relpos import errors, files, machine
from relpos.bench import runtimes
from relpos.bench.memory import alone, extra
from relpos.bench.runtimes import Compute, Inputs
from relpos.bench.timing import Timing, interleaved

THEIRS, OURS = "transformers", "relpos"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: How far apart outputs may be, as a fraction of the largest, in float32; in lower precision one may be twice as far
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
        model.config.use_cache = False  # the exported model gives the output alone, and everybody does the same work
        return model.eval().to(DTYPES[self.dtype]), weights

    def input(self, model: nn.Module, length: int, padding: int = 0) -> Inputs:
        """Random input; the last row ends with so many tokens of padding."""
        generator = torch.Generator().manual_seed(0)
        config: Any = model.config
        mask = torch.ones(self.batch, length, dtype=torch.int64)
        mask[-1, length - padding :] = 0
        if _takes_features(model):
            shape = (self.batch, length, config.feature_projection_input_dim)
            features = torch.randn(shape, generator=generator).to(DTYPES[self.dtype])
            return {"input_features": features, "attention_mask": mask}
        ids = torch.randint(config.vocab_size, (self.batch, length), generator=generator)
        return {"input_ids": ids, "attention_mask": mask}


@dataclass(frozen=True)
class Measured:
    """One way to compute one length.

    Attributes:
        timing: seconds, None where there is no number.
        bytes: peak memory beyond weights and input.
        reason: why a number is missing.
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
    """Measure a model at these lengths: before and after, and in the runtimes that are installed.

    Args:
        subject: the model.
        lengths: tokens of an input.
        path: JSON file, replaced as a whole after each length.
        progress: called before each step with what comes.
    """
    progress(f"loading {subject.source}")
    model, weights = subject.load()
    patched = relpos.hf.patch(sharing_weights(model))
    wide = model if subject.dtype == "float32" else copy.deepcopy(model).float()
    environment = {
        **machine.environment(torch.get_num_threads()),
        "transformers": transformers.__version__,
        **runtimes.versions(),
    }
    rows: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        progress("exporting")
        file = Path(folder) / "model.onnx"
        example = _widened(replace(subject, batch=2).input(model, 48))
        who: dict[str, Compute | str] = {
            THEIRS: lambda given: model(**given)[0],
            OURS: lambda given: patched(**given)[0],
            **runtimes.prepared(wide, example, subject.dtype, file),
        }
        for length in lengths:
            progress(f"{length} tokens")
            rows += _measure(subject, length, model, wide, who, file)
            whole = Whole(environment, subject, weights, str(relpos.hf.summary(patched)), tuple(rows))
            if path is not None:
                files.write_json(path, whole.to_json())
    return whole


def _measure(
    subject: Subject, length: int, model: nn.Module, wide: nn.Module, who: dict[str, Compute | str], file: Path
) -> list[Measured]:
    reasons = _disagreements(subject, length, model, wide, who)
    given = {name: _given(name, subject.input(model, length)) for name in who}
    ready = {
        name: lambda compute=compute, x=given[name]: compute(x)
        for name, compute in who.items()
        if callable(compute) and name not in reasons
    }
    timings = interleaved(ready)
    rows = []
    for name in who:
        if name not in timings:
            rows.append(Measured(length, name, reason=reasons[name]))
            continue
        if name in (THEIRS, OURS):
            found = alone("relpos.bench.whole", json.dumps(asdict(subject)), str(length), name)
        else:
            found = runtimes.extra_peak(name, file, given[name], subject.dtype)
        peak, why = (None, f"memory: {found}") if isinstance(found, str) else (found, None)
        rows.append(Measured(length, name, timings[name], peak, why))
    return rows


def _disagreements(
    subject: Subject, length: int, model: nn.Module, wide: nn.Module, who: dict[str, Compute | str]
) -> dict[str, str]:
    """Why some get no number: their output, at the tokens that are no padding, is not that of transformers."""
    padding = 0 if _takes_features(model) else length // 4  # features may leave as fewer tokens, without a mask
    given = subject.input(model, length, padding)
    seen = slice(None) if padding == 0 else given["attention_mask"].bool()
    theirs = model(**given)[0][seen].double()
    exact = theirs if wide is model else wide(**_widened(given))[0][seen].double()
    reasons = {}
    for name, compute in who.items():
        if isinstance(compute, str):
            reasons[name] = compute
            continue
        if name == THEIRS:
            continue
        try:
            output = compute(_given(name, given))
        except RuntimeError as error:
            if name == OURS:
                raise
            reasons[name] = f"fails: {runtimes.first_line(error)}"
            continue
        reason = _difference(output[seen].double(), theirs, exact, subject.dtype)
        if reason is not None:
            reasons[name] = reason
    return reasons


def _difference(output: Tensor, theirs: Tensor, exact: Tensor, dtype: str) -> str | None:
    if dtype == "float32":
        apart = float((output - theirs).abs().max() / theirs.abs().max())
        return None if apart <= TOLERANCE else f"differs from transformers by {apart:.1e} of the largest output"
    mine, other = (float((one - exact).norm()) for one in (output, theirs))
    return None if mine <= TIMES * other else f"{mine / other:.1f} times as far from float32 as transformers"


def _given(name: str, given: Inputs) -> Inputs:
    """Runtimes have inputs and outputs in float32 and do the rounding themselves."""
    return given if name in (THEIRS, OURS) else _widened(given)


def _widened(given: Inputs) -> Inputs:
    return {name: x.float() if x.is_floating_point() else x for name, x in given.items()}


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


def _takes_features(model: nn.Module) -> bool:
    """Whether its input is sound rather than tokens."""
    return getattr(model, "main_input_name", "input_ids") == "input_features"


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
