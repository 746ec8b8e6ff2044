"""One timing helper: everybody in turn, round after round, so that a slow moment of the machine hits all alike.

Who is slow, and far behind the fastest, takes part in every other round only: its number needs no third digit.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Rounds at least and at most, and seconds after which no further round is begun.
LEAST, MOST, SECONDS = 5, 200, 2.0
#: Seconds of a call, and multiples of the fastest, past which a function takes part in every other round only.
SLOW, BEHIND = 0.3, 3.0


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
    """Time every function in every round, or the slow in every other, after one that does not count.

    Each round has an order of its own.
    Who comes after whom matters, since caches and the heap are as the last one left them: nobody has one predecessor.
    """
    first = {name: _seconds(function) for name, function in functions.items()}
    slow = {name for name, took in first.items() if took > max(SLOW, BEHIND * min(first.values()))}
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = random.Random(0)  # noqa: S311
    begun = time.perf_counter()
    for number in range(MOST):
        if number >= least and time.perf_counter() - begun > seconds:
            break
        for name in order.sample(list(functions), len(functions)):
            if number % 2 == 0 or name not in slow:
                times[name].append(_seconds(functions[name]))
    return {name: _summary(seconds_each) for name, seconds_each in times.items()}


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _summary(seconds: list[float]) -> Timing:
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(statistics.median(seconds), low, high, len(seconds))
