"""Whole Hugging Face models of base shapes before and after `relpos.hf.patch`, and exported, with random weights.

    python benchmarks/models.py RESULTS.json, then the same with --memory

Forward passes as `relpos bench --model` times them; besides, a padded batch, a step of training, and memory alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import relpos.hf
from relpos import files, machine
from relpos.bench import runtimes
from relpos.bench.memory import alone
from relpos.bench.timing import interleaved
from relpos.bench.whole import OURS, THEIRS, Subject, run_whole, sharing_weights

_ENCODER = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
#: The sizes of the models of these names; the vocabulary, which only the embedding reads, is cut.
SHAPES: dict[str, hf.PretrainedConfig] = {
    "DeBERTa v3 base": hf.DebertaV2Config(
        vocab_size=8000,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        **_ENCODER,
    ),
    "T5 base, encoder": hf.T5Config(vocab_size=8000, d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "MPNet base": hf.MPNetConfig(vocab_size=8000, max_position_embeddings=514, **_ENCODER),
    "BLOOM 560m": hf.BloomConfig(vocab_size=8000, hidden_size=1024, n_layer=24, n_head=16),
}
FORWARD = [
    ("DeBERTa v3 base", "float32", [128, 512, 2048]),
    ("DeBERTa v3 base", "bfloat16", [512, 2048]),
    ("T5 base, encoder", "float32", [512, 2048, 4096]),
    ("MPNet base", "float32", [512]),
    ("BLOOM 560m", "float32", [2048]),
]
#: Peak memory of ours, and of transformers' where True.
MEMORY = [("DeBERTa v3 base", 4096, True), ("T5 base, encoder", 4096, True), ("T5 base, encoder", 32768, False)]


def main() -> None:
    """Time everything, or, with "--memory", take memory alone, beside the times that are there."""
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for name, config in SHAPES.items():
            config.save_pretrained(f"{folder}/{name}")
        if "--memory" in sys.argv:
            memory(path, folder)
        else:
            times(path, folder)


def memory(path: Path, folder: str) -> None:
    """Peaks in processes of their own."""
    found = json.loads(path.read_text())
    found["rows"] = [row for row in found["rows"] if row["what"] != "memory"]
    for name, length, both_ways in MEMORY:
        subject = json.dumps(asdict(Subject(f"{folder}/{name}")))
        who = [THEIRS, OURS] if both_ways else [OURS]
        sizes = {one: alone("relpos.bench.whole", subject, str(length), one) for one in who}
        _add(found, path, model=name, what="memory", dtype="float32", length=length, bytes=sizes)


def times(path: Path, folder: str) -> None:
    """Forward passes, then the padded batch and the step of training."""
    environment = {
        **machine.environment(torch.get_num_threads()),
        "transformers": hf.__version__,
        **runtimes.versions(),
    }
    found: dict[str, Any] = {"environment": environment, "rows": []}
    for name, dtype, lengths in FORWARD:
        for row in run_whole(Subject(f"{folder}/{name}", 1, dtype), lengths).rows:
            data = {key: value for key, value in asdict(row).items() if key != "length"}
            _add(found, path, model=name, what="forward", dtype=dtype, length=row.length, **data)
    row = {"model": "DeBERTa v3 base", "dtype": "float32", "length": 512}
    for what, calls in (("padded batch of 8", padded()), ("training step", training())):
        for who, timing in interleaved(calls).items():
            _add(found, path, **row, what=what, who=who, timing=asdict(timing))


def _add(found: dict[str, Any], path: Path, **row: Any) -> None:
    found["rows"].append(row)
    sys.stdout.write(f"{row}\n")
    files.write_json(path, found)


def both() -> dict[str, hf.PreTrainedModel]:
    """A DeBERTa of transformers, and patched around the same weights."""
    theirs = hf.AutoModel.from_config(SHAPES["DeBERTa v3 base"]).eval()
    return {THEIRS: theirs, OURS: relpos.hf.patch(sharing_weights(theirs))}


def padded() -> dict[str, Callable[[], Any]]:
    """8 texts of 20 to 512 tokens, padded to the longest."""
    lengths = torch.linspace(20, 512, 8).long()
    mask = (torch.arange(512) < lengths[:, None]).long()
    ids = torch.randint(8000, (8, 512), generator=torch.Generator().manual_seed(0))
    models = both()
    with torch.no_grad():
        states = [model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()] for model in models.values()]
    torch.testing.assert_close(*states, rtol=0, atol=1e-4 * float(states[0].abs().max()))

    def call(model: hf.PreTrainedModel) -> None:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask)

    return {who: lambda model=model: call(model) for who, model in models.items()}


def training() -> dict[str, Callable[[], Any]]:
    """Forward and backward of one text of 512 tokens, without dropout."""
    ids = torch.randint(8000, (1, 512), generator=torch.Generator().manual_seed(0))
    models, gradients = both(), []

    def step(model: hf.PreTrainedModel) -> None:
        model.zero_grad()
        model(input_ids=ids).last_hidden_state.pow(2).mean().backward()

    for model in models.values():
        step(model)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-4 * float(gradients[0].abs().max()))
    return {who: lambda model=model: step(model) for who, model in models.items()}


if __name__ == "__main__":
    main()
