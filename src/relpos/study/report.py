"""The final table of a study."""

import math
from collections.abc import Sequence

from rich.table import Table

from relpos.study.results import Rule, TrialResult

_TITLES: dict[Rule, str] = {
    "non_overlapping": "Perplexity per byte, windows end to end",
    "sliding": "Perplexity per byte, sliding windows (stride: a quarter window)",
}


def table(trials: Sequence[TrialResult], rule: Rule) -> Table:
    """One row a scheme, the best at the trained length first; one column an evaluated length."""
    recipe = trials[0].config.recipe
    by_scheme: dict[str, list[TrialResult]] = {}
    for trial in trials:
        by_scheme.setdefault(trial.config.scheme, []).append(trial)
    drawn = Table(title=_TITLES[rule], title_justify="left")
    drawn.add_column("scheme", no_wrap=True, min_width=max(len(scheme) for scheme in by_scheme))
    for window in recipe.lengths:
        multiple = window // recipe.length
        drawn.add_column(f"{window}\n{'trained' if multiple == 1 else f'{multiple} x'}", justify="right")
    for heading in ("parameters", "position", "seconds"):
        drawn.add_column(heading, justify="right")
    first = recipe.lengths[0]
    for scheme, same in sorted(by_scheme.items(), key=lambda item: _mean(item[1], rule, first) or math.inf):
        drawn.add_row(
            scheme,
            *(_cell(same, rule, window) for window in recipe.lengths),
            f"{same[0].parameters:,}",
            f"{same[0].position_parameters:,}",
            f"{sum(trial.train_seconds + trial.evaluation_seconds for trial in same):.0f}",
        )
    return drawn


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
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{mean:.2f}{spread}"
