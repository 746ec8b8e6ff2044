"""The docs say what is there. Their examples run as doctests; here, the tables."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from conformance import EVERYWHERE

import relpos
from relpos.bench import Work
from relpos.schemes import SCHEMES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/schemes.md"])
def test_every_scheme_has_its_row(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([\w ]+) \| ([\w ]+) \|", (ROOT / page).read_text(), re.MULTILINE)
    said = {name: rest for name, *rest in rows}
    assert said == {name: [cls.__name__, cls.encodes, cls.injects_at] for name, cls in SCHEMES.items()}


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")) + [ROOT / "benchmarks/README.md"], ids=str
)
def test_links_lead_somewhere_and_no_blank_is_left(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
    assert "{{" not in text


def test_the_changelog_knows_the_version() -> None:
    assert f"## {relpos.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("page", "rule"),
    [("README.md", "non_overlapping"), ("docs/study.md", "non_overlapping"), ("docs/study.md", "sliding")],
)
def test_the_tables_are_the_committed_results(page: str, rule: str) -> None:
    text = (ROOT / page).read_text()
    for trial in json.loads((ROOT / "docs/study/results.json").read_text())["trials"]:
        scores = [score["perplexity"] for score in trial["scores"] if score["rule"] == rule]
        cells = ["undefined" if perplexity is None else f"{perplexity:.2f}" for perplexity in scores]
        assert f"| {trial['config']['scheme']} | {' | '.join(cells)} |" in text


def test_the_benchmark_tables_are_the_committed_results() -> None:
    """Every work and every peak of the file stands in the contract's tables; the README's rows are among them."""
    contract = (ROOT / "benchmarks/README.md").read_text()
    data = json.loads((ROOT / "benchmarks/results/xeon-2-cores.json").read_text())
    rows = {}
    for entry in data["works"]:
        limit, *others = entry["entries"]
        work = str(Work(**entry["work"]))
        rows[work] = {one["contender"]: "-" if one["ratio"] is None else f"{one['ratio']:.2f}" for one in others}
        cells = rows[work].values()
        assert f"| {work} | {1000 * limit['timing']['median']:.2f} | {' | '.join(cells)} |" in contract
    for peak in data["memory"]:
        if peak["bytes"] is not None:
            assert f"| {Work(**peak['work'])} | {peak['contender']} | {peak['bytes'] / 2**20:.0f} |" in contract
    readme = (ROOT / "README.md").read_text()
    (names,) = re.findall(r"^\| work \| relpos \| (.*) \|$", readme, re.MULTILINE)
    said = re.findall(r"^\| ((?:forward|train|decode) .*?) \| (.*) \|$", readme, re.MULTILINE)
    assert len(said) >= 5
    for work, cells in said:
        ours = {rows[work]["relpos sdpa"], rows[work]["relpos blocked"]} - {"-"}
        assert cells.split(" | ") == [*ours, *(rows[work][name] for name in names.split(" | "))]
    assert "{{" not in contract


WHO = ("transformers", "relpos", "ONNX Runtime", "OpenVINO")


@pytest.mark.parametrize(("number", "machine"), enumerate(["xeon-no-amx-2-cores", "xeon-2-cores"]))
def test_the_table_of_models_is_the_committed_results(number: int, machine: str) -> None:
    """Each row of time and of memory stands in the page, and its table has no others."""
    tables = (ROOT / "docs/hugging-face.md").read_text().split("| model | what |")[1:]
    table = tables[number][: tables[number].index("\n\n")]
    rows = json.loads((ROOT / f"benchmarks/results/models-{machine}.json").read_text())["rows"]
    wanted = []
    timed = (row for row in rows if row["what"] != "memory")
    for (model, what, dtype, length), group in itertools.groupby(
        timed, key=lambda row: (row["model"], row["what"], row["dtype"], row["length"])
    ):
        times = {row["who"]: 1000 * row["timing"]["median"] for row in group if row["timing"] is not None}
        cells = [f"{times[who]:.0f} ms" if who in times else "-" for who in WHO]
        faster = f"{times['transformers'] / times['relpos']:.2f} x"
        wanted.append(f"| {model} | {what}, {dtype} | {length} | {' | '.join(cells)} | {faster} |")
    for row in rows:
        if row["what"] == "memory":
            sizes = {who: f"{size / 2**20:.0f} MiB" for who, size in row["bytes"].items()}
            cells = " | ".join(sizes.get(who, "-") for who in WHO)
            wanted.append(f"| {row['model']} | memory, {row['dtype']} | {row['length']} | {cells} | |")
    said = table.splitlines()[2:]
    assert len(wanted) > 4
    assert [row for row in wanted if not any(line.startswith(row) for line in said)] == []
    assert len([line for line in said if line.startswith("|")]) == len(wanted)


def test_the_fast_backend_runs_what_the_docs_say() -> None:
    (said,) = re.findall(r"Backend `sdpa`.*?: (.*), and lists of them", (ROOT / "docs/schemes.md").read_text())
    runs = {built[0] for built, backend in EVERYWHERE if backend == "sdpa" and not built[1]}
    assert set(re.findall(r"`(\w+)`", said)) == runs


def test_every_reported_case_has_its_test() -> None:
    """In each folder that its row names, and in no other; the README counts the rows."""
    rows = re.findall(
        r"^\| ([A-Z]\d+) \| .* \| ([a-z, ]+) \| .*\|$", (ROOT / "docs/cases.md").read_text(), re.MULTILINE
    )
    said = {(case.lower(), folder) for case, folders in rows for folder in folders.split(", ")}
    found = {
        (case, folder)
        for folder in ("cases", "hf")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
        for case in re.findall(r"^def test_([a-gk-px]\d+)_", path.read_text(), re.MULTILINE)
    }
    assert said == found
    assert len(rows) == 56
    assert f"[{len(rows)} faults](docs/cases.md)" in (ROOT / "README.md").read_text()


def test_the_control_is_worst_at_the_trained_length_and_only_there() -> None:
    """And it rises less than the two schemes that break: it has no trained range to leave."""
    trials = json.loads((ROOT / "docs/study/results.json").read_text())["trials"]
    for rule in ("non_overlapping", "sliding"):
        found = {
            trial["config"]["scheme"]: [score["perplexity"] for score in trial["scores"] if score["rule"] == rule]
            for trial in trials
        }
        defined = {scheme: values for scheme, values in found.items() if None not in values}
        assert max(found, key=lambda scheme: found[scheme][0]) == "alibi_reversed"
        assert max(defined, key=lambda scheme: defined[scheme][-1]) == "sinusoidal"
        rise = {scheme: values[-1] / values[0] for scheme, values in defined.items()}
        assert rise["alibi_reversed"] < 1.5 < 3 < min(rise["rope"], rise["sinusoidal"])
