"""BLOOM, MPT and Falcon: their own rounding or none, any length, padding on the left, caches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.models.bloom import modeling_bloom
from transformers.models.falcon import modeling_falcon
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from zoo import TINY, falcon, inputs, mpt

import relpos.hf
from relpos import functional
from relpos.hf.alibi import exact, of_model

ROUNDING = {"bloom": modeling_bloom.build_alibi_tensor, "falcon": modeling_falcon.build_alibi_tensor}


def slopes(heads: int) -> Tensor:
    """The published slopes for a power of two, written out."""
    return torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)], dtype=torch.float64)


def attention_of(model: Any) -> Any:
    return next(module for module in model.modules() if isinstance(module, relpos.hf.patched.Patched))


@pytest.mark.parametrize("heads", [8, 12, 16, 20])
def test_slopes_of_every_family_are_the_published_ones(heads: int) -> None:
    ours = functional.alibi_slopes(heads)
    ones = torch.ones(1, 2, dtype=torch.long)
    torch.testing.assert_close(-build_mpt_alibi_tensor(heads, 2)[:, 0, 0], ours, rtol=1e-6, atol=0)
    torch.testing.assert_close(modeling_bloom.build_alibi_tensor(ones, heads, torch.float32)[:, 0, 1], ours)
    torch.testing.assert_close(
        modeling_falcon.build_alibi_tensor(ones, heads, torch.float32)[:, 0, 1], ours.bfloat16().float()
    )


@torch.no_grad()
def test_mpt_runs_past_max_seq_len() -> None:
    """Transformers' own fails there; with `max_seq_len` raised in the configuration it is the same model."""
    model, longer = TINY["mpt"].model(), mpt(max_seq_len=320)().eval()
    longer.load_state_dict(model.state_dict())
    longer.set_attn_implementation("eager")
    for padding in (None, "left", "right"):
        given = inputs(TINY["mpt"], 2, 320, padding)
        with pytest.raises(RuntimeError):
            relpos.hf.restore(model)(**given)
        shown = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
        ours, theirs = relpos.hf.patch(model)(**given).logits[shown], longer(**given).logits[shown]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@torch.no_grad()
def test_mpt_reads_a_matrix_of_pairs_as_its_model_does() -> None:
    """True hides, also keys ahead; and a bias is there whatever `attn_config` says, which the model does not read."""
    model = mpt(attn_config={"alibi": False, "alibi_bias_max": 4})().eval()
    model.set_attn_implementation("eager")
    given = inputs(TINY["mpt"], 2, 12)
    hidden = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.5
    given["attention_mask"] = hidden & ~torch.eye(12, dtype=torch.bool)
    theirs = model(**given).logits
    torch.testing.assert_close(relpos.hf.patch(model)(**given).logits, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_model_precision_keeps_the_models_rounding(dtype: torch.dtype) -> None:
    """A7: BLOOM rounds once to its dtype, Falcon multiplies in bfloat16; the scale comes after, in float32."""
    mask = torch.ones(2, 300, dtype=torch.long)
    mask[1, :40] = 0
    index = (mask.cumsum(-1) - 1) * mask
    for name, rounded in {
        "bloom": (slopes(8).float()[None, :, None] * index[:, None]).to(dtype),
        "falcon": (slopes(8).bfloat16()[None, :, None] * index[:, None].bfloat16()).to(dtype),
    }.items():
        bias = of_model(ROUNDING[name](mask, 8, dtype), mask, 2, 300, 0.125).values
        assert bias.dtype == torch.float32
        assert torch.equal(bias, rounded.float() * 0.125)
    alone = of_model(modeling_bloom.build_alibi_tensor(mask[:1], 8, dtype), mask[:1], 1, 300).values
    assert torch.equal(
        of_model(ROUNDING["bloom"](mask[:1].expand(2, -1), 8, dtype), torch.ones(2, 300), 2, 300).values, alone
    )


def test_exact_precision_is_slope_times_distance() -> None:
    """A7: 16 heads, head 0, distance 257: -181.7264, where bfloat16 has -181 and -182."""
    bias = exact(16, None, 300, torch.device("cpu")).values(torch.tensor([-257, -256]), torch.float32)
    torch.testing.assert_close(bias[0, 0], torch.tensor(-257 / math.sqrt(2)), rtol=0, atol=2e-5)
    halved = exact(16, None, 300, torch.device("cpu"), 0.5).values(torch.tensor([-257, -256]), torch.float32)
    assert torch.equal(halved * 2, bias)
    matrix = exact(16, torch.ones(1, 1, 3, 3), 3, torch.device("cpu")).values
    torch.testing.assert_close(matrix[0].double(), slopes(16)[:, None] * torch.tensor([-2, -1, 0]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["bloom", "falcon"])
@torch.no_grad()
def test_exact_precision_is_nearer_to_the_float32_model(name: str) -> None:
    """A7: one layer in bfloat16 at 4096 keys against the attention of float32 with exact slopes, written out."""
    error = errors_of(name, 4096)
    assert error["exact"] < 0.5 * error["eager"]
    assert error["exact"] < 0.5 * error["model"]


def errors_of(name: str, keys: int) -> dict[str, float]:
    """Root mean square difference from exact attention: of transformers, and of both precisions, in bfloat16."""
    heads, width, queries = 16, 64, 64
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, queries, width, generator=generator).bfloat16()
    key, value = torch.randn(2, 1, heads, keys, width, generator=generator).bfloat16()
    given = TINY[name].model().bfloat16()
    module = attention_of(relpos.hf.patch(given))
    scale, factor = width**-0.5, 1.0 if name == "bloom" else width**-0.5
    index, last = torch.arange(keys), torch.arange(keys - queries, keys)
    distance = (index - last[:, None]).double()
    score = query.double() @ key.double().mT * scale + factor * slopes(heads)[:, None, None] * distance
    want = score.masked_fill(distance > 0, -torch.inf).softmax(-1) @ value.double()
    mask = torch.ones(1, keys, dtype=torch.long)
    alibi = ROUNDING[name](mask, heads, torch.bfloat16)
    score = (query @ key.mT).float() * scale + alibi.view(1, heads, 1, keys).float() * factor
    if name == "bloom":
        score = alibi.baddbmm(query[0], key[0].mT, alpha=scale)[None].float()
    theirs = score.masked_fill(distance > 0, -torch.inf).softmax(-1).bfloat16() @ value
    found = {"eager": theirs}
    for precision, bias in {
        "model": of_model(alibi, mask, 1, keys, factor),
        "exact": exact(heads, mask, keys, key.device, factor),
    }.items():
        output, _ = relpos.hf.attend.attend(
            module, query, key, value, [bias], mask=mask, scale=scale, is_causal=True, query_start=keys - queries
        )
        found[precision] = output.view(1, queries, heads, width).transpose(1, 2)
    return {what: float((x.double() - want).pow(2).mean().sqrt()) for what, x in found.items()}


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon", "falcon, one key head", "falcon, new"])
@torch.no_grad()
def test_exact_precision_on_a_padded_and_cached_batch(name: str) -> None:
    """M7, with distances for key indices: one pass, and token by token, equal each text alone in transformers."""
    tiny = TINY[name]
    model = tiny.model().double()
    given = inputs(tiny, 2, 12, "left")
    alone = [model(input_ids=given["input_ids"][row : row + 1, 4 * row :]).logits[0] for row in range(2)]
    relpos.hf.patch(model, precision="exact")
    together, cache, steps = model(**given).logits, hf.DynamicCache(config=model.config), []
    for start, end in [(0, 6), (6, 9), (9, 10), (10, 12)]:
        part = model(
            input_ids=given["input_ids"][:, start:end], attention_mask=given["attention_mask"][:, :end], cache=cache,
            use_cache=True,
        )  # fmt: skip
        steps.append(part.logits)
    for row in range(2):
        torch.testing.assert_close(together[row, 4 * row :], alone[row], rtol=0, atol=1e-6)
        torch.testing.assert_close(torch.cat(steps, 1)[row, 4 * row :], together[row, 4 * row :], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["falcon", "falcon, one key head", "falcon, new"])
@torch.no_grad()
def test_falcon_with_a_static_cache(name: str) -> None:
    """Transformers' own fails with one: its bias is as wide as the tokens so far, or it is given a matrix."""
    tiny = TINY[name]
    model, given = tiny.model(), inputs(tiny, 1, 11)
    how = {"max_new_tokens": 8, "do_sample": False, "disable_compile": True}
    theirs = model.generate(**given, **how)
    relpos.hf.patch(model)
    assert torch.equal(model.generate(**given, **how, cache_implementation="static"), theirs)
    cache = hf.StaticCache(config=model.config, max_cache_len=20)
    first = model(input_ids=given["input_ids"], cache=cache, use_cache=True).logits
    torch.testing.assert_close(first, relpos.hf.restore(model)(**given).logits, rtol=0, atol=1e-5)


def test_what_is_left_alone() -> None:
    rotary = relpos.hf.patch(falcon(alibi=False)())
    assert "left alone: rotary positions" in str(relpos.hf.summary(rotary))
    assert rotary.config._attn_implementation == "sdpa"
    sliced = hf.BloomModel(
        hf.BloomConfig(vocab_size=8, hidden_size=8, n_head=2, n_layer=1, pretraining_tp=2, slow_but_exact=True)
    )
    assert "left alone: pretraining_tp > 1" in str(relpos.hf.summary(relpos.hf.patch(sliced)))


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_dropout_acts_in_training(name: str) -> None:
    model = relpos.hf.patch(TINY[name].model()).train()
    given = inputs(TINY[name], 1, 9)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout.p = 0.5
        if hasattr(module, "attn_dropout_p"):
            module.attn_dropout_p = 0.5
    assert not torch.equal(model(**given).logits, model(**given).logits)
    model.eval()
    assert torch.equal(model(**given).logits, model(**given).logits)


@pytest.mark.parametrize("name", ["bloom", "mpt", "falcon"])
def test_a_decoder_that_shall_not_be_causal_is_refused(name: str) -> None:
    model = TINY[name].model()
    model.config.is_causal = False
    with pytest.raises(ValueError, match="is_causal=False"):
        relpos.hf.patch(model)
