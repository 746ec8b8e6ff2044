"""From trial results to the curves of the extrapolation chart."""

from collections.abc import Sequence
from pathlib import Path

from relpos.plots import Curve, Point, draw_extrapolation
from relpos.study.results import TrialResult, by_scheme


def curves(trials: Sequence[TrialResult]) -> list[Curve]:
    """One curve a scheme: perplexity in windows end to end, mean and range over the seeds."""
    return [
        Curve(scheme, tuple(_point(same, window) for window in same[0].config.recipe.lengths))
        for scheme, same in by_scheme(trials).items()
    ]


def draw(trials: Sequence[TrialResult], folder: Path) -> None:
    """Write `extrapolation.png` and `extrapolation.svg` into `folder`."""
    recipe = trials[0].config.recipe
    seeds = len({trial.config.seed for trial in trials})
    tokens = trials[0].score("non_overlapping", recipe.lengths[0]).tokens
    subtitle = (
        f"{tokens:,} held-out bytes, the same for every point, in windows end to end; "
        f"{recipe.steps} training steps, {f'mean and range of {seeds} seeds' if seeds > 1 else '1 seed'}"
    )
    draw_extrapolation(curves(trials), trained_length=recipe.length, subtitle=subtitle, folder=folder)


def _point(trials: Sequence[TrialResult], window: int) -> Point:
    values = [trial.score("non_overlapping", window).perplexity for trial in trials]
    defined = [value for value in values if value is not None]
    if not defined:
        return Point(window, None, None, None)
    return Point(window, sum(defined) / len(defined), min(defined), max(defined))
