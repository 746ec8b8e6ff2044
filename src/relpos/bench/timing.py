"""One timing helper: everybody in turn, round after round, so that a slow moment of the machine hits all alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Rounds at least and at most, and seconds after which no further round is begun.
LEAST, MOST, SECONDS = 5, 200, 4.0


@dataclass(frozen=True)
class Timing:
    """Seconds: the median and the quartiles, over so many rounds."""

    median: float
    low: float
    high: float
    rounds: int


def interleaved(
    functions: Mapping[str, Callable[[], object]], least: int = LEAST, seconds: float = SECONDS
) -> dict[str, Timing]:
    """Time every function in every round, after one that does not count; each round in an order of its own.

    Who comes after whom matters, since caches and the heap are as the last one left them: nobody has one predecessor.
    """
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = random.Random(0)  # noqa: S311
    begun = time.perf_counter()
    for number in range(MOST):
        if number >= least and time.perf_counter() - begun > seconds:
            break
        for name in order.sample(list(functions), len(functions)):
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
    return {name: _summary(seconds_each) for name, seconds_each in times.items()}


def _summary(seconds: list[float]) -> Timing:
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(statistics.median(seconds), low, high, len(seconds))
