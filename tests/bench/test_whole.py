"""`relpos bench --model`: one model before and after, never a number where they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf

from relpos.bench import runtimes, whole
from relpos.bench.report import missing
from relpos.bench.whole import Subject, run_whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A T5 of two layers: its configuration only."""
    config = hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
    config.save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_before_and_after(folder: Path, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "interleaved", lambda calls: dict.fromkeys(calls, whole.Timing(1.0, 1.0, 1.0, 1)))
    said: list[str] = []
    found = run_whole(Subject(str(folder), 2, dtype), [600], tmp_path / "model.json", said.append)
    assert [(row.length, row.who) for row in found.rows] == [
        (600, who) for who in ("transformers", "relpos", "ONNX Runtime", "OpenVINO")
    ]
    assert all(
        row.reason is None and row.timing is not None for row in found.rows if row.who in ("transformers", "relpos")
    )
    theirs, ours = found.rows[:2]
    # Two matrices of 4 heads and 600 x 600 pairs at least, and none.
    assert theirs.bytes >= 2 * 4 * 600 * 600 * (4 if dtype == "float32" else 2)
    assert ours.bytes < theirs.bytes / 2
    assert found.weights == "random weights, made from the configuration; its encoder"
    assert found.summary == "1 x T5Stack      patched: t5\n2 x T5Attention  patched: t5"
    assert said == [f"loading {folder}", "exporting", "600 tokens"]
    assert json.loads((tmp_path / "model.json").read_text()) == json.loads(json.dumps(found.to_json()))


def test_pretrained_weights_are_loaded(folder: Path) -> None:
    model = hf.T5Model(hf.T5Config.from_pretrained(folder))
    model.save_pretrained(folder)
    loaded, weights = Subject(str(folder)).load()
    assert weights == "pretrained weights; its encoder"
    assert torch.equal(
        loaded.block[0].layer[0].SelfAttention.q.weight, model.encoder.block[0].layer[0].SelfAttention.q.weight
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_differs_gets_no_number(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = whole.relpos.hf.patch

    def wrong(model: torch.nn.Module) -> torch.nn.Module:
        for module in patch(model).modules():
            if hasattr(module, "scaling"):
                module.scaling = 3.0
        return model

    monkeypatch.setattr(whole.relpos.hf, "patch", wrong)
    monkeypatch.setattr(runtimes, "RUNTIMES", ())
    monkeypatch.setattr(whole, "alone", lambda *arguments: 1)
    rows = run_whole(Subject(str(folder), 1, dtype), [20, 30]).rows
    assert [(row.length, row.who) for row in rows] == [(n, who) for n in (20, 30) for who in ("transformers", "relpos")]
    for theirs, ours in (rows[:2], rows[2:]):
        assert (theirs.timing is not None, theirs.bytes) == (True, 1)
        assert ours.timing is ours.bytes is None
        assert "differs from transformers" in ours.reason or "as far from float32" in ours.reason


def test_the_command(folder: Path, tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "relpos.cli", "bench", "--out", str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("--model", str(folder), "--lengths", "30", "--batch", "2")
    assert done.returncode == 0, done.stderr
    assert "MiB" in done.stdout
    assert "OpenVINO" in done.stdout
    assert "random weights, made from the configuration; its encoder" in done.stdout
    assert (tmp_path / "model.png").read_bytes()[1:4] == b"PNG"
    assert json.loads((tmp_path / "model.json").read_text())["subject"]["batch"] == 2
    refused = run("--model", str(folder), "--heads", "3")
    assert refused.returncode == 2
    assert "the model decides the rest" in " ".join(refused.stderr.split())


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be loaded"):
        Subject(str(tmp_path / "none")).load()
    with pytest.raises(ValueError, match="did you mean"):
        Subject("t5", dtype="int8")
    with pytest.raises(ValueError, match="batch >= 1"):
        Subject("t5", 0)


def test_missing_memory_has_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (whole, runtimes):
        monkeypatch.setattr(module, "alone", lambda *arguments: "this system does not tell")
    found = run_whole(Subject(str(folder)), [20])
    assert all(row.timing is not None and row.bytes is None for row in found.rows)
    assert missing(found) == [f"{row.who}: memory: this system does not tell" for row in found.rows]
