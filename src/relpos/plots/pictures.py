"""The pictures of the documentation: the two drawings, and one picture for each scheme that has any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import relpos
from relpos.plots.flow import flow_chart
from relpos.plots.injection import injection_chart
from relpos.plots.save import save
from relpos.plots.views import chart_of
from relpos.views import Note, build, fill, origin_of, settings_in, views_of

#: Tokens of the heat maps of a bias: pictures that stand small on a page.
LENGTH = 24


def specifications(tables: Path) -> dict[str, dict[str, Any]]:
    """Name -> Vega-Lite specification.

    Schemes whose trained tables are in the file `tables` are drawn with these, others as they start, from one seed.
    """
    found: dict[str, dict[str, Any]] = {"flow": flow_chart().to_dict(), "injection": injection_chart().to_dict()}
    trained = settings_in(tables)
    for name in relpos.names():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            scheme = build("relpos show --docs", name, trained.get(name, {}))
        names = {table: f"{name}.{table}" for table, _ in scheme.named_parameters()} if name in trained else None
        if names:
            fill(scheme, tables, [f"{table}={tensor}" for table, tensor in names.items()])
        is_input = scheme.encodes == "position"
        views = views_of(scheme, None if is_input else LENGTH)
        if not all(isinstance(view, Note) for view in views):
            found[name] = chart_of(scheme, views, origin_of(scheme, names, tables.name)).to_dict()
    return found


def draw_pictures(folder: Path, tables: Path) -> list[Path]:
    """Write each of them as a PNG into `folder`."""
    paths = []
    for name, specification in specifications(tables).items():
        paths.append(folder / f"{name}.png")
        save(specification, paths[-1], title=name)
    return paths
