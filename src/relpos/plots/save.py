"""A chart in a file: PNG, SVG, or HTML that needs no network.

A PNG carries its own specification in a text chunk, so that whoever has the picture has its numbers, and a test can
tell whether a committed picture is the one that the code draws.
"""

from __future__ import annotations

import functools
import html
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vl_convert

from relpos import errors
from relpos.files import write_bytes

ENDINGS = (".png", ".svg", ".html")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# The text's keyword, its end, and the only compression there is.
_KEYWORD = b"vega-lite\0\0"
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<script>{library}</script>
</head>
<body>
<div id="chart"></div>
<script>vegaEmbed("#chart", {specification}, {{actions: false, renderer: "svg"}});</script>
</body>
</html>
"""


def check_ending(call: str, path: Path) -> None:
    """Refuse a file whose name does not say what it shall be."""
    if path.suffix.lower() not in ENDINGS:
        raise errors.value(call, f"{path}", f"a name that ends in {', '.join(ENDINGS)}", "name the kind of file.")


def save(specification: dict[str, Any], path: Path, *, title: str) -> None:
    """Write a Vega-Lite specification as the kind of file that the ending of `path` names; a missing folder is made."""
    check_ending("save", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.suffix.lower()
    if ending == ".png":
        write_bytes(path, _packed(vl_convert.vegalite_to_png(specification, scale=2.0), specification))
    elif ending == ".svg":
        write_bytes(path, vl_convert.vegalite_to_svg(specification).encode("utf-8"))
    else:
        write_bytes(path, _page(specification, title).encode("utf-8"))


@functools.cache
def script_bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script without imports, which sets `vegaEmbed`."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def specification_of(png: bytes) -> dict[str, Any]:
    """The specification that a PNG of `save` carries."""
    for kind, content in _chunks(png):
        if kind == b"zTXt" and content.startswith(_KEYWORD):
            found: dict[str, Any] = json.loads(zlib.decompress(content.removeprefix(_KEYWORD)))
            return found
    raise errors.value("specification_of", "a PNG without one", "a PNG of relpos show", "draw it again.")


def _packed(png: bytes, specification: dict[str, Any]) -> bytes:
    """The same pixels, packed by zlib's best (a third of the size or less), after the specification that made them."""
    chunks = list(_chunks(png))
    pixels = b"".join(content for kind, content in chunks if kind == b"IDAT")
    text = json.dumps(specification, sort_keys=True).encode("ascii")
    before = [chunk for chunk in chunks if chunk[0] not in (b"IDAT", b"IEND")]
    after = [
        (b"zTXt", _KEYWORD + zlib.compress(text, 9)),
        (b"IDAT", zlib.compress(zlib.decompress(pixels), 9)),
        (b"IEND", b""),
    ]
    return _SIGNATURE + b"".join(_chunk(kind, content) for kind, content in [*before, *after])


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk: a PNG is a signature, and chunks of length, kind, content, checksum."""
    place = len(_SIGNATURE)
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += 12 + length


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _page(specification: dict[str, Any], title: str) -> str:
    # "<" as \u003c: no text of the chart can end the script that holds it.
    script = json.dumps(specification).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(title),
        library=script_bundle(),
        specification=script,
    )
