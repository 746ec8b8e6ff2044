"""DeBERTa's and Shaw's attention in the benchmark: formulas that owe nothing to ours, and rivals held to them."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import relpos
from relpos.bench import DEFAULT, DEFAULT_MEMORY, Work, content, modules, run_bench
from relpos.bench.agree import _exact, deberta_bucket, disagreement
from relpos.bench.memory import extra_peak
from relpos.bench.report import times_table
from relpos.bench.rivals import LIMIT, Contender, contenders
from relpos.bench.run import Entry, Report, _too_long
from relpos.bench.timing import Timing, interleaved
from relpos.bench.work import SCHEMES, Attend
from relpos.schemes import Disentangled, Scheme, Shaw

SMALL = {"heads": 2, "width": 16}
WORKS = [
    Work("forward", "deberta", 600, **SMALL),
    Work("forward", "deberta", 300, is_causal=True, batch=2, **SMALL),
    Work("forward", "deberta", 300, dtype="bfloat16", **SMALL),
    Work("forward", "shaw", 300, **SMALL),
    Work("forward", "shaw", 300, is_causal=True, dtype="bfloat16", **SMALL),
    Work("train", "deberta", 170, **SMALL),
    Work("train", "deberta", 170, dtype="bfloat16", **SMALL),
    Work("train", "deberta", 170, is_causal=True, **SMALL),
    Work("train", "shaw", 170, **SMALL),
    Work("train", "shaw", 170, dtype="bfloat16", **SMALL),
    Work("decode", "deberta", 300, is_causal=True, **SMALL),
    Work("decode", "shaw", 300, is_causal=True, **SMALL),
]
NEEDS_COMPILER = ("flex",)


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_every_contender_agrees_with_float64(work: Work) -> None:
    scheme, ran = work.build(), []
    with torch.set_grad_enabled(work.task == "train"):
        for contender in contenders():
            if contender.name.startswith(NEEDS_COMPILER):
                continue
            attend = contender.prepare(work, scheme)
            if not isinstance(attend, str):
                assert disagreement(contender, work, scheme, attend) is None, contender.name
                ran.append(contender.name)
    expected = {LIMIT, "relpos blocked", "relpos reference", "gather by blocks", "eager"}
    if work.scheme == "deberta" and not work.is_causal:
        expected.add("transformers")
        if importlib.util.find_spec("disentangled_flash") is not None:
            expected.add("disentangled-flash")
    assert set(ran) == expected


def test_compiled_flex_reads_the_products_or_says_why_not() -> None:
    (flex,) = (one for one in contenders() if one.name.startswith("flex"))
    work = Work("forward", "deberta", 150, **SMALL)
    attend = flex.prepare(work, work.build())
    if isinstance(attend, str):
        assert "compiler" in attend
    else:
        with torch.no_grad():
            assert disagreement(flex, work, work.build(), attend) is None
        work = Work("forward", "shaw", 150, **SMALL)
        assert "added after the softmax" in str(flex.prepare(work, work.build()))
    work = Work("train", "deberta", 150, **SMALL)
    assert "no gradients" in str(flex.prepare(work, work.build()))


def test_the_written_bucket_is_that_of_the_released_models() -> None:
    """All distances, against the function of transformers and against ours: three texts, one rule."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distance = torch.arange(-1100, 1101)
    written = torch.tensor([deberta_bucket(int(d), 256, 512) for d in distance])
    assert written.equal(make_log_bucket_position(distance, 256, 512).long())
    assert written.equal(relpos.functional.deberta_bucket(distance, num_buckets=256, max_distance=512))


def by_hand(work: Work, scheme: Scheme, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Two loops over pairs and plain numbers, for one batch row and head 1."""
    head, width = 1, work.width
    output = torch.zeros(work.queries, width, dtype=torch.float64)
    tables = {name: table.detach().double() for name, table in scheme.named_parameters()}
    for i in range(work.queries):
        scores, values = [], []
        for j in range(work.length):
            q, k, v = query[0, head, i], key[0, head, j], value[0, head, j]
            if work.scheme == "deberta":
                row = min(max(256 + deberta_bucket(i - j, 256, 512), 0), 511)
                a, b = tables["c2p_table"][head, row], tables["p2c_table"][head, row]
                scores.append(float(q @ k + q @ a + k @ b) / math.sqrt(3 * width))
            else:
                row = min(max(j - i, -64), 64) + 64
                scores.append(float(q @ (k + tables["key_table"][row])) / math.sqrt(width))
                v = v + tables["value_table"][row]
            values.append(v)
        weights = [math.exp(score - max(scores)) for score in scores]
        output[i] = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)  # type: ignore[assignment]
    return output


@pytest.mark.parametrize("scheme", ["deberta", "shaw"])
def test_the_written_formula_is_that_of_the_paper(scheme: str) -> None:
    work = Work("forward", scheme, 140 if scheme == "deberta" else 90, heads=2, width=4)
    built = work.build()
    inputs = tuple(x.double() for x in work.inputs())
    with torch.no_grad():
        got = _exact(work, built, *inputs)  # type: ignore[arg-type]
    torch.testing.assert_close(got[0, 1], by_hand(work, built, *inputs), rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]
    rows = torch.tensor([0, 7, work.length - 1])
    with torch.no_grad():
        assert _exact(work, built, *inputs, rows).equal(got[:, :, rows])  # type: ignore[arg-type]


def test_a_causal_formula_sees_no_future() -> None:
    work = Work("forward", "deberta", 20, is_causal=True, heads=2, width=4)
    query, key, value = (x.double() for x in work.inputs())
    with torch.no_grad():
        before = _exact(work, work.build(), query, key, value)
        key[:, :, 12:], value[:, :, 12:] = 7.0, 7.0
        after = _exact(work, work.build(), query, key, value)
    assert before[:, :, :12].equal(after[:, :, :12])
    assert not before[:, :, 12:].isclose(after[:, :, 12:]).any()


def altered(change: str) -> object:
    """A contender right but for one thing, which a person could get wrong."""

    def prepare(work: Work, scheme: Scheme) -> Attend:
        right = content.tables(work, scheme)
        swapped = {
            "swapped": replace(right, query=right.key, key=right.query),
            "mirrored": replace(right, row=lambda distance: right.row(-distance)),
            "scaled": replace(right, scale=1 / math.sqrt(work.width)),
            "detached": replace(right, key=None if right.key is None else right.key.detach()),
            "no values": replace(right, value=None),
            "halved": replace(right, query=right.query + 0.5 * (right.query - right.query.detach())),
        }[change]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(content, "tables", lambda work, scheme: swapped)
            return content.by_blocks(work, scheme, content.BLOCK)

    return prepare


@pytest.mark.parametrize(
    ("change", "scheme", "task", "said"),
    [
        ("swapped", "deberta", "forward", "output is off by"),
        ("mirrored", "deberta", "forward", "output is off by"),
        ("mirrored", "shaw", "forward", "output is off by"),
        ("scaled", "deberta", "forward", "output is off by"),
        ("no values", "shaw", "forward", "output is off by"),
        ("detached", "deberta", "train", "p2c_table gets no gradient"),
        ("halved", "deberta", "train", "gradient of c2p_table is off by"),
        ("halved", "shaw", "train", "gradient of key_table is off by"),
    ],
)
def test_a_wrong_contender_gets_the_reason(
    change: str, scheme: str, task: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    those = [contenders()[0], Contender("wrong", altered(change))]  # type: ignore[arg-type]
    monkeypatch.setattr("relpos.bench.run.contenders", lambda: those)
    ((_, (limit, wrong)),) = run_bench([Work(task, scheme, 40, **SMALL)]).rows  # type: ignore[arg-type]
    assert limit.ratio == 1.0
    assert wrong.timing is None
    assert said in str(wrong.reason)


def test_blocks_of_any_size_are_the_whole() -> None:
    for work in (WORKS[1], WORKS[4], WORKS[11]):
        scheme, inputs = work.build(), work.inputs()
        with torch.no_grad():
            whole = content.whole(work, scheme)(*inputs)
            for block in (1, 7, 300, 512):
                got = content.by_blocks(work, scheme, block)(*inputs)
                eps = torch.finfo(whole.dtype).eps
                torch.testing.assert_close(got, whole, rtol=0, atol=16 * eps * whole.abs().max().item())


def test_a_module_of_transformers_reads_both_tables() -> None:
    """Its output moves with each table, and with zero tables it is attention at DeBERTa's scale."""
    work = Work("forward", "deberta", 30, **SMALL)
    (x, _, _) = work.inputs()
    scheme = work.build()
    assert isinstance(scheme, Disentangled)
    attend = modules.transformers(work, scheme)
    assert not isinstance(attend, str)
    with torch.no_grad():
        seen = [attend(x, x, x)]
        for table in scheme.parameters():
            table.zero_()
            seen.append(attend(x, x, x))
        plain = (x @ x.mT / math.sqrt(3 * work.width)).softmax(-1) @ x
    assert not seen[0].isclose(seen[1], atol=1e-3).all()
    assert not seen[1].isclose(seen[2], atol=1e-3).all()
    torch.testing.assert_close(seen[2], plain)


def test_works_have_the_settings_of_the_models() -> None:
    deberta, shaw = (Work("forward", name, 8, heads=12).build() for name in ("deberta", "shaw"))
    assert isinstance(deberta, Disentangled)
    assert isinstance(shaw, Shaw)
    assert (deberta.num_buckets, deberta.max_distance, deberta.parts) == (256, 512, ("c2p", "p2c"))
    assert (shaw.max_distance, shaw.values, deberta.head_dim, shaw.head_dim) == (64, True, 64, 64)
    assert {name for name in SCHEMES if Work("forward", name, 8).has_content} == {"deberta", "shaw"}


def test_the_table_has_a_column_for_all_who_have_a_number_and_no_other() -> None:
    timing = Timing(0.002, 0.001, 0.003, 5)
    rows = (
        (
            WORKS[0],
            (Entry(LIMIT, timing, 1.0), Entry("a", timing, 2.0), Entry("b", reason="no"), Entry("c", reason="no")),
        ),
        (
            WORKS[3],
            (Entry(LIMIT, timing, 1.0), Entry("a", reason="no"), Entry("b", reason="no"), Entry("c", timing, 3.0)),
        ),
    )
    table = times_table(Report({}, rows, ()))
    assert [column.header for column in table.columns] == ["work", f"{LIMIT}, ms", "a", "c"]
    cells = [list(column.cells) for column in table.columns]
    assert cells == [[str(WORKS[0]), str(WORKS[3])], ["2.00", "2.00"], ["2.00", "-"], ["-", "3.00"]]


def test_the_default_set_has_content_terms() -> None:
    found = {str(work) for work in DEFAULT if work.has_content}
    assert found == {
        *(f"forward deberta float32 1x12x64 T={length}" for length in (512, 1024, 2048, 4096)),
        *(f"forward deberta bfloat16 1x12x64 T={length}" for length in (128, 512, 2048)),
        *(f"train deberta float32 1x12x64 T={length}" for length in (1024, 2048)),
        "forward shaw float32 1x12x64 T=2048",
    }
    names = {contender.name for contender in contenders()}
    assert {name for _, name in DEFAULT_MEMORY} <= names
    ours = {str(work) for work, name in DEFAULT_MEMORY if name == "relpos blocked"}
    assert ours == {f"{task} deberta float32 1x12x64 T={T}" for task in ("forward", "train") for T in (4096, 16384)}
    assert len(set(DEFAULT)) == len(DEFAULT)
    assert len(set(DEFAULT_MEMORY)) == len(DEFAULT_MEMORY)


def test_slow_routes_end_sooner_with_content_and_in_training() -> None:
    eager = next(one for one in contenders() if one.name == "eager")
    assert _too_long(Work("forward", "deberta", 2048), eager) is None
    assert _too_long(Work("train", "deberta", 1024), eager) is None
    assert _too_long(Work("train", "deberta", 2048), eager) == "not timed past 1024 tokens of deberta"
    assert _too_long(Work("train", "t5", 2048), eager) is None


def test_memory_of_blocks_is_linear_and_of_all_pairs_is_not() -> None:
    work = Work("forward", "deberta", 4096, heads=2, width=16)
    blocks, ours, dense = (extra_peak(work, name) for name in ("gather by blocks", "relpos blocked", "eager"))
    assert isinstance(blocks, int)
    assert isinstance(ours, int)
    assert isinstance(dense, int)
    pairs = 4 * 2 * 4096**2
    assert max(blocks, ours) < pairs
    assert dense > 2 * pairs
    assert "would not fit" in str(extra_peak(replace(work, task="train", length=2**20), "gather by blocks"))


def test_the_slow_take_part_in_every_other_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    calls: list[str] = []

    def call(name: str, seconds: float) -> None:
        nonlocal now
        now += seconds
        calls.append(name)

    monkeypatch.setattr("relpos.bench.timing.time.perf_counter", lambda: now)
    took = {"fast": 0.2, "near": 0.5, "far": 0.7, "quick": 0.2}
    timings = interleaved({name: lambda name=name: call(name, took[name]) for name in took}, least=5, seconds=0.0)  # type: ignore[misc]
    assert {name: timing.rounds for name, timing in timings.items()} == {"fast": 5, "near": 5, "far": 3, "quick": 5}
    assert all(timing.median == pytest.approx(took[name]) for name, timing in timings.items())
    assert calls.count("far") == 1 + 3
