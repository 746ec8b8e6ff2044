"""The table of schemes, from the classes themselves: nothing in it is written by hand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import relpos
from relpos.backends import BACKENDS
from relpos.schemes import SCHEMES, Scheme
from relpos.schemes.absolute import Absolute
from relpos.views.options import build

#: What constructors get that have no default of their own.
SIZES: dict[str, object] = {
    "num_heads": 8,
    "head_dim": 64,
    "embed_dim": 512,
    "max_distance": 128,
    "max_len": 512,
    "method": 1,
}
CALL = "relpos schemes"
SHORT = "relpos schemes --markdown --short"
LONG = "relpos schemes --markdown"


@dataclass(frozen=True)
class Entry:
    """One scheme: what it is, what it learns at the sizes asked for, who runs it, whose it is.

    `tables` are shapes by name; `parameters` their numbers together; `valid` and `source` are the first sentences of
    these sections of the docstring.
    """

    name: str
    cls: str
    encodes: str
    injects_at: str
    tables: dict[str, list[int]]
    parameters: int
    backends: tuple[str, ...]
    valid: str
    source: str


def catalogue(sizes: Mapping[str, object] = SIZES) -> list[Entry]:
    """An entry for every scheme, built with `sizes` where its constructor has no default.

    Raises: ValueError for a size that no scheme can have.
    """
    return [_entry(name, {**SIZES, **sizes}) for name in relpos.names()]


def as_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The entries as JSON values; the class is "class"."""
    return [{("class" if key == "cls" else key): value for key, value in asdict(entry).items()} for entry in entries]


def as_markdown(entries: Sequence[Entry], *, short: bool = False) -> str:
    """A Markdown table: name, class, encodes, acts on, and unless `short` all else."""
    heads = ["name", "class", "encodes", "acts on"]
    if not short:
        heads += ["learns", "parameters", "backends", "valid for", "source"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for entry in entries:
        cells = [f"`{entry.name}`", f"`{entry.cls}`", entry.encodes, entry.injects_at]
        if not short:
            tables = ", ".join(f"`{name} {shape}`" for name, shape in entry.tables.items())
            backends = ", ".join(f"`{name}`" for name in entry.backends)
            cells += [tables or "nothing", f"{entry.parameters:,}", backends, entry.valid, entry.source]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def as_table(entries: Sequence[Entry]) -> Table:
    """The entries for a terminal of 80 columns; sources stand in `as_sources`."""
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    drawn.add_column("scheme", no_wrap=True)
    for heading in ("encodes", "acts on", "learns"):
        drawn.add_column(heading)
    drawn.add_column("parameters", justify="right", no_wrap=True)
    drawn.add_column("backends")
    for entry in entries:
        name = Text(entry.name, style="bold cyan").append(f"\n{entry.cls}", style="not bold default")
        tables = "\n".join(f"{table} {'x'.join(map(str, shape))}" for table, shape in entry.tables.items())
        backends = "\n".join(entry.backends)
        drawn.add_row(name, entry.encodes, entry.injects_at, tables or "-", f"{entry.parameters:,}", backends)
    return drawn


def as_sources(entries: Sequence[Entry]) -> Table:
    """Where each scheme is from."""
    drawn = Table.grid(padding=(0, 2, 0, 0))
    for entry in entries:
        drawn.add_row(Text(entry.name, style="bold cyan"), Text(entry.source))
    return drawn


def updated(page: str, entries: Sequence[Entry]) -> str:
    """A page with its tables made anew: each between a comment with the command that prints it and `<!-- end -->`.

    Raises: ValueError for a page without such a comment.
    """
    for command in (LONG, SHORT):
        region = re.compile(rf"(<!-- {command} -->\n).*?(<!-- end -->)", re.DOTALL)
        table = as_markdown(entries, short=command == SHORT)
        match = region.search(page)
        if match:
            return f"{page[: match.end(1)]}\n{table}\n\n{page[match.start(2) :]}"
    raise relpos.errors.value(
        CALL, "a page without a marked region", f"<!-- {LONG} --> ... <!-- end -->", "mark where the table stands."
    )


def _entry(name: str, sizes: Mapping[str, object]) -> Entry:
    scheme = build(CALL, name, {}, sizes)
    tables = {table: list(parameter.shape) for table, parameter in scheme.named_parameters()}
    return Entry(
        name=name,
        cls=type(scheme).__name__,
        encodes=scheme.encodes,
        injects_at=scheme.injects_at,
        tables=tables,
        parameters=sum(parameter.numel() for parameter in scheme.parameters()),
        backends=_backends(scheme, sizes),
        valid=_section(SCHEMES[name], "Valid"),
        source=_section(SCHEMES[name], "Source"),
    )


def _backends(scheme: Scheme, sizes: Mapping[str, object]) -> tuple[str, ...]:
    """The backends that run a plain causal call, asked one by one. An absolute scheme is no argument of attention."""
    width = scheme.head_dim or sizes["head_dim"]
    assert isinstance(width, int)
    query = torch.zeros(1, scheme.num_heads or 1, 4, width)
    found = []
    for backend in BACKENDS:
        try:
            own = None if isinstance(scheme, Absolute) else scheme
            relpos.explain(query, query, query, own, is_causal=True, backend=backend)
        except relpos.BackendRefused:
            continue
        found.append(backend)
    return tuple(found)


def _section(cls: type[Scheme], heading: str) -> str:
    """The first sentence of a section of the class's docstring, on one line."""
    match = re.search(rf"^{heading}: (.*?)(?=^\S|\Z)", inspect.getdoc(cls) or "", re.DOTALL | re.MULTILINE)
    text = " ".join(match[1].split()) if match else ""
    return re.split(r"(?<!\bal)\.\s+(?=[A-Z`])", text)[0].removesuffix(".")
