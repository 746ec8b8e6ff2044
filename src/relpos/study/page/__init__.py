"""The report page: one HTML file that needs nothing but itself, drawn from a study's results alone."""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from relpos import files
from relpos.plots import (
    Head,
    Stretch,
    as_script_data,
    attention_page_chart,
    mark_of,
    page_colours,
    perplexity_page_chart,
    position_page_chart,
    script_bundle,
)
from relpos.study.chart import curves
from relpos.study.page.claims import judge
from relpos.study.page.comparison import MIB, comparisons
from relpos.study.page.numbers import Numbers, Stat, even_shares
from relpos.study.results import AttendedDistances, Rule, StudyResult, TrialResult

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Bar:
    """A number of the cost table and the length of its bar, in percent of the column's largest."""

    text: str
    percent: float


def write_page(study: StudyResult, folder: Path) -> Path:
    """Write `report.html` into `folder`, whole or not at all; returns its path."""
    path = folder / "report.html"
    files.write_text(path, render(study))
    return path


def render(study: StudyResult) -> str:
    """The page as text. Everything that comes from the study is escaped; the only script is the package's own."""
    numbers = Numbers.of(study)
    schemes = list(numbers.by_scheme)
    charts, cards = _charts(numbers, schemes)
    script = f"{script_bundle()}\n{(_FOLDER / 'report.js').read_text(encoding='utf-8')}"
    # A script that got in with some text would have another hash: the browser would not run it.
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    environment = Environment(
        loader=PackageLoader("relpos.study", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        # The next four are the package's own text, or data made safe for a script element.
        script=Markup(script),  # noqa: S704
        style=Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),  # noqa: S704
        colours=Markup(page_colours(schemes)),  # noqa: S704
        charts=Markup(as_script_data(charts)),  # noqa: S704
        numbers=numbers,
        recipe=numbers.recipe,
        seeds=study.config.seeds,
        marks=[{"index": index, "name": name, "shape": mark_of(name).shape} for index, name in enumerate(schemes)],
        summary=_summary(numbers),
        tokens=numbers.trials[0].scores[0].tokens,
        positions=[f"position-{window}" for window in numbers.recipe.lengths],
        cards=cards,
        attended=[seen.window for seen in numbers.trials[0].attended],
        tables=[(rule, title, _table(numbers, rule)) for rule, title in _RULES],
        costs=_costs(numbers),
        comparisons=comparisons(numbers),
        claims=judge(numbers),
        foot=_foot(study),
    )


_RULES: tuple[tuple[Rule, str], ...] = (
    ("non_overlapping", "Windows end to end"),
    ("sliding", "Sliding windows, a quarter of a window apart"),
)


def _summary(numbers: Numbers) -> list[str]:
    """Two or three sentences that say what came out, in words that follow from the numbers."""
    best = numbers.best_first()
    first = numbers.perplexity(best[0], numbers.trained)
    if first is None:
        return []
    sentences = [f"Lowest perplexity at {numbers.trained:,} bytes: {best[0]}, {first.text()}."]
    if not numbers.longer:
        return sentences
    ends = {name: numbers.perplexity(name, numbers.longest) for name in best}
    defined = {name: found for name, found in ends.items() if found is not None}
    if defined:
        name = min(defined, key=lambda scheme: defined[scheme].mean)
        sentences.append(f"Lowest at {numbers.longest:,} bytes: {name}, {defined[name].text()}.")
        steepest = max(defined, key=lambda scheme: numbers.rise(scheme) or 0)
        rise = numbers.rise(steepest) or 1.0
        if rise > 1:
            sentences.append(f"Steepest rise between the two: {steepest}, {rise:.2f} times.")
    undefined = [name for name in best if ends[name] is None]
    if undefined:
        sentences.append(f"Undefined at {numbers.longest:,} bytes: {', '.join(undefined)}.")
    return sentences


def _charts(numbers: Numbers, schemes: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Every chart of the page by the id of its place, and the attention cards: a scheme and its places."""
    several = len(numbers.seeds()) > 1
    trained = numbers.recipe.length
    charts: dict[str, Any] = {
        "perplexity": perplexity_page_chart(curves(numbers.trials), trained_length=trained, several_seeds=several)
    }
    stretches = {window: _stretches(numbers, window) for window in numbers.recipe.lengths}
    losses = [bound for found in stretches.values() for each in found for bound in (each.low, each.high)]
    bounds = (min(losses, default=0.0) - 0.1, max(losses, default=1.0) + 0.1)
    for window, found in stretches.items():
        charts[f"position-{window}"] = position_page_chart(
            found, schemes, window=window, trained_length=trained, bounds=bounds, several_seeds=several
        )
    cards: list[dict[str, Any]] = []
    for index, scheme in enumerate(schemes):
        places: list[dict[str, str | None]] = []
        for rank, seen in enumerate(numbers.attended(scheme)):
            place = f"attention-{index}-{seen.window}"
            if seen.shares is not None:
                charts[place] = attention_page_chart(_heads(seen), seen.starts, window=seen.window, has_names=rank == 0)
            places.append({"id": place, "window": f"{seen.window:,}", "undefined": seen.undefined})
        cards.append({"index": index, "scheme": scheme, "places": places})
    return charts, cards


def _heads(seen: AttendedDistances) -> list[Head]:
    """The heads as `layer.head`, counted from 1, and below them a head that looks at everything evenly."""
    rows = [
        Head(f"{layer}.{head}", shares)
        for layer, heads in enumerate(seen.shares or (), start=1)
        for head, shares in enumerate(heads, start=1)
    ]
    return [*rows, Head("even", even_shares(seen.window, seen.starts))]


def _stretches(numbers: Numbers, window: int) -> list[Stretch]:
    """Loss by position: the bins of the results up to the trained length, beyond it bins that double."""
    found: list[Stretch] = []
    for scheme, trials in numbers.by_scheme.items():
        binned = [_binned(trial, window) for trial in trials]
        defined = [each for each in binned if each]
        for same in zip(*defined, strict=True):
            stat = Stat.of([loss for _, _, loss in same])
            found.append(Stretch(scheme, same[0][0], same[0][1], stat.mean, stat.low, stat.high))
    return found


def _binned(trial: TrialResult, window: int) -> list[tuple[int, int, float]]:
    """First and last position and mean loss of each stretch of a window."""
    bins = trial.score("non_overlapping", window).by_position
    if bins is None:
        return []
    edges = [*range(0, min(window, trial.config.recipe.length), bins.bin_width)]
    while (
        next_edge := 2 * edges[-1] if edges[-1] >= trial.config.recipe.length else trial.config.recipe.length
    ) < window:
        edges.append(next_edge)
    found = []
    for first, end in zip(edges, [*edges[1:], window], strict=True):
        inside = slice(first // bins.bin_width, -(-end // bins.bin_width))
        tokens = bins.tokens[inside]
        total = sum(count * loss for count, loss in zip(tokens, bins.loss[inside], strict=True))
        found.append((first, end - 1, total / sum(tokens)))
    return found


def _table(numbers: Numbers, rule: Rule) -> list[tuple[str, list[str]]]:
    """Perplexities as text, the best scheme at the trained length first."""
    return [
        (scheme, [_text(numbers.perplexity(scheme, window, rule)) for window in numbers.recipe.lengths])
        for scheme in numbers.best_first()
    ]


def _costs(numbers: Numbers) -> dict[str, Any]:
    """The cost table: headings, and for each scheme the bars."""
    window = numbers.trials[0].memory.window
    columns: list[tuple[str, list[Stat | None], str, float]] = [
        ("parameters", [_parameters(numbers, s, positions=False) for s in numbers.best_first()], ",.0f", 1),
        ("of positions", [_parameters(numbers, s, positions=True) for s in numbers.best_first()], ",.0f", 1),
        ("ms a training step", [numbers.step_seconds(s) for s in numbers.best_first()], ",.1f", 1e3),
        ("s to evaluate", [numbers.evaluation_seconds(s) for s in numbers.best_first()], ",.1f", 1),
        ("MiB a training step", [numbers.step_bytes(s) for s in numbers.best_first()], ",.1f", 1 / MIB),
        (f"MiB for {window:,} bytes", [numbers.window_bytes(s) for s in numbers.best_first()], ",.1f", 1 / MIB),
    ]
    bars = [list(_bars(stats, form, factor)) for _, stats, form, factor in columns]
    return {
        "headings": [heading for heading, *_ in columns],
        "rows": [(scheme, [column[row] for column in bars]) for row, scheme in enumerate(numbers.best_first())],
    }


def _parameters(numbers: Numbers, scheme: str, *, positions: bool) -> Stat:
    trial = numbers.by_scheme[scheme][0]
    return Stat.of([trial.position_parameters if positions else trial.parameters])


def _bars(stats: Sequence[Stat | None], form: str, factor: float) -> Iterator[Bar]:
    most = max((stat.mean for stat in stats if stat is not None), default=0.0) or 1.0
    for stat in stats:
        yield Bar("undefined", 0.0) if stat is None else Bar(stat.text(form, factor), 100 * stat.mean / most)


def _text(stat: Stat | None) -> str:
    return "undefined" if stat is None else stat.text()


def _foot(study: StudyResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Configuration, text, versions and machine, as names and values."""
    recipe = asdict(study.config.recipe)
    config = {"schemes": study.config.schemes, "seeds": study.config.seeds} | recipe
    config["text"] = "the Python standard library" if recipe["text"] is None else recipe["text"]
    return [
        ("Configuration", [(name, _plain(value)) for name, value in config.items()]),
        ("Text", [(name, _plain(value)) for name, value in asdict(study.corpus).items()]),
        ("Versions and machine", [(name, _plain(value)) for name, value in study.environment.items()]),
    ]


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
