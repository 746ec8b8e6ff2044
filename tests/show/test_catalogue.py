"""`relpos schemes`: every cell from the classes, and the docs' tables are what the command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relpos
from relpos.cli.app import app
from relpos.schemes import SCHEMES
from relpos.views.catalogue import catalogue, updated

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["schemes", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_entries_are_what_the_papers_count() -> None:
    """Parameters at H 2, D 4, E 5, k 7, 11 rows, counted by hand; T5's and DeBERTa's sizes are the published ones."""
    sizes = ["--heads", "2", "--head-dim", "4", "--embed-dim", "5", "--max-distance", "7", "--max-len", "11"]
    found = {entry["name"]: entry for entry in json.loads(run(*sizes, "--json"))}
    assert sorted(found) == sorted(SCHEMES)
    assert {name: entry["parameters"] for name, entry in found.items()} == {
        "alibi": 0,
        "deberta": 2 * (2 * 2 * 256 * 4),
        "fire": 2 * 32 + 2 * (32 + 1) + 2,
        "huang": 2 * 8,
        "learned": 11 * 5,
        "nope": 0,
        "rope": 0,
        "shaw": 2 * (15 * 4),
        "shaw_bias": 2 * 15,
        "sinusoidal": 0,
        "t5": 2 * 32,
    }
    assert found["shaw"]["tables"] == {"key_table": [15, 4], "value_table": [15, 4]}
    assert {entry["class"] for entry in found.values()} == {cls.__name__ for cls in SCHEMES.values()}


def test_backends_are_asked() -> None:
    found = {entry.name: entry.backends for entry in catalogue()}
    fast = {name for name, backends in found.items() if "sdpa" in backends}
    assert fast == {"alibi", "learned", "nope", "rope", "shaw_bias", "sinusoidal", "t5"}
    assert all("reference" in backends for backends in found.values())


def test_a_backend_that_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relpos.backends.sdpa.why_not", lambda call: ["it is closed"])
    assert {entry.backends for entry in catalogue()} == {("blocked", "reference")}


def test_sources_and_limits_are_first_sentences_of_the_docstring() -> None:
    found = {entry.name: entry for entry in catalogue()}
    assert found["t5"].source == "Raffel et al. 2020, section 2.1; mesh-tensorflow"
    assert found["alibi"].source == "Press, Smith and Lewis 2022, section 3"
    assert found["deberta"].source.endswith("Hugging Face `deberta` (v1) and `deberta_v2`")
    assert found["nope"].valid == found["alibi"].valid == "any length"
    assert all(entry.source and entry.valid for entry in found.values())
    assert all(re.search(r"\d{4}", entry.source) for entry in found.values())


def test_the_terminal_fits_80_columns_and_loses_nothing() -> None:
    output = run()
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output
    for entry in catalogue():
        assert entry.cls in output
        assert f" {entry.parameters:,} " in output


@pytest.mark.parametrize(("page", "options"), [("docs/schemes.md", []), ("README.md", ["--short"])])
def test_the_tables_of_the_docs_are_what_the_command_prints(page: str, options: list[str], tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    table = run("--markdown", *options)
    marker = " ".join(["relpos schemes --markdown", *options])
    assert f"<!-- {marker} -->\n\n{table}\n<!-- end -->" in text
    assert updated(text, catalogue()) == text
    copy = tmp_path / "page.md"
    copy.write_text(text.replace(table, "an old table\n"))
    assert copy.read_text() != text
    assert f"Page: {copy}" in run("--update", str(copy))
    assert copy.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "0"], "num_heads >= 1"),
        (["--json", "--markdown"], "one of them"),
        (["--update", "no/such/page"], "no/such/page"),
        (["--update", "PAGE"], "a page without a marked region"),
    ],
)
def test_errors_are_one_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no table\n")
    result = CliRunner().invoke(app, ["schemes", *(str(page) if word == "PAGE" else word for word in arguments)])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert page.read_text() == "no table\n"


def test_a_bar_ends_no_cell_and_et_al_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    doc = "Nothing.\n\n    Valid: any.\n    Source: A et al. Journal | B,\n        2020. More.\n    "
    monkeypatch.setattr(relpos.NoPE, "__doc__", doc)
    assert r"| A et al. Journal \| B, 2020 |" in run("--markdown")
