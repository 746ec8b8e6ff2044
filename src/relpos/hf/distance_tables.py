"""The distance tables of old checkpoints of BERT and its kin, given back to their models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from relpos import errors
from relpos.hf.patching import patch

KEY = "distance_embedding.weight"
CALL = "relpos.hf.load_relative_key"
Model = TypeVar("Model", bound=nn.Module)


def load_relative_key(model: Model, path: str | Path) -> Model:
    """Give a BERT-like model the distance tables of its old checkpoint, and compute with them, in place.

    transformers 5 report its `distance_embedding.weight` as unexpected, drop it, and add absolute positions that it was
    not trained with. Load the model with `from_pretrained` first, then call this with the same folder.

    Args:
        model: a BERT, RoBERTa, XLM-RoBERTa, CamemBERT or ELECTRA, or a module that contains some, whose
            configuration says `position_embedding_type="relative_key"` or `"relative_key_query"`.
        path: the checkpoint: a folder (also of shards with their index) or a `.safetensors` file.

    Returns:
        `model`, changed as by `patch`, with a table in each self-attention (`distance_embedding.weight`): a parameter
        that trains, and that `save_pretrained` keeps. `restore(model)` gives back the computation of transformers 5,
        which has no use for tables; the tables stay, and `patch(model)` takes them up again.

    Cost: memory for a number for each pair of tokens and head, one text at a time: distances are not clipped, and so
        there is a vector for each. 8.6 MB at 512 tokens and 4 heads.
    Source: transformers 4, `modeling_bert.py` and its copies: queries and keys meet `E[i - j + M - 1]`.
    Raises: TypeError for anything but a module; ValueError for a model or a checkpoint without tables, and for tables
        that do not fit. A longer input than the table has distances for is a ValueError in the call.
    """
    errors.module(CALL, model)
    from relpos.hf.relative_key import ATTENTION  # five modeling files, which who loads no such model need not import

    bodies = _bodies(model)
    modules: dict[str, Any] = {
        f"{name}.{inner}" if name else inner: module
        for name, body in bodies.items()
        for inner, module in body.named_modules()
        if isinstance(module, ATTENTION)
    }
    tables = _match(modules, _tables(Path(path)), getattr(model, "base_model_prefix", ""))
    for name, module in modules.items():
        rows, width = 2 * module.config.max_position_embeddings - 1, module.attention_head_size
        if tables[name].shape != (rows, width):
            raise errors.value(
                CALL,
                f"a table of shape {list(tables[name].shape)} for {name}",
                f"[{rows}, {width}]: 2 max_position_embeddings - 1 distances, channels of a head",
                "load the checkpoint that the configuration belongs to.",
            )
    for body in bodies.values():
        body.embeddings.position_embedding_type = body.config.position_embedding_type
    for name, module in modules.items():
        like = module.query.weight
        module.position_embedding_type = module.config.position_embedding_type
        module.distance_embedding = nn.Embedding.from_pretrained(
            tables[name].to(like.device, like.dtype), freeze=False
        ).train(module.training)
    return patch(model)


def _bodies(model: nn.Module) -> dict[str, Any]:
    """The parts of `model` that had tables, by name."""
    from relpos.hf.relative_key import BODIES, KINDS

    bodies = {name: module for name, module in model.named_modules() if isinstance(module, BODIES)}
    found: dict[str, Any] = {
        name: body for name, body in bodies.items() if getattr(body.config, "position_embedding_type", None) in KINDS
    }
    if not found:
        kinds = {getattr(body.config, "position_embedding_type", None) for body in bodies.values()}
        given = ", ".join(f"position_embedding_type {kind!r}" for kind in sorted(kinds, key=str))
        raise errors.value(
            CALL,
            f"{type(model).__name__} with {given or 'none of the supported models'}",
            f"a {', '.join(body.__name__ for body in BODIES)} with position_embedding_type {' or '.join(KINDS)}",
            "load the model with the configuration of its checkpoint.",
        )
    if any(body.config.add_cross_attention for body in found.values()):
        raise errors.value(
            CALL, "a model with cross-attention", "self-attention only", "load encoders, or decoders on their own."
        )
    return found


def _tables(path: Path) -> dict[str, Tensor]:
    """The tables of a checkpoint by their full names."""
    tables: dict[str, Tensor] = {}
    for file in _files(path):
        try:
            with safe_open(file, framework="pt") as tensors:
                tables |= {key: tensors.get_tensor(key) for key in tensors.keys() if key.endswith(f".{KEY}")}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise errors.value(CALL, f"{file} ({error})", "a safetensors file", "check the download.") from error
    if not tables:
        raise errors.value(
            CALL, f"{path} without a {KEY}", "a checkpoint with relative_key tables", "pass the folder they lie in."
        )
    return tables


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [path / name for name in sorted({shard for key, shard in shards.items() if key.endswith(f".{KEY}")})]
    raise errors.value(
        CALL,
        f"path {str(path)!r}",
        "a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json",
        "convert older checkpoints with save_pretrained of the transformers that wrote them.",
    )


def _match(modules: dict[str, Any], tables: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The table of each module. As in `from_pretrained`, a checkpoint may lack the model's prefix, or have one more."""
    stems = {key.removesuffix(f".{KEY}") for key in tables}
    named = {name: {name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"} & stems for name in modules}
    missing = [name for name, found in named.items() if len(found) != 1]
    surplus = stems.difference(*named.values())
    if missing or surplus:
        raise errors.value(
            CALL,
            "; ".join(
                f"{fault} {', '.join(sorted(names))}"
                for fault, names in (("no table for", missing), ("no module for the table of", surplus))
                if names
            ),
            "one table for each self-attention of the model",
            "load the checkpoint that the model belongs to.",
        )
    return {name: tables[f"{found.pop()}.{KEY}"] for name, found in named.items()}
