"""The final table and the chart's curves say what the results say."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from relpos.study import StudyResult, TrialResult
from relpos.study.chart import curves
from relpos.study.report import cost_table, table
from relpos.study.results import Score


def trial(like: TrialResult, scheme: str, seed: int, perplexity_nats: dict[int, float | None]) -> TrialResult:
    """A result with the losses given, by window."""
    scores = tuple(
        Score("non_overlapping", window, window, 1, 10, loss, None if loss is not None else "table")
        for window, loss in perplexity_nats.items()
    )
    return replace(like, config=replace(like.config, scheme=scheme, seed=seed), scores=scores)


def printed(trials: list[TrialResult]) -> list[str]:
    console = Console(width=160, record=True, quiet=False, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table(trials, "non_overlapping"))
    return capture.get().splitlines()


def test_rows_are_sorted_and_undefined_is_said(finished: tuple[Path, StudyResult]) -> None:
    like = finished[1].trials[0]
    lines = printed(
        [
            trial(like, "rope", 0, {16: 2.0, 32: 2.5, 64: 3.0}),
            trial(like, "learned", 0, {16: 1.0, 32: None, 64: None}),
            trial(like, "alibi", 0, {16: 1.5, 32: 1.5, 64: 1.5}),
        ]
    )
    rows = [line.split() for line in lines if line.split()[:1] in (["learned"], ["alibi"], ["rope"])]
    assert rows == [
        ["learned", "2.72", "undefined", "undefined"],
        ["alibi", "4.48", "4.48", "4.48"],
        ["rope", "7.39", "12.18", "20.09"],
    ]
    assert any("trained" in line and "2 x" in line and "4 x" in line for line in lines)


def test_the_default_study_fits_80_columns(finished: tuple[Path, StudyResult]) -> None:
    like = finished[1].trials[0]
    wide = replace(like.config, recipe=replace(like.config.recipe, length=64, multiples=(1, 2, 4, 8, 10, 16)))
    losses = dict.fromkeys(wide.recipe.lengths) | {64: 2.0}
    trials = [replace(trial(like, "rope", 0, losses), config=replace(wide, scheme="alibi_reversed"))]
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(table(trials, "non_overlapping"))
        console.print(cost_table(trials))
    assert capture.get().count("undefined") == 5
    assert "…" not in capture.get()
    assert "alibi_reversed" in capture.get()


def test_several_seeds_give_mean_and_range(finished: tuple[Path, StudyResult]) -> None:
    like = finished[1].trials[0]
    trials = [
        trial(like, "rope", 0, {16: 1.0, 32: 1.0, 64: 1.0}),
        trial(like, "rope", 1, {16: 2.0, 32: 1.0, 64: 1.0}),
        trial(like, "learned", 0, {16: 1.0, 32: None, 64: None}),
    ]
    assert "".join(printed(trials)).split("rope")[1].split() == [
        "5.05",
        "2.72",
        "2.72",
        "2.72-7.39",
        *["2.72-2.72"] * 2,
    ]
    rope, learned = curves(trials)
    first = rope.points[0]
    assert [round(value, 2) for value in (first.mean or 0, first.low or 0, first.high or 0)] == [5.05, 2.72, 7.39]
    assert [point.mean is None for point in learned.points] == [False, True, True]
