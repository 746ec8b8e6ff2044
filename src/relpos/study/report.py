"""The final tables of a study."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from relpos.study.results import Rule, TrialResult, by_scheme

_TITLES: dict[Rule, str] = {
    "non_overlapping": "Perplexity per byte, windows end to end",
    "sliding": "Perplexity per byte, sliding windows (stride: a quarter window)",
}


def table(trials: Sequence[TrialResult], rule: Rule) -> Table:
    """One row a scheme, the best at the trained length first; one column an evaluated length. Fits 80 columns."""
    recipe = trials[0].config.recipe
    drawn = _empty(_TITLES[rule])
    for window in recipe.lengths:
        multiple = window // recipe.length
        drawn.add_column(f"{window}\n{'trained' if multiple == 1 else f'{multiple} x'}", justify="right", no_wrap=True)
    for scheme, same in _best_first(trials, rule):
        drawn.add_row(scheme, *(_cell(same, rule, window) for window in recipe.lengths))
    return drawn


def cost_table(trials: Sequence[TrialResult]) -> Table:
    """What each scheme cost: parameters, those of its positions, seconds of training and of evaluation."""
    drawn = _empty("Cost")
    for heading in ("parameters", "of positions", "training s", "evaluation s"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for scheme, same in _best_first(trials, "non_overlapping"):
        drawn.add_row(
            scheme,
            f"{same[0].parameters:,}",
            f"{same[0].position_parameters:,}",
            f"{sum(trial.train_seconds for trial in same):.0f}",
            f"{sum(trial.evaluation_seconds for trial in same):.0f}",
        )
    return drawn


def _empty(title: str) -> Table:
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    drawn.add_column("scheme", no_wrap=True)
    return drawn


def _best_first(trials: Sequence[TrialResult], rule: Rule) -> list[tuple[str, list[TrialResult]]]:
    """The trials of each scheme, in the order of their perplexities at the trained length."""
    first = trials[0].config.recipe.lengths[0]
    return sorted(by_scheme(trials).items(), key=lambda item: _mean(item[1], rule, first) or math.inf)


def _values(trials: Sequence[TrialResult], rule: Rule, window: int) -> list[float]:
    found = (trial.score(rule, window).perplexity for trial in trials)
    return [value for value in found if value is not None]


def _mean(trials: Sequence[TrialResult], rule: Rule, window: int) -> float | None:
    values = _values(trials, rule, window)
    return sum(values) / len(values) if values else None


def _cell(trials: Sequence[TrialResult], rule: Rule, window: int) -> str:
    mean = _mean(trials, rule, window)
    if mean is None:
        return "undefined"
    values = _values(trials, rule, window)
    spread = f"\n{min(values):.2f}-{max(values):.2f}" if len(values) > 1 else ""
    return f"{mean:.2f}{spread}"
