"""Old checkpoints of BERT and its kin: the formula of transformers 4 in float64 loops, in whole models, from files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from test_patched_models import near
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import relpos.hf

LONGEST, WIDTH, HEADS, LAYERS = 24, 32, 4, 2
KINDS = ("relative_key", "relative_key_query")
MODELS = {
    "bert": (hf.BertConfig, hf.BertForMaskedLM),
    "roberta": (hf.RobertaConfig, hf.RobertaForMaskedLM),
    "xlm-roberta": (hf.XLMRobertaConfig, hf.XLMRobertaForMaskedLM),
    "camembert": (hf.CamembertConfig, hf.CamembertForMaskedLM),
    "electra": (hf.ElectraConfig, hf.ElectraForMaskedLM),
}
EVERY = pytest.mark.parametrize("name", MODELS)
EITHER = pytest.mark.parametrize("kind", KINDS)
TABLE = "attention.self.distance_embedding.weight"


def build(name: str, kind: str = "relative_key", **options: Any) -> Any:
    """A tiny random model, as transformers 5 make it: without tables, with absolute positions."""
    config, model = MODELS[name]
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes = {
        "vocab_size": 61,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 48,
        "max_position_embeddings": LONGEST,
        "pad_token_id": 0,
    }
    if name == "electra":
        sizes["embedding_size"] = 16
    made = model(config(**sizes, **dropouts, position_embedding_type=kind, **options)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return made


def checkpoint(model: Any, folder: Path) -> dict[str, Tensor]:
    """The folder that transformers 4 left: weights under their names, tables among them, and the configuration."""
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    tables = {
        name.replace("attention.self.query.weight", TABLE): torch.randn(
            2 * LONGEST - 1, WIDTH // HEADS, generator=generator
        )
        for name, _ in model.named_parameters()
        if name.endswith("attention.self.query.weight")
    }
    assert len(tables) == LAYERS
    save_file(load_file(folder / "model.safetensors") | tables, folder / "model.safetensors", {"format": "pt"})
    return tables


def oracle(model: Any, tables: dict[str, Tensor], kind: str, given: dict[str, Tensor]) -> Any:
    """The model in float64, with scores by loops over pairs, and absolute positions that are zero."""
    model = copy.deepcopy(model).double()
    modules = dict(model.named_modules())
    of = {modules[key.removesuffix(".distance_embedding.weight")]: table.double() for key, table in tables.items()}

    def scores(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **_: Any) -> Any:
        length, product = q.shape[2], q @ k.transpose(-1, -2)
        for i in range(length):
            for j in range(length):
                vector = of[module][i - j + LONGEST - 1]
                product[:, :, i, j] += q[:, :, i] @ vector
                if kind == "relative_key_query":
                    product[:, :, i, j] += k[:, :, j] @ vector
        product = product / (WIDTH // HEADS) ** 0.5
        if mask is not None:
            product = product.masked_fill(~mask if mask.dtype == torch.bool else mask < 0, -torch.inf)
        p = product.softmax(-1)
        return (p @ v).transpose(1, 2), p

    with torch.no_grad():
        model.base_model.embeddings.position_embeddings.weight.zero_()
    ALL_ATTENTION_FUNCTIONS.register("relative_key_oracle", scores)
    ALL_MASK_ATTENTION_FUNCTIONS.register("relative_key_oracle", eager_mask)
    model.config._attn_implementation = "relative_key_oracle"
    nowhere = torch.zeros_like(given["input_ids"])  # RoBERTa's own would end one token before the tables do
    return model(**given, position_ids=nowhere, output_attentions=True)


def batch(length: int, padding: str | None = None) -> dict[str, Tensor]:
    ids = torch.randint(3, 61, (2, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones_like(ids)
    if padding is not None:
        mask[1, slice(0, length // 3) if padding == "left" else slice(length - length // 3, length)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def loaded(name: str, kind: str, folder: Path) -> tuple[Any, Any, dict[str, Tensor]]:
    """What transformers 5 load of an old checkpoint, the same with its tables, and the tables."""
    tables = checkpoint(build(name, kind), folder)
    plain = MODELS[name][1].from_pretrained(folder).eval()
    assert not any("distance" in key for key in plain.state_dict())
    return plain, relpos.hf.load_relative_key(copy.deepcopy(plain), folder), tables


@EVERY
@EITHER
@torch.no_grad()
def test_the_model_that_transformers_4_had(name: str, kind: str, tmp_path: Path) -> None:
    plain, model, tables = loaded(name, kind, tmp_path)
    assert relpos.hf.summary(model).patched == LAYERS + 1
    for length, padding in ((1, None), (9, "left"), (9, "right"), (LONGEST, None)):
        given = batch(length, padding)
        shown = given["attention_mask"].bool()
        want = oracle(plain, tables, kind, given)
        have = model(**given, output_attentions=True)
        near(have.logits[shown].double(), want.logits[shown], 1e-5, f"length {length}")
        for mine, theirs in zip(have.attentions, want.attentions, strict=True):
            near(mine.transpose(1, 2)[shown].double(), theirs.transpose(1, 2)[shown], 1e-5)
    given = batch(9)
    assert (plain(**given).logits - model(**given).logits).abs().max() > 0.1  # what is lost without the tables


@EITHER
def test_tables_train(kind: str, tmp_path: Path) -> None:
    plain, model, tables = loaded("bert", kind, tmp_path)
    given = batch(9, "right")
    shown = given["attention_mask"].bool()
    leaves = {key: table.clone().requires_grad_() for key, table in tables.items()}
    oracle(plain, leaves, kind, given).logits[shown].pow(2).sum().backward()
    model(**given).logits[shown].pow(2).sum().backward()
    parameters = dict(model.named_parameters())
    for key, leaf in leaves.items():
        near(parameters[key].grad, leaf.grad, 1e-4, key)
    assert parameters["bert.embeddings.position_embeddings.weight"].grad is None  # nor did transformers 4 train it


@EVERY
@torch.no_grad()
def test_saved_restored_and_patched_again(name: str, tmp_path: Path) -> None:
    plain, model, tables = loaded(name, "relative_key_query", tmp_path / "old")
    given = batch(9)
    output = model(**given).logits
    model.save_pretrained(tmp_path / "new")
    saved = load_file(tmp_path / "new/model.safetensors")
    assert all(torch.equal(saved[key], table) for key, table in tables.items())
    assert json.loads((tmp_path / "new/config.json").read_text())["position_embedding_type"] == "relative_key_query"
    again = relpos.hf.load_relative_key(MODELS[name][1].from_pretrained(tmp_path / "new").eval(), tmp_path / "new")
    assert torch.equal(again(**given).logits, output)
    assert torch.equal(copy.deepcopy(model)(**given).logits, output)
    relpos.hf.restore(model)
    assert torch.equal(model(**given).logits, plain(**given).logits)
    assert {key for key in model.state_dict() if key.endswith(TABLE)} == tables.keys()
    assert torch.equal(relpos.hf.patch(model)(**given).logits, output)


@torch.no_grad()
def test_shards_single_files_and_other_prefixes(tmp_path: Path) -> None:
    plain, model, tables = loaded("bert", "relative_key", tmp_path)
    given = batch(9)
    output = model(**given).logits
    one = relpos.hf.load_relative_key(copy.deepcopy(plain), tmp_path / "model.safetensors")
    assert torch.equal(one(**given).logits, output)
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, (key, table) in enumerate(tables.items()):
        save_file({key: table}, shards / f"{number}.safetensors")
    weights = {key: f"{number}.safetensors" for number, key in enumerate(tables)} | {"x": "absent.safetensors"}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    assert torch.equal(relpos.hf.load_relative_key(copy.deepcopy(plain), str(shards))(**given).logits, output)
    bare = tmp_path / "bare.safetensors"
    save_file({key.removeprefix("bert."): table for key, table in tables.items()}, bare)
    assert torch.equal(relpos.hf.load_relative_key(copy.deepcopy(plain), bare)(**given).logits, output)
    body = relpos.hf.load_relative_key(copy.deepcopy(plain.bert), tmp_path)
    want = model.bert(**given).last_hidden_state
    assert torch.equal(body(**given).last_hidden_state, want)
    holder = nn.ModuleDict({"bert": copy.deepcopy(plain.bert)})
    assert torch.equal(relpos.hf.load_relative_key(holder, tmp_path)["bert"](**given).last_hidden_state, want)


@EITHER
@torch.no_grad()
def test_a_decoder_continues_from_its_cache(kind: str, tmp_path: Path) -> None:
    causal = hf.BertLMHeadModel(build("bert", kind, is_decoder=True).config).eval()
    tables = checkpoint(causal, tmp_path)
    model = relpos.hf.load_relative_key(causal, tmp_path)
    assert tables
    ids = batch(12)["input_ids"]
    whole = model(input_ids=ids).logits
    first = model(input_ids=ids[:, :7], use_cache=True)
    near(first.logits, whole[:, :7], 1e-5)
    cache = first.cache
    for step in range(7, 12):
        have = model(input_ids=ids[:, step : step + 1], cache=cache, use_cache=True)
        near(have.logits[:, 0], whole[:, step], 1e-5, f"step {step}")
        cache = have.cache


def test_an_input_past_the_table_is_refused(tmp_path: Path) -> None:
    _, model, _ = loaded("bert", "relative_key", tmp_path)
    with pytest.raises(ValueError, match=rf"got {LONGEST + 1} tokens\. Allowed: at most {LONGEST}: a table of 47"):
        model(**batch(LONGEST + 1))


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    tables = checkpoint(build("bert"), tmp_path)
    load = relpos.hf.load_relative_key
    with pytest.raises(TypeError, match="model of str"):
        load("bert", tmp_path)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="Linear with none of the supported models"):
        load(nn.Linear(2, 2), tmp_path)
    with pytest.raises(ValueError, match="BertForMaskedLM with position_embedding_type 'absolute'"):
        load(build("bert", "absolute"), tmp_path)
    with pytest.raises(ValueError, match="cross-attention"):
        load(build("bert", is_decoder=True, add_cross_attention=True), tmp_path)
    with pytest.raises(ValueError, match=r"path '.*nowhere'.*save_pretrained"):
        load(build("bert"), tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"config\.json .*a safetensors file"):
        load(build("bert"), tmp_path / "config.json")
    file = tmp_path / "some.safetensors"
    save_file({"x": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match=r"some\.safetensors without a distance_embedding\.weight"):
        load(build("bert"), file)
    first, second = tables
    save_file({first: tables[first], first.replace("layer.0", "layer.9"): tables[second]}, file)
    model = build("bert")
    with pytest.raises(
        ValueError, match=r"no table for bert\.encoder\.layer\.1.*; no module for the table of bert\.encoder\.layer\.9"
    ):
        load(model, file)
    save_file({first: tables[first], second: tables[second][1:]}, file)
    with pytest.raises(ValueError, match=r"a table of shape \[46, 8\] for bert\.encoder\.layer\.1\.attention\.self"):
        load(model, file)
    assert relpos.hf.summary(model).patched == 0  # nothing is half done
    assert not any("distance" in name for name in model.state_dict())


def test_patch_says_what_is_missing() -> None:
    model = relpos.hf.patch(build("roberta"))
    assert str(relpos.hf.summary(model)) == (
        "2 x RobertaSelfAttention  left alone: its relative_key tables are not loaded: see relpos.hf.load_relative_key"
    )
