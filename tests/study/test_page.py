"""The page as text: it needs nothing but itself, it says the file's numbers, and it escapes what it is given."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from altered import BASE, study, with_text
from typer.testing import CliRunner

from relpos.cli.app import app
from relpos.study import StudyResult, load_study
from relpos.study.page import render

EVIL = "</script><img src=x onerror=alert(1)><script>alert(2)</script><!--'\"&{{ 7 * 7 }}"


class Page(HTMLParser):
    """Tags with their attributes, the text of every script and style, and all other text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def charts(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])  # type: ignore[no-any-return]

    def all(self, name: str) -> list[str | None]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def rows(chart: dict[str, Any], field: str) -> list[dict[str, Any]]:
    """The rows of a chart that have a field."""
    return [row for values in chart["datasets"].values() for row in values if field in row]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(study()))


def test_it_needs_nothing_but_itself(page: Page) -> None:
    loading = {"src", "srcset", "action", "poster", "data", "xlink:href"}
    assert [(tag, name) for tag, attributes in page.tags for name in attributes if name in loading] == []
    assert page.all("href") == ["data:,"]
    assert {tag for tag, _ in page.tags} & {"img", "iframe", "object", "embed", "base"} == set()
    text = render(study())
    assert "@import" not in text
    assert "url(" not in text.split("</style>")[0]
    policy = next(str(a["content"]) for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_one_bundle_serves_every_chart(page: Page) -> None:
    assert len(page.scripts) == 2
    assert page.scripts[1].count("window.vegaEmbed = ") == 1 or page.scripts[1].count("window.vegaEmbed=") == 1
    assert len(render(study())) < 1_500_000


def test_every_place_has_its_chart_and_every_chart_its_place(page: Page) -> None:
    places = {str(attributes["id"]) for _, attributes in page.tags if "data-chart" in attributes}
    attention = {f"attention-{index}-16" for index in range(9)} | {
        f"attention-{index}-128" for index, name in enumerate(BASE) if name != "learned"
    }
    assert places == {"perplexity", "position-16", "position-32", "position-128"} | attention
    assert set(page.charts) == places


def test_every_perplexity_stands_on_the_page(page: Page) -> None:
    for name, values in BASE.items():
        cells = " ".join("undefined" if value is None else f"{value:.2f}" for value in values)
        assert page.text.count(f" {name} {cells} ") == 2  # end to end and sliding


def test_the_charts_hold_the_numbers_of_the_file(page: Page) -> None:
    drawn = rows(page.charts["perplexity"], "low")
    assert {(row["scheme"], row["length"], round(row["perplexity"], 6)) for row in drawn} == {
        (name, length, value)
        for name, values in BASE.items()
        for length, value in zip((16, 32, 128), values, strict=True)
        if value is not None
    }
    cells = rows(page.charts[f"attention-{list(BASE).index('t5')}-128"], "share")
    shares = {(row["head"], row["distance"]): row["share"] for row in cells}
    assert shares["1.1", "1"] == shares["2.2", "4 to 7"] == 1.0
    assert shares["1.2", "1"] == shares["2.1", "64 to 127"] == 0.0
    assert 0.4 < shares["even", "64 to 127"] < 0.5
    assert {head for head, _ in shares} == {"1.1", "1.2", "2.1", "2.2", "even"}


def test_loss_by_position_doubles_its_bins_beyond_the_trained_length() -> None:
    plain_study = study()
    first = plain_study.trials[0]
    scores = []
    for score in first.scores:
        bins = score.by_position
        if bins is not None and score.window == 128:
            # Losses 0, 1, 2 ... and twice as many tokens in every other bin, so that a plain mean would be another one.
            tokens = tuple(8 * (1 + index % 2) for index in range(32))
            bins = replace(bins, tokens=tokens, loss=tuple(float(index) for index in range(32)))
        scores.append(replace(score, by_position=bins))
    trials = (replace(first, scores=tuple(scores)), *plain_study.trials[1:])
    charts = Page(render(replace(plain_study, trials=trials))).charts
    drawn = rows(charts["position-128"], "loss")
    ours = [(row["positions"], row["loss"]) for row in drawn if row["scheme"] == "nope"]

    def mean(bins: range) -> float:
        return sum(index * (1 + index % 2) for index in bins) / sum(1 + index % 2 for index in bins)

    expected = [("0 to 3", 0.0), ("4 to 7", 1.0), ("8 to 11", 2.0), ("12 to 15", 3.0), ("16 to 31", mean(range(4, 8)))]
    expected += [("32 to 63", mean(range(8, 16))), ("64 to 127", mean(range(16, 32)))]
    assert [positions for positions, _ in ours] == [positions for positions, _ in expected]
    assert [loss for _, loss in ours] == pytest.approx([loss for _, loss in expected])


def test_costs_claims_and_foot_are_said(page: Page) -> None:
    assert " t5 1,000 64 250.0 0.5 1.0 2.0 " in page.text
    assert " learned 1,000 64 250.0 0.5 1.0 undefined " in page.text
    assert "7 held, 7 did not, of 14." in page.text
    assert page.all("data-verdict").count("held") == 7
    for word in ("a processor", "5ha", "held/out.txt", "a rule", "checkpoint_every", "3,000", "null"):
        assert word in page.text


def test_summary_and_headline_follow_the_numbers() -> None:
    said = Page(render(study())).text
    assert "Trained at 16 bytes, tested up to 128" in said
    assert "Lowest perplexity at 16 bytes: shaw_bias, 4.50. Lowest at 128 bytes: shaw_bias, 4.30." in said
    assert "Steepest rise between the two: sinusoidal, 4.15 times. Undefined at 128 bytes: learned." in said
    other = Page(render(study({"alibi": (5.0, 3.0, 2.0), "learned": None, "sinusoidal": (1.0, 1.0, 200.0)}))).text
    assert "Lowest perplexity at 16 bytes: sinusoidal, 1.00. Lowest at 128 bytes: alibi, 2.00." in other
    assert "sinusoidal, 200.00 times." in other
    assert "Undefined at" not in other


def test_several_seeds_give_mean_and_range() -> None:
    page = Page(render(study(seeds=({}, {"t5": (5.0, 4.5, 4.4)}))))
    assert "mean and range of 2 seeds" in page.text
    assert " t5 4.80 (4.60 to 5.00) 4.50 4.40 " in page.text
    row = next(row for row in rows(page.charts["perplexity"], "low") if row["scheme"] == "t5")
    assert (row["perplexity"], row["low"], row["high"]) == pytest.approx((4.8, 4.6, 5.0))
    assert "first seed only" in page.text
    assert "one seed" not in page.text


def test_all_text_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relpos.study.config.check_scheme_name", lambda name: None)
    clean = Page(render(study({"a scheme": (7.0, 7.0, 7.0)})))
    evil = Page(render(with_text(study({EVIL: (7.0, 7.0, None)}), EVIL)))
    assert sorted({tag for tag, _ in evil.tags}) == sorted({tag for tag, _ in clean.tags})
    assert len(evil.scripts) == 2
    assert {name for _, a in evil.tags for name in a} == {name for _, a in clean.tags for name in a}
    assert set(evil.scripts[0]) & set("<>&") == set()
    plain = re.sub(r"\s+", " ", EVIL)
    # The scheme in its places; text, rule, hash and files of the corpus; four values and a name of the machine.
    assert evil.text.count(plain) >= 15
    assert EVIL in evil.all("data-scheme")
    assert EVIL in json.dumps(evil.charts).replace('\\"', '"')


def test_report_only_draws_again_from_the_results_alone(
    finished: tuple[Path, StudyResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    monkeypatch.chdir(tmp_path)
    drawn = (folder / "report.html").read_bytes()
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    (alone / "results.json").write_bytes((folder / "results.json").read_bytes())
    done = CliRunner().invoke(app, ["study", "--report-only", "--out", str(alone)])
    assert done.exit_code == 0, done.output
    assert str(alone / "report.html") in done.output.replace("\n", "")
    assert (alone / "report.html").read_bytes() == drawn
    assert {path.name for path in alone.iterdir()} == {"results.json", "report.html"}
    assert load_study(alone).trials


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "nothing"], "run the study first"),
        ([], "runs/default"),
        (["--quick"], "runs/quick"),
        (["--steps", "3"], "got --steps. Allowed: --out"),
        (["--schemes", "t5", "--text", "x"], "got --schemes, --text"),
    ],
)
def test_report_only_refuses_what_it_cannot_do(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["study", "--report-only", *options])
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_report_only_refuses_a_damaged_file_and_leaves_the_old_page(finished: tuple[Path, StudyResult]) -> None:
    folder, _ = finished
    before = (folder / "report.html").read_bytes()
    (folder / "results.json").write_text((folder / "results.json").read_text()[:-200])
    done = CliRunner().invoke(app, ["study", "--report-only", "--out", str(folder)])
    assert done.exit_code == 2
    assert "damaged or of another version" in done.output
    assert (folder / "report.html").read_bytes() == before
