"""The pictures of the docs: the committed ones are those that the code draws, and what they say is true."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from charts import data_sets
from typer.testing import CliRunner

import relpos
from relpos.cli.app import app
from relpos.plots.flow import flow_chart
from relpos.plots.injection import PLACES, injection_chart, names_at_places
from relpos.plots.pictures import specifications
from relpos.plots.save import specification_of
from relpos.plots.style import mark_of
from relpos.schemes import SCHEMES, Scheme

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
DRAWN = specifications(ROOT / "docs/study/tables.safetensors")


def alike(a: object, b: object) -> bool:
    """Equal, numbers up to what another machine's rounding changes; names of data sets are hashes of them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5)
    return a == b


def with_data(part: Any, sets: dict[str, Any]) -> Any:
    """A specification with its data where they are used, keys sorted."""
    if isinstance(part, dict):
        whole = {key: with_data(value, sets) for key, value in sorted(part.items()) if key not in ("data", "datasets")}
        return whole | ({"data": sets[part["data"]["name"]]} if "data" in part else {})
    return [with_data(value, sets) for value in part] if isinstance(part, list) else part


def test_committed_are_all_that_are_drawn_and_small() -> None:
    assert {path.stem for path in PICTURES.iterdir()} == set(DRAWN) == {"flow", "injection", *relpos.names()} - {"nope"}
    assert all(path.suffix == ".png" and path.stat().st_size < 300_000 for path in PICTURES.iterdir())


@pytest.mark.parametrize("name", DRAWN)
def test_a_committed_picture_is_what_the_code_draws(name: str) -> None:
    """Else: make docs."""
    drawn, committed = DRAWN[name], specification_of((PICTURES / f"{name}.png").read_bytes())
    assert alike(with_data(committed, committed["datasets"]), with_data(drawn, drawn["datasets"]))


def test_the_comparison_sees_a_number_that_changed() -> None:
    drawn = DRAWN["t5"]
    one = with_data(drawn, drawn["datasets"])
    other = with_data(drawn, {name: [dict(row) for row in rows] for name, rows in drawn["datasets"].items()})
    assert alike(one, other)
    cell = next(iter(other["vconcat"][0]["data"]))
    cell["value"] += 0.01
    assert not alike(one, other)


@pytest.mark.parametrize("page", ["README.md", "docs/schemes.md"])
def test_pages_show_them(page: str) -> None:
    text = (ROOT / page).read_text()
    shown = set(re.findall(r"(?:\]\(|src=\")(?:docs/)?pictures/(\w+)\.png", text))
    assert shown >= ({"flow", "injection", "t5"} if page == "README.md" else set(DRAWN))
    assert all((PICTURES / f"{name}.png").exists() for name in shown)


def test_the_readme_draws_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last command of the section, typed as it stands."""
    text = (ROOT / "README.md").read_text().replace("\\\n", "")
    command = re.findall(r"^relpos (show .*) --out t5\.png$", text, re.MULTILINE)[-1].split()
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "t5.png")])
    assert result.exit_code == 0, result.output
    assert alike(specification_of((tmp_path / "t5.png").read_bytes()), DRAWN["t5"])


# The data flow.

WORDS = ["the", "cat", "eats", "the", "fish"]


def boxes() -> dict[str, dict[tuple[int, int], dict[str, Any]]]:
    """The picture's boxes by panel and place."""
    chart = flow_chart().to_dict()
    found: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    for rows in data_sets(chart, chart["datasets"]):
        for row in rows:
            if "panel" in row and row["kind"] != "position":
                found.setdefault(row["panel"], {})[row["i"], row["j"]] = row
    return found


def test_the_flow_is_one_real_computation() -> None:
    found = boxes()
    assert [found["sentence"][place, 0]["text"] for place in range(5)] == WORDS
    table = [found["table"][row, 0]["value"] for row in range(5)]
    for i in range(5):
        for j in range(5):
            row = min(max(j - i, -2), 2) + 2
            cell = {panel: found[panel][i, j] for panel in ("distance", "row", "bias", "content", "score")}
            assert cell["distance"]["value"] == j - i
            assert cell["row"]["value"] == row
            assert cell["bias"]["value"] == table[row]
            assert cell["score"]["value"] == pytest.approx(cell["content"]["value"] + table[row], abs=1e-6)
            for box in cell.values():  # what is written is what is meant, to the last digit
                assert float(box["text"].replace("\u2212", "-")) == pytest.approx(box["value"], abs=1e-6)
            assert cell["content"]["value"] == found["content"][j, i]["value"]


def test_equal_words_have_equal_content_and_other_scores() -> None:
    found = boxes()
    first, second = [place for place, word in enumerate(WORDS) if word == "the"]
    assert found["content"][4, first]["value"] == found["content"][4, second]["value"]
    assert found["score"][4, first]["value"] != found["score"][4, second]["value"]


def test_the_table_has_learned_to_look_at_the_word_before() -> None:
    table = [row["value"] for row in boxes()["table"].values()]
    assert max(range(5), key=lambda row: table[row]) == 1  # row 1 is distance -1
    assert table[1] > 1 + max(value for row, value in enumerate(table) if row != 1)


def test_the_outline_follows_one_clipped_pair() -> None:
    chart = flow_chart().to_dict()
    (layer,) = [layer for layer in chart["layer"] if layer["mark"].get("filled") is False]
    outlined = {(row["panel"], row["i"], row["j"]) for row in chart["datasets"][layer["data"]["name"]]}
    panels = {(panel, 4, 0) for panel in ("distance", "row", "bias", "content", "score", "sentence")}
    assert outlined == {*panels, ("sentence", 0, 0), ("table", 0, 0)}
    text = " ".join(row["text"] for rows in data_sets(chart, chart["datasets"]) for row in rows if "text" in row)
    bias = boxes()["table"][0, 0]["text"]
    assert f"distance \u22124, row 0, bias {bias}." in text


# Where schemes enter.


def test_each_scheme_stands_where_its_class_says() -> None:
    chart = injection_chart().to_dict()
    (entries,) = {
        tuple(sorted((row["scheme"], row["place"], row["colour"], row["shape"]) for row in rows))
        for rows in data_sets(chart, chart["datasets"])
        if "scheme" in rows[0]
    }
    assert set(entries) == {
        (name, place, mark_of(name).colour, mark_of(name).shape)
        for name, cls in SCHEMES.items()
        for place in cls.injects_at.split(" and ")
    }
    assert {place for _, place, *_ in entries} == set(PLACES)


def test_filled_marks_encode_a_distance() -> None:
    for entry in names_at_places():
        assert (entry["fill"] == entry["colour"]) == (SCHEMES[entry["scheme"]].encodes == "distance")


def test_names_do_not_cover_one_another() -> None:
    places = [(entry["x"], entry["y"]) for entry in names_at_places()]
    for index, (x, y) in enumerate(places):
        assert all(abs(x - other_x) > 60 or abs(y - other_y) >= 20 for other_x, other_y in places[:index])


def test_a_place_that_the_drawing_lacks_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def terms(self: Scheme, positions: relpos.Positions) -> tuple[()]:
        return ()

    members = {"encodes": "distance", "injects_at": "softmax", "terms": terms, "reset_parameters": terms}
    monkeypatch.setitem(SCHEMES, "new", type("New", (Scheme,), members))
    (entry,) = [entry for entry in names_at_places() if entry["scheme"] == "new"]
    assert (entry["text"], entry["place"]) == ("new (softmax)", "nowhere")
