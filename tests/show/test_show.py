"""`relpos show`: options are the constructor's arguments, tables come by name and shape, errors are one message."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from charts import rows
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import relpos
from relpos.cli.app import app
from relpos.plots.save import specification_of
from relpos.schemes import SCHEMES, Scheme
from relpos.terms import DistanceBias, Term
from relpos.views import arguments_of, build, options, views_of


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["show", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def t5_file(tmp_path: Path) -> tuple[Path, Tensor]:
    """A file with a table as Hugging Face names and lays it out."""
    weight = torch.randn(8, 3)
    path = tmp_path / "t5.safetensors"
    save_file({"encoder.relative_attention_bias.weight": weight, "other": torch.zeros(2), "ids": torch.arange(3)}, path)
    return path, weight


@pytest.mark.parametrize("name", relpos.names())
def test_every_scheme_is_shown_in_the_terminal(name: str) -> None:
    code, output = run(name)
    assert code == 0, output
    assert output.startswith(name)
    assert max(map(len, output.splitlines())) <= 80
    assert ("nothing to draw" in output) == (name == "nope")


@pytest.mark.parametrize("ending", ["png", "PNG", "svg", "html"])
def test_the_ending_says_what_is_drawn(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"alibi.{ending}"
    code, output = run("alibi", "--num-heads", "2", "--length", "5", "--out", str(path))
    assert code == 0, output
    content = path.read_bytes()
    begins = {"png": b"\x89PNG", "svg": b"<svg", "html": b"<!DOCTYPE html>"}
    assert content.startswith(begins[ending.lower()])
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    if ending.lower() == "png":
        cells = rows(specification_of(content), "Bias by head")
        assert [cell["value"] for cell in cells if (cell["panel"], cell["row"]) == ("head 0", 4)] == [
            -0.25,
            -0.1875,
            -0.125,
            -0.0625,
            0,
        ]
    else:
        assert b"head 1" in content


def test_html_needs_no_network_and_its_text_ends_no_script(tmp_path: Path) -> None:
    evil = tmp_path / "<script>alert(1)<"
    evil.mkdir()
    weights = evil / "x<img onerror=alert(2)>.safetensors"
    save_file({"</script><b>": torch.zeros(2, 3)}, weights)
    path = tmp_path / "a.html"
    options = ["--num-heads", "2", "--max-distance", "1", "--weights", str(weights), "--tensor", "</script><b>"]
    code, output = run("shaw_bias", *options, "--out", str(path))
    assert code == 0, output
    page = path.read_text()
    assert page.count("<script>") == page.count("</script>") == 2
    chart = page.rpartition("<script>")[2]
    assert "<img" not in chart
    assert "<b>" not in chart
    assert "\\u003c/script>\\u003cb>" in chart
    ours = page.partition("<script>")[0] + page.partition("</script>")[2]  # all but the library
    assert not re.search(r"(src|href)=|https?:", ours.replace('"$schema": "https://vega.github.io', ""))


def test_options_are_the_arguments_of_the_constructor() -> None:
    assert arguments_of("c", "t5", ["--num-heads", "3", "--no-bidirectional", "--scale=none"]) == {
        "num_heads": 3,
        "bidirectional": False,
        "scale": None,
    }
    assert arguments_of("c", "t5", ["--bidirectional", "false", "--bias-scale", "-1e-1"]) == {
        "bidirectional": False,
        "bias_scale": -0.1,
    }
    assert arguments_of("c", "alibi", ["--slopes", "0.5", "--learned"]) == {"slopes": (0.5,), "learned": True}
    assert arguments_of("c", "shaw", ["--max-distance", "(6, 2)"]) == {"max_distance": (6, 2)}
    assert arguments_of("c", "shaw", ["--max-distance", "6"]) == {"max_distance": 6}
    assert arguments_of("c", "deberta", ["--parts", "c2p", "--num_buckets", "None"]) == {
        "parts": ("c2p",),
        "num_buckets": None,
    }
    assert arguments_of("c", "rope", ["--layout", "interleaved"]) == {"layout": "interleaved"}
    code, output = run("deberta", "--parts", "c2p,p2p", "--num-buckets", "8", "--max-distance=16", "--head-dim", "4")
    assert code == 0, output
    assert "num_buckets=8, max_distance=16, parts=('c2p', 'p2p')" in " ".join(output.split())


def test_a_table_of_a_checkpoint(t5_file: tuple[Path, Tensor], tmp_path: Path) -> None:
    path, weight = t5_file
    settings = ["t5", "--num-heads", "3", "--num-buckets", "8", "--max-distance", "20", "--length", "4"]
    named = ["--weights", str(path), "--tensor", "encoder.relative_attention_bias.weight"]
    before, after = tmp_path / "before.png", tmp_path / "after.png"
    assert run(*settings, "--out", str(before))[0] == 0
    code, output = run(*settings, *named, "--transposed", "--out", str(after))
    assert code == 0, output
    assert {cell["value"] for cell in rows(specification_of(before.read_bytes()), "Bias by head")} == {0}
    bucket = {-3: 2, -2: 2, -1: 1, 0: 0, 1: 5, 2: 6, 3: 6}  # 4 a side, 2 of them exact, [2, 6) shares the third
    for cell in rows(specification_of(after.read_bytes()), "Bias by head"):
        want = weight[bucket[cell["first"] - cell["row"]], int(cell["panel"][5:])].item()
        assert cell["value"] == pytest.approx(want, rel=6e-6)
    title = json.dumps(specification_of(after.read_bytes())["title"])
    assert "table is encoder.relative_attention_bias.weight of t5.safetensors" in title


def test_several_tables_in_half_precision(tmp_path: Path) -> None:
    path = tmp_path / "shaw.safetensors"
    tables = {"k": torch.randn(3, 4).bfloat16(), "value_table": torch.randn(3, 4).half()}
    save_file(tables, path)
    settings = ["shaw", "--head-dim", "4", "--max-distance", "1", "--weights", str(path), "--out"]
    code, output = run(*settings, str(tmp_path / "a.png"), "--tensor", "key_table=k")
    assert code == 0, output
    for name, heading in (("k", "Vectors (key_table"), ("value_table", "Vectors (value_table")):
        for cell in rows(specification_of((tmp_path / "a.png").read_bytes()), heading):
            row = min(max(cell["first"], -1), 1) + 1
            assert cell["value"] == pytest.approx(tables[name][row, cell["row"]].item(), rel=6e-6)


T5 = ["t5", "--num-heads", "3", "--num-buckets", "8", "--max-distance", "20", "--weights", "FILE"]
NAMED = ["--tensor", "encoder.relative_attention_bias.weight"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got no scheme. Allowed: alibi, deberta"),
        (["t6"], "did you mean 't5'?"),
        (["--num-heads", "3", "t5"], "write the scheme first"),
        (["t5", "--num-bucket", "3"], "Allowed: --num-heads, --num-buckets (32), --max-distance (128)"),
        (["t5", "--no-num-buckets"], "'--no-num-buckets' for t5. Allowed: --num-heads"),
        (["t5", "8"], "'8' for t5. Allowed: --num-heads"),
        (["t5", "--num-heads"], "--num-heads without a value"),
        (["t5", "--num-heads", "eight"], "num_heads='eight'"),
        (["t5", "--num-heads", "0"], "num_heads >= 1"),
        (["t5", "--bidirectional", "maybe"], "bidirectional='maybe'. Allowed: True or False"),
        (["nope", "--num-heads", "2"], "takes none"),
        (["rope", "--rotary-dim", "3"], "an even number"),
        (["alibi", "--slopes", "1,2", "--num-heads", "3"], "3 finite numbers"),
        (["t5", "--length", "0"], "length=0"),
        (["t5", "--reach", "-1"], "reach=-1"),
        (["t5", "--length", "4096"], "at most 200,000 cells"),
        (["learned", "--length", "65"], "position 64 for a table of 64 rows"),
        (["t5", "--out", "a.gif"], ".png, .svg, .html"),
        (["nope", "--out", "a.png"], "nope adds nothing"),
        (["t5", "--tensor", "x"], "--weights FILE"),
        (["--docs", "pictures"], "--docs without --weights"),
        (["t5", "--weights", "no/such/file"], "no/such/file, which is no file"),
        (["t5", "--weights", "."], "got ., which is no file"),
        (["t5", "--weights", "TEXT"], "a safetensors file"),
        (["rope", "--weights", "FILE"], "which learns nothing"),
        (T5, "t5.safetensors without a tensor 'table'. Allowed: encoder.relative_attention_bias.weight, ids, other"),
        ([*T5, *NAMED], "of shape [8, 3]. Allowed: [3, 8]. What to do: pass --transposed"),
        ([*T5, "--tensor", "other"], "of shape [2]. Allowed: [3, 8]. What to do: set the scheme's options"),
        ([*T5, "--tensor", "ids"], "torch.int64"),
        ([*T5, *NAMED, "--transposed", "--num-heads", "4"], "of shape [3, 8] (transposed). Allowed: [4, 8]"),
        ([*T5, "--tensor", "tables=other"], "Allowed: table=NAME"),
    ],
)
def test_errors_are_one_message(
    arguments: list[str],
    message: str,
    t5_file: tuple[Path, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("TEXT").write_text("not a checkpoint")
    there = set(tmp_path.rglob("*"))
    code, output = run(*(str(t5_file[0]) if word == "FILE" else word for word in arguments))
    assert code == 2, output
    assert output.startswith("Error: ")
    assert message in output
    assert "Traceback" not in output
    assert set(tmp_path.rglob("*")) == there


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save_file({"table": torch.tensor([[0.0, float("nan"), 1.0]])}, tmp_path / "a.safetensors")
    settings = ["shaw_bias", "--num-heads", "1", "--max-distance", "1", "--weights", str(tmp_path / "a.safetensors")]
    code, output = run(*settings)
    assert (code, "not finite" in output) == (2, True)
    save_file({"table": torch.eye(3)[:1]}, tmp_path / "a.safetensors")
    code, output = run(*settings, "--transposed")
    assert (code, "leave --transposed out" in output) == (2, True)


@pytest.fixture
def stranger() -> Iterator[type[Scheme]]:
    """A scheme that no module of the library knows."""

    class Stranger(Scheme, name="stranger"):
        """Adds a number for each head to even distances.

        Valid: any length.
        Source: this test.
        """

        encodes = "distance"
        injects_at = "scores"
        head_tables = ("table",)

        def __init__(self, num_heads: int, factor: float = 2.0) -> None:
            super().__init__()
            self.num_heads, self.factor = num_heads, factor
            self.table = nn.Parameter(torch.arange(1.0, num_heads + 1))

        def reset_parameters(self) -> None:
            """Nothing to do."""

        def terms(self, positions: relpos.Positions) -> tuple[Term, ...]:
            return (DistanceBias(lambda d, _: self.factor * self.table.view(-1, *[1] * d.dim()) * (d % 2 == 0)),)

    yield Stranger
    del SCHEMES["stranger"]


def test_a_new_scheme_is_shown_without_a_line_here(stranger: type[Scheme], tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    code, output = run("stranger", "--num-heads", "2", "--factor", "3", "--length", "4", "--out", str(path))
    assert code == 0, output
    cells = rows(specification_of(path.read_bytes()), "Bias by head")
    for cell in cells:
        want = 3 * (int(cell["panel"][5:]) + 1) if (cell["first"] - cell["row"]) % 2 == 0 else 0
        assert cell["value"] == want
    code, output = run("stranger")
    assert code == 0
    assert "learns table [8]: 8 numbers" in output


def test_terms_that_nobody_knows_leave_the_tables(stranger: type[Scheme], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranger, "terms", lambda self, positions: (object(),))
    (heat,) = views_of(build("test", "stranger", {}))
    assert heat.title == "Learned table table"  # type: ignore[union-attr]
    assert heat.values == ((tuple(map(float, range(1, 9))),),)  # type: ignore[union-attr]


def test_a_scheme_that_needs_more_says_what(stranger: type[Scheme], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(options.SIZES, "num_heads")
    code, output = run("stranger")
    assert code == 2
    assert "stranger without --num-heads" in output


def test_help_imports_no_charting_library() -> None:
    code = """
import sys
sys.argv = ["relpos", "show", "--help"]
from relpos.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
assert not {"altair", "vl_convert", "safetensors"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(option in done.stdout for option in ("--out", "--weights", "--tensor", "--transposed", "--reach"))


def test_the_terminal_needs_no_charting_library() -> None:
    code = """
import sys
sys.modules["altair"] = sys.modules["vl_convert"] = None
sys.argv = ["relpos", "show", "t5"]
from relpos.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Bias against distance" in done.stdout
