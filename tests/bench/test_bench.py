"""The benchmark: nobody who is wrong gets a number, memory is that of another process, and the command writes files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from relpos.bench import Work, rivals, run_bench
from relpos.bench.agree import disagreement
from relpos.bench.memory import extra_peak
from relpos.bench.rivals import LIMIT, Contender, contenders
from relpos.bench.run import Report
from relpos.bench.timing import interleaved

SHORT = [
    Work("forward", "t5", 40),
    Work("forward", "alibi", 40, is_causal=True),
    Work("forward", "shaw_bias", 33, dtype="bfloat16", batch=2),
    Work("train", "t5", 40, heads=2, width=16),
    Work("train", "alibi", 40, is_causal=True, heads=2, width=16),
    Work("decode", "t5", 40, is_causal=True),
]


@pytest.mark.parametrize("work", SHORT, ids=str)
def test_every_contender_that_runs_here_agrees_with_float64(work: Work) -> None:
    """Those of torch and of the installed transformers; FlexAttention is compiled in the test of the command."""
    scheme, ran = work.build(), []
    with torch.set_grad_enabled(work.task == "train"):
        for contender in contenders():
            if contender.name.startswith(("flex", "x-")):
                continue
            attend = contender.prepare(work, scheme)
            if not isinstance(attend, str):
                assert disagreement(contender, work, scheme, attend) is None
                ran.append(contender.name)
    assert {LIMIT, "relpos sdpa", "relpos reference", "dense bias + sdpa", "eager"} <= set(ran)
    is_module_of_transformers = work.task != "decode" and (work.scheme == "alibi") == work.is_causal
    assert ("transformers" in ran) == (is_module_of_transformers and work.scheme != "shaw_bias")


def wrong_output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query * 0.5


class WrongGradient(torch.autograd.Function):
    """Its argument, with half of its gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad / 2


def test_a_wrong_contender_gets_the_reason_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(work: Work, scheme: object) -> object:
        right = rivals._eager(work, scheme)  # type: ignore[arg-type]
        return lambda query, key, value: WrongGradient.apply(right(query, key, value))  # type: ignore[operator]

    def broken(work: Work, scheme: object) -> object:
        raise RuntimeError("out of luck\nand more")

    those = [
        contenders()[0],
        Contender("wrong", lambda work, scheme: wrong_output),
        Contender("half", half),  # type: ignore[arg-type]
        Contender("broken", broken),  # type: ignore[arg-type]
        Contender("far", half, longest=8),  # type: ignore[arg-type]
    ]
    monkeypatch.setattr("relpos.bench.run.contenders", lambda: those)
    ((_, entries),) = run_bench([SHORT[3]]).rows
    limit, *others = entries
    assert limit.timing is not None
    assert limit.ratio == 1.0
    assert [entry.timing for entry in others] == [None] * 4
    found = [entry.reason or "" for entry in others]
    assert "output is off by" in found[0]
    assert "gradient of query is off by" in found[1]
    assert found[2:] == ["RuntimeError: out of luck", "not timed past 8 tokens"]


def test_a_failure_of_our_own_is_no_reason_but_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(work: Work, scheme: object) -> object:
        raise RuntimeError("ours")

    monkeypatch.setattr("relpos.bench.run.contenders", lambda: [Contender("relpos sdpa", broken)])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="ours"):
        run_bench(SHORT[:1])


def test_everybody_is_called_in_every_round_and_nobody_always_after_the_same() -> None:
    calls: list[str] = []
    timings = interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, least=9, seconds=0.0)  # type: ignore[misc]
    rounds = ["".join(calls[start : start + 3]) for start in range(0, len(calls), 3)]
    assert len(rounds) == 1 + 9
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({one[one.index("b") - 1] for one in rounds if one[0] != "b"}) == 2
    assert all(timing.rounds == 9 and timing.low <= timing.median <= timing.high for timing in timings.values())


def test_memory_is_that_of_the_call_alone() -> None:
    """Of 2048 tokens: a reference makes all pairs, the fast backend a small part of them."""
    work = Work("forward", "t5", 2048, heads=2, width=16)
    dense, fast = (extra_peak(work, name) for name in ("relpos reference", "relpos sdpa"))
    assert isinstance(dense, int)
    assert isinstance(fast, int)
    pairs = 4 * 2 * 2048**2
    assert dense > 2 * pairs
    assert fast < pairs / 2
    assert "would not fit" in str(extra_peak(replace(work, length=2**20), "eager"))
    assert "no such" not in str(extra_peak(work, LIMIT))


def test_work_is_checked() -> None:
    for bad in (
        {"task": "fly"},
        {"scheme": "rope"},
        {"dtype": "int8"},
        {"length": 0},
        {"heads": 1.5},
        {"is_causal": 1},
    ):
        with pytest.raises((ValueError, TypeError), match="Work: got "):
            Work(**({"task": "forward", "scheme": "t5", "length": 8} | bad))  # type: ignore[arg-type]


def test_the_command_measures_prints_draws_and_writes(tmp_path: Path) -> None:
    options = [
        "--lengths",
        "48",
        "--schemes",
        "t5",
        "--heads",
        "2",
        "--width",
        "16",
        "--memory",
        "--out",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "relpos.cli", "bench", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "forward t5 float32 1x2x16 T=48" in done.stdout.replace("\n", " ")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "bench.json").read_text())
    assert {"torch", "threads", "cpu", "python"} <= set(data["environment"])
    (row,) = data["works"]
    named = {entry["contender"]: entry for entry in row["entries"]}
    for name in (LIMIT, "relpos sdpa", "relpos reference", "dense bias + sdpa", "eager", "transformers"):
        timing = named[name]["timing"]
        assert 0 < timing["low"] <= timing["median"] <= timing["high"]
        assert named[name]["ratio"] == timing["median"] / named[LIMIT]["timing"]["median"]
    # With a compiler, FlexAttention is timed and agrees; without one, the reason says so.
    assert named["flex, compiled"]["timing"] or "compiler" in named["flex, compiled"]["reason"]
    assert data["memory"][0]["bytes"] > 0


@pytest.mark.parametrize(
    "options", [["--schemes", "nope"], ["--lengths", "long"], ["--tasks", "train,fly"], ["--dtype", "int4"]]
)
def test_the_command_refuses_what_it_does_not_know(options: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relpos.cli", "bench", *options, "--out", str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "What to do" in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_report_is_plain_data() -> None:
    report = Report({"threads": 1}, (), ())
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
