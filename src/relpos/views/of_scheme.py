"""From a scheme to what there is to see of it. Each kind of term has its view, so a new scheme needs no line here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relpos import errors
from relpos.positions import Positions
from relpos.schemes.absolute import Absolute
from relpos.schemes.scheme import Scheme
from relpos.terms import (
    DistanceBias,
    DistanceGain,
    KeyDistance,
    PairBias,
    QueryDistance,
    Rotation,
    RowOf,
    Term,
    ValueDistance,
)
from relpos.views.view import Heat, Line, Lines, Note, Run, Steps, View

#: Tokens of a heat map, positions of an input table, and the farthest distance, where nobody says.
LENGTH, POSITIONS, REACH = 32, 64, 128
#: A heat map of more cells is neither drawn in a useful time nor read.
MOST_CELLS = 200_000
#: Where the queries stand whose pair biases are shown: with few keys before them, and with many.
PLACES = (128, 8192)
DISTANCE = "distance (key - query)"
_Vectors = QueryDistance | KeyDistance | ValueDistance
_MEETS: dict[type, str] = {QueryDistance: "meets queries", KeyDistance: "meets keys", ValueDistance: "added to values"}


@torch.no_grad()
def views_of(scheme: Scheme, length: int | None = None, reach: int | None = None) -> tuple[View, ...]:
    """All views of a scheme, the most telling first.

    Args:
        scheme: any scheme.
        length: tokens of the heat maps of a bias (32), positions of an input table (64, or as many as it has).
        reach: the farthest distance to either side; a quarter beyond the scheme's `max_distance`, else 128.

    Raises: ValueError for a heat map of more than 200 000 cells.
    """
    for name, number in (("length", length), ("reach", reach)):
        if number is not None:
            errors.positive_int("relpos show", **{name: number})
    if isinstance(scheme, Absolute):
        return (_input_table(scheme, length),)
    terms = scheme.terms(Positions.arange(1))
    reach = _reach(scheme) if reach is None else reach
    views: list[View] = [*_dense_bias(scheme, length or LENGTH)]
    for term in terms:
        views += _term_views(scheme, term, terms, reach)
    if not views:
        views = [_parameter(name, table) for name, table in scheme.named_parameters()]
    if not views:
        return (Note(f"{scheme.name} adds {'nothing' if not terms else 'no table'}: there is nothing to draw."),)
    return (*dict.fromkeys(views), *_notes(scheme))  # tables that are read by the same rows show them once


def origin_of(scheme: Scheme, names: Mapping[str, str] | None = None, file: str = "") -> str:
    """Where the numbers of the learned tables are from, in words: a file's tensors, or the constructor."""
    tables = [name for name, _ in scheme.named_parameters()]
    if names:
        return f"{', '.join(f'{table} is {names[table]}' for table in tables)} of {file}"
    return f"{', '.join(tables)} as built, before training" if tables else ""


def _dense_bias(scheme: Scheme, length: int) -> Iterator[Heat]:
    """The bias by head, query by key, where the scheme is a bias."""
    try:
        heads = len(scheme.bias(1))
    except ValueError:  # it meets content, or rotates: there is no such matrix
        return
    _check_cells(heads * length * length, f"length={length} with {heads} heads", "a smaller --length")
    single = tuple((token, token) for token in range(length))
    names = tuple(f"head {head}" for head in range(heads))
    yield Heat("Bias by head", "key", "query", "bias", single, _numbers(scheme.bias(length)), names, is_signed=True)


def _term_views(scheme: Scheme, term: Term, terms: tuple[Term, ...], reach: int) -> list[View]:
    distance = torch.arange(-reach, reach + 1)
    if isinstance(term, DistanceBias):
        lines = _by_head("Bias against distance", "bias", distance, term.values(distance, torch.float32))
        return [lines, *([] if term.row is None else [_steps(term.row, reach)])]
    if isinstance(term, PairBias):
        return [_pair_bias(term, scheme.num_heads or 1, place, distance) for place in PLACES]
    if isinstance(term, DistanceGain):
        table, of = (term.table, "") if term.table.dim() == 2 else (term.table.mean(-1), ", mean over channels")
        title = f"Gain of the content score against distance{of}"
        return [_by_head(title, "gain", distance, table[:, term.row(distance)]), _steps(term.row, reach)]
    if isinstance(term, _Vectors):
        meets = [_MEETS[type(one)] for one in terms if isinstance(one, _Vectors) and one.table is term.table]
        name = next((name for name, table in scheme.named_parameters() if table is term.table), "table")
        return [_vectors(f"{name}, {' and '.join(meets)}", term.table, term.row, reach), _steps(term.row, reach)]
    if isinstance(term, Rotation):
        return _rotation(term, scheme.head_dim or 2 * len(term.inv_freq), reach)
    return []


def _pair_bias(term: PairBias, heads: int, place: int, distance: Int[Tensor, " n"]) -> Lines:
    values = term.between(torch.tensor([place]), place + distance, heads, torch.float32)[:, 0]
    return _by_head(f"Bias against distance, query at position {place:,}", "bias", distance, values)


def _by_head(title: str, value: str, distance: Tensor, numbers: Float[Tensor, "H n"]) -> Lines:
    x = tuple(distance.tolist())
    lines = (Line(f"head {head}", x, tuple(row)) for head, row in enumerate((numbers + 0.0).tolist()))
    return Lines(title, DISTANCE, value, tuple(lines))


def _vectors(name: str, table: Float[Tensor, "*H R D"], row: RowOf, reach: int) -> Heat:
    """A table of vectors against distance: all its channels, or, where each head has its own, their lengths."""
    runs = _runs(row, reach)
    columns = tuple((run.first, run.last) for run in runs)
    rows = torch.tensor([run.row for run in runs])
    numbers = table.norm(dim=-1)[:, rows] if table.dim() == 3 else table[rows].T
    _check_cells(numbers.numel(), f"{name} over {len(runs)} rows", "a smaller --reach")
    if table.dim() == 3:
        return Heat(f"Length of vectors ({name})", DISTANCE, "head", "length", columns, _numbers(numbers[None]))
    title = f"Vectors ({name})"
    return Heat(title, DISTANCE, "channel", "value", columns, _numbers(numbers[None]), is_signed=True)


def _rotation(term: Rotation, width: int, reach: int) -> list[View]:
    """Wavelengths, the score's decay, and how each pair of channels turns with distance."""
    pairs = len(term.inv_freq)
    distance = torch.arange(reach + 1)
    wavelength = (2 * torch.pi / term.inv_freq.double()).tolist()
    equal = torch.full((1, 1, reach + 1, width), width**-0.5, dtype=torch.float64)
    # Queries stand at 0, so that their rotation is none; keys at each distance.
    decay = (equal * term.apply(equal, distance)).sum(-1)[0, 0]
    first = torch.arange(pairs) * (2 if term.layout == "interleaved" else 1)
    one = torch.zeros(1, pairs, reach + 1, width, dtype=torch.float64)
    one[0, torch.arange(pairs), :, first] = 1.0
    turned = (one * term.apply(one, distance)).sum(-1)[0]
    x = tuple(distance.tolist())
    return [
        Lines(
            "Score of a query and a key of equal content",
            "distance",
            "relative to distance 0",
            (Line("score", x, tuple(decay.tolist())),),
        ),
        Lines(
            "Wavelength of each pair of channels",
            "pair",
            "tokens for one turn",
            (Line("wavelength", tuple(range(pairs)), tuple(wavelength)),),
            is_log=True,
        ),
        Heat(
            "Score of each pair of channels",
            "distance",
            "pair",
            "score",
            tuple((one, one) for one in x),
            _numbers(turned[None]),
            is_signed=True,
        ),
    ]


def _input_table(scheme: Absolute, length: int | None) -> Heat:
    """What stands for each position, position by channel, as `embed` adds it."""
    most = getattr(scheme, "max_len", POSITIONS) - getattr(scheme, "offset", 0)
    tokens = min(POSITIONS, most) if length is None else length
    _check_cells(tokens * scheme.embed_dim, f"length={tokens}, embed_dim={scheme.embed_dim}", "a smaller --length")
    rows = scheme.embed(torch.zeros(1, tokens, scheme.embed_dim))[0]
    columns = tuple((position, position) for position in range(tokens))
    return Heat(
        "What is added to the input",
        "position",
        "channel",
        "value",
        columns,
        _numbers(rows.T[None]),
        is_signed=True,
    )


def _parameter(name: str, table: Tensor) -> Heat:
    """A table of a scheme whose terms have no view of their own."""
    flat = table.reshape(-1, table.shape[-1]) if table.dim() else table.reshape(1, 1)
    _check_cells(flat.numel(), f"{name} {list(table.shape)}", "smaller sizes")
    columns = tuple((column, column) for column in range(flat.shape[1]))
    return Heat(f"Learned table {name}", "column", "row", "value", columns, _numbers(flat[None]), is_signed=True)


def _steps(row: RowOf, reach: int) -> Steps:
    runs = _runs(row, reach)
    before, after = row(torch.tensor([-(2**40), 2**40])).tolist()
    return Steps("Row of the table against distance", runs, (before == runs[0].row, after == runs[-1].row))


def _runs(row: RowOf, reach: int) -> tuple[Run, ...]:
    """Neighbouring distances that read the same row, together."""
    runs: list[Run] = []
    for distance, number in enumerate(row(torch.arange(-reach, reach + 1)).tolist(), start=-reach):
        if runs and runs[-1].row == number:
            runs[-1] = Run(number, runs[-1].first, distance)
        else:
            runs.append(Run(number, distance, distance))
    return tuple(runs)


def _notes(scheme: Scheme) -> Iterable[Note]:
    """What a picture of a table that has not learned yet would leave the reader to guess."""
    for name, table in scheme.named_parameters():
        if table.numel() and bool((table == table.flatten()[0]).all()):
            start = f"{float(table.flatten()[0]):g}"
            yield Note(f"All of {name} is {start}. --weights FILE shows a trained one.")


def _reach(scheme: Scheme) -> int:
    limit = getattr(scheme, "max_distance", None)
    farthest = max(limit) if isinstance(limit, tuple) else limit
    return farthest + max(2, farthest // 4) if isinstance(farthest, int) else REACH


def _check_cells(cells: int, given: str, fix: str) -> None:
    if cells > MOST_CELLS:
        raise errors.value(
            "relpos show", f"{given}: {cells:,} cells", f"at most {MOST_CELLS:,} cells a heat map", f"ask for {fix}."
        )


def _numbers(values: Float[Tensor, "panels rows columns"]) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return tuple(tuple(tuple(row) for row in panel) for panel in (values + 0.0).tolist())  # -0.0 + 0.0 is 0.0
