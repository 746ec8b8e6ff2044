"""Imports follow the direction of the data, importing needs torch and jaxtyping only, annotated shapes are checked."""

from __future__ import annotations

import ast
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

import relpos

SRC = Path(relpos.__file__).parent

#: Rooms, each group importing only from groups before it; rooms of one group do not know each other.
ORDER: list[set[str]] = [
    {"errors"},
    {"files", "machine"},
    {"functional"},
    {"positions"},
    {"terms", "_native"},
    {"schemes", "backends"},
    {"arguments"},
    {"attention"},
    {"nn", "hf"},
    {"views"},
    {"plots"},
    {"study", "bench"},
    {"cli"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
HOME = {
    "transformers": {"hf", "bench"},
    "x_transformers": {"bench"},
    "disentangled_flash": {"bench"},
    "onnxruntime": {"bench"},
    "openvino": {"bench"},
    "altair": {"plots"},
    "vl_convert": {"plots"},
    "typer": {"cli"},
    "jinja2": {"study"},
}


def imports(source: str) -> set[str]:
    """Dotted names that a source file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def wrong_arrows(room: str, source: str) -> list[str]:
    """Imports of `source`, a file of `room`, that go against the direction of the data."""
    wrong = []
    for name in imports(source):
        top, *rest = name.split(".")
        if top == "relpos" and rest:
            other = rest[0] if rest[0] in RANK else None
            if other is not None and other != room and RANK[other] >= RANK[room]:
                wrong.append(name)
        elif room not in HOME.get(top, {room}):
            wrong.append(name)
    return wrong


FILES = [path for path in SRC.rglob("*.py") if path.parent != SRC or path.name != "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_one_way(path: Path) -> None:
    assert room_of(path) in RANK, f"{path.name} stands in no room of the list"
    assert wrong_arrows(room_of(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("terms", "from relpos.schemes import T5Bias"),
        ("backends", "from relpos.schemes.scheme import Scheme"),
        ("functional", "from relpos import attention"),
        ("nn", "import transformers"),
        ("study", "def f():\n    import altair"),
    ],
)
def test_the_check_sees_a_wrong_arrow(room: str, source: str) -> None:
    assert wrong_arrows(room, source)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_relpos_loads_torch_and_jaxtyping_only() -> None:
    heavy = ["transformers", "altair", "rich", "typer", "safetensors", "tensorboard", "numpy.testing", "hypothesis"]
    code = f"import sys, relpos; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_public_names() -> None:
    modules = ["RelativeBias", "RelativeAttention", "KVCache"]
    schemes = ["NoPE", "LearnedAbsolute", "Sinusoidal", "ShawBias", "Shaw", "Huang", "T5Bias", "ALiBi", "Disentangled"]
    calls = ["attention", "attention_weights", "explain", "functional", "make", "names", "Positions", "BackendRefused"]
    missing = [name for name in [*modules, *schemes, *calls, "Rotary", "__version__"] if not hasattr(relpos, name)]
    assert missing == []
    short = {"nope", "learned", "sinusoidal", "shaw_bias", "shaw", "huang", "t5", "alibi", "fire", "deberta", "rope"}
    assert set(relpos.names()) >= short


@pytest.mark.parametrize("checked", [True, pytest.param(False, marks=pytest.mark.shapes_unchecked)])
def test_annotated_shapes_are_checked_but_where_a_test_is_marked(checked: bool) -> None:
    rotation = relpos.terms.Rotation(torch.ones(4), "half")
    without_heads = torch.ones(2, 3, 8)
    with pytest.raises(TypeCheckError, match="B H T D") if checked else contextlib.nullcontext():
        assert rotation.apply(without_heads, torch.arange(3)).shape == without_heads.shape
