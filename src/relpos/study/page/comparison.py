"""The articles' comparison tables, with measured numbers beside their adjectives."""

from collections.abc import Callable
from dataclasses import dataclass

from relpos.schemes import SCHEMES
from relpos.study.page.numbers import Numbers, Stat

MIB = 2.0**20


@dataclass(frozen=True)
class Cell:
    """What the article says, and a line a scheme of what was measured; `scheme` is for the page's singling out."""

    said: str
    measured: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Comparison:
    """A table of an article: a row for each of its dimensions."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def comparisons(numbers: Numbers) -> list[Comparison]:
    """Both articles' tables, for the schemes that this study has."""
    absolute = numbers.absolute()
    learned, sinusoidal = (tuple(name for name in (one,) if name in absolute) for one in ("learned", "sinusoidal"))
    relative = tuple(name for name in numbers.best_first() if name in numbers.relative())
    families = (learned, sinusoidal, relative)
    first = Comparison(
        "Article 1: absolute and relative positions",
        ("learned, absolute", "sinusoidal, absolute", "relative"),
        (
            _row(
                f"extrapolation: perplexity at {numbers.trained:,} and {numbers.longest:,} bytes",
                ("none (fails past its table)", "weak", "depends on the scheme (ALiBi: strong)"),
                families,
                lambda scheme: _extrapolation(numbers, scheme),
            ),
            _row(
                f"sense of distance: attention on the same distances{_attended_lengths(numbers)}",
                ("learned indirectly", "learned indirectly", "modelled directly"),
                families,
                lambda scheme: _text(numbers.same_distances(scheme), ".0%"),
            ),
            _row(
                "parameters and computation: position parameters, ms a step, MiB a step",
                ("one table", "no parameters", "a table of biases, or a formula"),
                families,
                lambda scheme: _cost(numbers, scheme),
            ),
        ),
    )
    additive = tuple(name for name in relative if SCHEMES[name].injects_at != "query and key")
    multiplicative = tuple(name for name in relative if SCHEMES[name].injects_at == "query and key")
    second = Comparison(
        "Article 2: two ways to bring a distance into attention",
        ("additive: added to the score", "multiplicative: multiplied into query and key"),
        (
            _row(
                "cost: position parameters, ms a step, MiB a step",
                ("simple, but its parameters grow with the window", "somewhat more computation"),
                (additive, multiplicative),
                lambda scheme: _cost(numbers, scheme),
            ),
            _row(
                f"quality: perplexity at {numbers.trained:,} and {numbers.longest:,} bytes",
                ("good enough for most tasks", "more flexible"),
                (additive, multiplicative),
                lambda scheme: _extrapolation(numbers, scheme),
            ),
        ),
    )
    return [first, second]


def _row(
    name: str, said: tuple[str, ...], families: tuple[tuple[str, ...], ...], measure: Callable[[str], str]
) -> tuple[str, tuple[Cell, ...]]:
    cells = (
        Cell(words, tuple((scheme, measure(scheme)) for scheme in schemes))
        for words, schemes in zip(said, families, strict=True)
    )
    return name, tuple(cells)


def _extrapolation(numbers: Numbers, scheme: str) -> str:
    first, last = (numbers.perplexity(scheme, window) for window in (numbers.trained, numbers.longest))
    return f"{_text(first)} → {_text(last)}"


def _attended_lengths(numbers: Numbers) -> str:
    windows = [seen.window for seen in numbers.trials[0].attended]
    return f" at {windows[0]:,} and {windows[-1]:,} bytes" if len(windows) > 1 else ""


def _cost(numbers: Numbers, scheme: str) -> str:
    trial = numbers.by_scheme[scheme][0]
    milliseconds, size = numbers.step_seconds(scheme), numbers.step_bytes(scheme)
    return f"{trial.position_parameters:,}, {_text(milliseconds, '.0f', 1e3)} ms, {_text(size, '.1f', 1 / MIB)} MiB"


def _text(stat: Stat | None, form: str = ",.2f", factor: float = 1.0) -> str:
    return "undefined" if stat is None else stat.text(form, factor)
