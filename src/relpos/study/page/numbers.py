"""The numbers of a study as a reader asks for them: one scheme, one length, the mean and the range over the seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from relpos.schemes import SCHEMES
from relpos.study.config import Recipe
from relpos.study.results import AttendedDistances, Rule, StudyResult, TrialResult, by_scheme


@dataclass(frozen=True)
class Stat:
    """Mean, lowest and highest over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Stat":
        """The mean and range of at least one value."""
        return cls(sum(values) / len(values), min(values), max(values))

    def text(self, form: str = ",.2f", factor: float = 1.0) -> str:
        """`4.49`, or `4.49 (4.40 to 4.61)` where seeds differ in the digits shown."""
        mean, low, high = (format(value * factor, form) for value in (self.mean, self.low, self.high))
        return mean if low == high else f"{mean} ({low} to {high})"


@dataclass(frozen=True)
class Numbers:
    """The trials of a study, or of one of its seeds."""

    trials: tuple[TrialResult, ...]

    @classmethod
    def of(cls, study: StudyResult) -> "Numbers":
        """All numbers of a study."""
        return cls(study.trials)

    def seeds(self) -> list["Numbers"]:
        """Each seed's trials on their own."""
        seeds = dict.fromkeys(trial.config.seed for trial in self.trials)
        return [Numbers(tuple(trial for trial in self.trials if trial.config.seed == seed)) for seed in seeds]

    @property
    def recipe(self) -> Recipe:
        """What all trials share."""
        return self.trials[0].config.recipe

    @cached_property
    def by_scheme(self) -> dict[str, list[TrialResult]]:
        """The trials of each scheme."""
        return by_scheme(self.trials)

    @property
    def trained(self) -> int:
        """The shortest evaluated length: the trained one, unless the study left it out."""
        return self.recipe.lengths[0]

    @property
    def longest(self) -> int:
        """The longest evaluated length."""
        return self.recipe.lengths[-1]

    @property
    def longer(self) -> tuple[int, ...]:
        """The evaluated lengths beyond the first."""
        return self.recipe.lengths[1:]

    def relative(self) -> list[str]:
        """The schemes of this study that encode a distance; a control is none of them."""
        return self._encoding("distance")

    def absolute(self) -> list[str]:
        """The schemes of this study that encode a position."""
        return self._encoding("position")

    def _encoding(self, what: str) -> list[str]:
        return [name for name in self.by_scheme if name in SCHEMES and SCHEMES[name].encodes == what]

    def best_first(self) -> list[str]:
        """The schemes in the order of their perplexities at the first length; undefined ones last."""

        def order(name: str) -> float:
            found = self.perplexity(name, self.trained)
            return float("inf") if found is None else found.mean

        return sorted(self.by_scheme, key=order)

    def perplexity(self, scheme: str, window: int, rule: Rule = "non_overlapping") -> Stat | None:
        """Perplexity; None where the scheme is undefined or not in the study."""
        return self._stat(scheme, lambda trial: trial.score(rule, window).perplexity)

    def rise(self, scheme: str) -> float | None:
        """The perplexity at the longest length in units of that at the first."""
        first, last = self.perplexity(scheme, self.trained), self.perplexity(scheme, self.longest)
        return None if first is None or last is None else last.mean / first.mean

    def step_seconds(self, scheme: str) -> Stat | None:
        """Seconds a training step, the mean of all steps."""
        return self._stat(scheme, lambda trial: trial.train_seconds / len(trial.train_losses))

    def evaluation_seconds(self, scheme: str) -> Stat | None:
        """Seconds to score all lengths under both rules."""
        return self._stat(scheme, lambda trial: trial.evaluation_seconds)

    def step_bytes(self, scheme: str) -> Stat | None:
        """Peak memory of a training step."""
        return self._stat(scheme, lambda trial: trial.memory.train_step)

    def window_bytes(self, scheme: str) -> Stat | None:
        """Peak memory of one window of the longest length."""
        return self._stat(scheme, lambda trial: trial.memory.longest_window)

    def attended(self, scheme: str) -> list[AttendedDistances]:
        """Which distances the heads of the first seed attend to, one entry a length."""
        return list(self.by_scheme[scheme][0].attended) if scheme in self.by_scheme else []

    def same_distances(self, scheme: str) -> Stat | None:
        """The share of attention that falls on the same distances at both lengths, the mean over all heads.

        The common part of two histograms, over the bins that the shorter window has: 1 where every head looks exactly
        as far back in the longer window as in the shorter.
        """
        return self._stat(scheme, _common_part)

    def head_reach(self, scheme: str) -> list[float] | None:
        """How many tokens back each head looks on average at the first attended length, the mean over its layers."""
        first = self.attended(scheme)[:1]
        if not first or first[0].shares is None:
            return None
        middles = _middles(first[0])
        layers = [
            [sum(m * s for m, s in zip(middles, head, strict=True)) for head in layer] for layer in first[0].shares
        ]
        return [sum(heads) / len(layers) for heads in zip(*layers, strict=True)]

    def near_share(self, scheme: str) -> tuple[int, Stat] | None:
        """The longer attended length, and the share of attention there that stays within the trained length."""

        def share(trial: TrialResult) -> float | None:
            seen = trial.attended[-1]
            if seen.shares is None:
                return None
            heads = [head for layer in seen.shares for head in layer]
            near = sum(1 for start in seen.starts if start < trial.config.recipe.length)
            return sum(sum(head[:near]) for head in heads) / len(heads)

        found = self._stat(scheme, share)
        seen = self.attended(scheme)
        return None if found is None or len(seen) < 2 else (seen[-1].window, found)

    def _stat(self, scheme: str, number: Callable[[TrialResult], float | None]) -> Stat | None:
        values = [number(trial) for trial in self.by_scheme.get(scheme, [])]
        defined = [value for value in values if value is not None]
        return Stat.of(defined) if defined else None


def even_shares(window: int, starts: Sequence[int]) -> tuple[float, ...]:
    """The shares of a head that looks at everything behind it evenly, for the same queries as `AttendedDistances`."""
    ends = [*starts[1:], window]
    queries = range(window - window // 4, window)
    return tuple(
        sum(max(0, min(end, query + 1) - start) / (query + 1) for query in queries) / len(queries)
        for start, end in zip(starts, ends, strict=True)
    )


def _middles(seen: AttendedDistances) -> list[float]:
    ends = [*(start - 1 for start in seen.starts[1:]), seen.window - 1]
    return [(start + end) / 2 for start, end in zip(seen.starts, ends, strict=True)]


def _common_part(trial: TrialResult) -> float | None:
    first, last = trial.attended[0].shares, trial.attended[-1].shares
    if len(trial.attended) < 2 or first is None or last is None:
        return None
    pairs = [pair for layers in zip(first, last, strict=True) for pair in zip(*layers, strict=True)]
    return sum(sum(map(min, short, long)) for short, long in pairs) / len(pairs)  # the longer window's bins go further
