"""ONNX Runtime and OpenVINO beside a model: a number where they agree, else the reason and no number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from relpos.bench import runtimes, whole
from relpos.bench.report import missing
from relpos.bench.whole import Subject, Whole, run_whole

NAMES = ("ONNX Runtime", "OpenVINO")


def deberta() -> Any:
    return hf.DebertaV2Config(
        vocab_size=64, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48,
        relative_attention=True, position_buckets=8, max_position_embeddings=32, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip


def t5() -> Any:
    return hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    t5().save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers at once: these tests ask who has any."""
    monkeypatch.setattr(whole, "interleaved", lambda calls: dict.fromkeys(calls, whole.Timing(1.0, 1.0, 1.0, 1)))
    for module in (whole, runtimes):
        monkeypatch.setattr(module, "alone", lambda *arguments: 1)


def of_runtimes(found: Whole) -> list[Any]:
    return [row for row in found.rows if row.who in NAMES]


def has_no_number(found: Whole) -> bool:
    return all(row.timing is None and row.bytes is None for row in of_runtimes(found))


@pytest.mark.parametrize("config", [deberta, t5])
def test_what_is_exported_once_agrees_at_any_batch_and_length(config: Callable[[], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = hf.AutoModel.from_config(config()).eval()
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)

    def given(batch: int, length: int, padding: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length - padding :] = 0
        return {"input_ids": torch.randint(64, (batch, length)), "attention_mask": mask}

    ready = runtimes.prepared(model, given(2, 48, 0), "float32", tmp_path / "model.onnx")
    assert tuple(ready) == NAMES
    for compute in ready.values():
        assert callable(compute), compute
        for shape in ((2, 48, 12), (1, 31, 5), (3, 200, 0)):
            x = given(*shape)
            seen = x["attention_mask"].bool()
            with torch.no_grad():
                expected = model(**x)[0][seen]
            assert float((compute(x)[seen] - expected).abs().max() / expected.abs().max()) < 1e-5


def test_who_agrees_has_time_and_memory(folder: Path) -> None:
    found = run_whole(Subject(str(folder), 2), [600])
    assert all(row.reason is None and row.timing is not None and row.bytes > 0 for row in of_runtimes(found))
    assert {"onnxruntime", "openvino"} <= set(found.environment)
    assert missing(found) == []


@pytest.mark.usefixtures("quick")
def test_a_lower_precision_is_computed_in_it_or_has_a_reason(folder: Path) -> None:
    onnx, openvino = of_runtimes(run_whole(Subject(str(folder), 1, "bfloat16"), [40]))
    assert onnx.timing is None
    assert "bfloat16" in onnx.reason
    # What a processor does without bfloat16 products, openvino says.
    assert openvino.timing is not None or "not in bfloat16" in openvino.reason


@pytest.mark.usefixtures("quick")
def test_who_is_not_installed_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "openvino", None)
    found = run_whole(Subject(str(folder)), [20, 30])
    assert has_no_number(found)
    assert missing(found) == [
        "ONNX Runtime: not installed (onnxruntime missing): pip install onnxruntime onnx onnxscript",
        "OpenVINO: not installed (openvino missing): pip install openvino onnx onnxscript",
    ]


@pytest.mark.usefixtures("quick")
def test_an_export_that_fails_is_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: nn.Module, *given: Tensor) -> Tensor:
        raise ValueError("no way to export this\nand more")

    monkeypatch.setattr(runtimes._First, "forward", forward)
    found = run_whole(Subject(str(folder)), [20])
    assert has_no_number(found)
    assert len(missing(found)) == 2
    assert all("torch.onnx.export fails: " in line and "no way to export this" in line for line in missing(found))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_or_failing_runtime_gets_no_number(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Subject(str(folder)).load()[0]

    def wrong(file: Path, dtype: str) -> runtimes.Compute:
        return lambda given: 1.5 * model(**given)[0]

    def failing(file: Path, dtype: str) -> runtimes.Compute:
        def compute(given: runtimes.Inputs) -> Tensor:
            if given["input_ids"].shape[1] > 25:
                raise RuntimeError("shapes differ")
            return 1.5 * model(**given)[0]

        return compute

    monkeypatch.setattr(runtimes, "export", lambda model, example, file: None)
    kinds = zip(NAMES, ("onnxruntime", "openvino"), (wrong, failing), strict=True)
    monkeypatch.setattr(runtimes, "RUNTIMES", tuple(runtimes.Runtime(*kind) for kind in kinds))
    found = run_whole(Subject(str(folder), 1, dtype), [20, 30])
    assert has_no_number(found)
    lines = missing(found)
    assert any("OpenVINO, 30 tokens: fails: RuntimeError: shapes differ" in line for line in lines)
    said = "differs from transformers by" if dtype == "float32" else "as far from float32 as transformers"
    assert any(line.startswith("ONNX Runtime") and said in line for line in lines)
