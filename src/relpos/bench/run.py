"""A whole benchmark: agreement first, then everybody in turn, then memory; written after every work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relpos import files, machine
from relpos.bench.agree import disagreement, given
from relpos.bench.memory import extra_peak
from relpos.bench.rivals import LIMIT, Contender, contenders
from relpos.bench.timing import Timing, interleaved
from relpos.bench.work import Attend, Work
from relpos.schemes import Scheme


@dataclass(frozen=True)
class Entry:
    """One contender at one work: its timing, or the reason why there is none."""

    contender: str
    timing: Timing | None = None
    ratio: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Peak:
    """One contender's extra memory at one work, in bytes, or the reason why there is none."""

    work: Work
    contender: str
    bytes: int | None
    reason: str | None = None


@dataclass(frozen=True)
class Report:
    """All that was measured; `ratio` is to the median of the yardstick in the same rounds."""

    environment: dict[str, Any]
    rows: tuple[tuple[Work, tuple[Entry, ...]], ...]
    peaks: tuple[Peak, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "environment": self.environment,
            "limit": LIMIT,
            "works": [
                {"work": work.to_json(), "entries": [asdict(entry) for entry in entries]} for work, entries in self.rows
            ],
            "memory": [asdict(peak) for peak in self.peaks],
        }


def run_bench(
    works: Sequence[Work],
    memory: Sequence[tuple[Work, str]] = (),
    path: Path | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """Measure all works, then the memory of the pairs of work and contender.

    Args:
        works: what to time.
        memory: what to run once in a fresh process each.
        path: JSON file, replaced as a whole after each work.
        progress: called before each step with what comes.
    """
    environment = machine.environment(torch.get_num_threads())
    rows: list[tuple[Work, tuple[Entry, ...]]] = []
    peaks: list[Peak] = []

    def report() -> Report:
        done = Report(environment, tuple(rows), tuple(peaks))
        if path is not None:
            files.write_json(path, done.to_json())
        return done

    for work in works:
        progress(str(work))
        rows.append((work, _measure(work)))
        report()
    for work, name in memory:
        progress(f"memory of {name}: {work}")
        found = extra_peak(work, name)
        peaks.append(Peak(work, name, None, found) if isinstance(found, str) else Peak(work, name, found))
        report()
    return report()


def _measure(work: Work) -> tuple[Entry, ...]:
    scheme, inputs = work.build(), work.inputs()
    ready: dict[str, Callable[[], object]] = {}
    reasons: dict[str, str] = {}
    with torch.set_grad_enabled(work.task == "train"):
        for contender in contenders():
            attend = _admitted(work, scheme, contender)
            if isinstance(attend, str):
                reasons[contender.name] = attend
            else:
                ready[contender.name] = _step(work, given(contender, inputs), attend)
        timings = interleaved(ready)
    limit = timings[LIMIT].median
    return tuple(
        Entry(name, timings[name], timings[name].median / limit) if name in timings else Entry(name, reason=reason)
        for name, reason in ((one.name, reasons.get(one.name)) for one in contenders())
    )


def _admitted(work: Work, scheme: Scheme, contender: Contender) -> Attend | str:
    """The contender's function once it agrees, or why it gets no number. Where a rival fails, that is its reason."""
    try:
        attend = _too_long(work, contender) or contender.prepare(work, scheme)
        return attend if isinstance(attend, str) else disagreement(contender, work, scheme, attend) or attend
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        if contender.name == LIMIT or contender.name.startswith("relpos "):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _too_long(work: Work, contender: Contender) -> str | None:
    longest = contender.limit(work)
    if longest is None or work.length * work.queries <= longest**2:
        return None
    return f"not timed past {longest} tokens{' of ' + work.scheme if work.has_content else ''}"


def _step(work: Work, inputs: tuple[Tensor, Tensor, Tensor], attend: Attend) -> Callable[[], object]:
    if work.task != "train":
        return lambda: attend(*inputs)
    direction = torch.ones_like(inputs[0])

    def step() -> None:
        for x in inputs:
            x.grad = None
        attend(*inputs).backward(direction)

    return step
