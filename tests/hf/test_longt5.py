"""LongT5's local encoder: a window, padding, one table for all layers, and no matrix of blocks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from conformance import allocations
from torch import Tensor, nn
from transformers.models.longt5 import modeling_longt5
from zoo import TINY, inputs, t5

import relpos.hf

RADIUS = 5


def tiny(**options: Any) -> Any:
    torch.manual_seed(0)
    return t5(hf.LongT5Config, hf.LongT5EncoderModel, **{"local_radius": RADIUS} | options)().eval()


def attention_of(model: Any, layer: int = 0) -> Any:
    return model.encoder.block[layer].layer[0].LocalSelfAttention


@torch.no_grad()
@pytest.mark.parametrize("radius", [0, 1, RADIUS, 11])
def test_a_token_sees_as_far_as_the_radius(radius: int) -> None:
    """A token changed somewhere, also at the edge of a block, changes the outputs within the radius and no other."""
    model, length = relpos.hf.patch(tiny(local_radius=radius, num_hidden_layers=1)), 37
    ids = inputs(TINY["longt5 encoder"], 1, length)["input_ids"]
    before = model(ids).last_hidden_state
    for place in (0, radius, radius + 1, length // 2, length - 1):
        other = ids.clone()
        other[0, place] = 1
        changed = (model(other).last_hidden_state != before).any(-1)[0]
        assert torch.equal(changed, (torch.arange(length) - place).abs() <= radius)


@torch.no_grad()
def test_without_a_mask_all_are_tokens() -> None:
    layer, x = attention_of(relpos.hf.patch(tiny())), torch.randn(2, 8, 32)
    mask = modeling_longt5._get_local_attention_mask(torch.ones(2, 8), RADIUS + 1, x.device)
    assert torch.equal(layer(x)[0], layer(x, mask=mask)[0])


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"])
def test_under_a_stack_of_ones_own(padding: str) -> None:
    """Which is left alone, and hands masks of whole blocks to the attention that is not."""

    class Mine(modeling_longt5.LongT5Stack):
        pass

    model, given = tiny(), inputs(TINY["longt5 encoder"], 2, 20, padding)
    model.encoder.__class__ = Mine
    shown = given["attention_mask"].bool()
    want = model(**given).last_hidden_state[shown]
    relpos.hf.patch(model)
    assert type(model.encoder) is Mine
    assert relpos.hf.summary(model).patched == 2
    torch.testing.assert_close(model(**given).last_hidden_state[shown], want, atol=1e-5, rtol=0)


def test_every_layer_adds_the_table_of_the_first() -> None:
    """Made once in a forward pass, by the layer that owns it."""
    model = relpos.hf.patch(tiny(num_hidden_layers=3))
    nn.init.normal_(attention_of(model).relative_attention_bias.weight)
    assert [attention_of(model, n).bias_table() is None for n in range(3)] == [False, True, True]
    seen: list[Tensor] = []
    for layer in range(3):
        attention_of(model, layer).register_forward_hook(lambda module, args, output: seen.append(output[1]))
    ids = inputs(TINY["longt5 encoder"], 1, 20)["input_ids"]
    model(ids)
    assert len(seen) == 3
    assert all(one is seen[0] for one in seen)
    assert seen[0].shape == (4, 2 * 20 + 1)
    probabilities = model(ids, output_attentions=True).attentions
    with torch.no_grad():
        attention_of(model).relative_attention_bias.weight.zero_()
    flat = model(ids, output_attentions=True).attentions
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(probabilities, flat, strict=True))


@torch.no_grad()
def test_probabilities_in_blocks() -> None:
    """`[B, blocks, H, block, 3 block]`, place by place, from those of all pairs; the block's end filled with zeros."""
    model, length, block = tiny(), 20, RADIUS + 1
    given = inputs(TINY["longt5 encoder"], 2, length, "right")
    theirs = model(**given, output_attentions=True).attentions
    ours = relpos.hf.patch(model)(**given, output_attentions=True).attentions
    for layer, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.shape == other.shape == (2, 4, 4, block, 3 * block)
        for row in range(2):
            for query in range(length):
                n, place = divmod(query, block)
                if given["attention_mask"][row, query]:
                    torch.testing.assert_close(mine[row, n, :, place], other[row, n, :, place], atol=1e-6, rtol=0)
                else:
                    assert not mine[row, n, :, place].any(), layer
        assert not mine[:, -1, :, length % block :].any()


@torch.no_grad()
def test_padding_in_float16() -> None:
    """Transformers give NaN for every text that has any."""
    model, given = tiny().half(), inputs(TINY["longt5 encoder"], 2, 20, "right")
    kept = int(given["attention_mask"][1].sum())
    assert model(**given).last_hidden_state[1, :kept].isnan().any()
    alone = model(given["input_ids"][1:, :kept]).last_hidden_state[0].float()
    together = relpos.hf.patch(model)(**given).last_hidden_state[1, :kept].float()
    torch.testing.assert_close(together, alone, atol=1e-2 * float(alone.abs().max()), rtol=0)


def test_nothing_is_made_for_blocks() -> None:
    """No mask, bias, index or score for every token and three blocks of keys, where transformers make each."""
    model, length, radius = tiny(local_radius=499), 4000, 499
    given = inputs(TINY["longt5 encoder"], 1, length, "right")
    given["attention_mask"][:, -7:] = 0
    least = length * 3 * (radius + 1)  # bytes of such a mask
    with torch.no_grad():
        assert max(allocations(lambda: model(**given))) > 8 * least
        relpos.hf.patch(model)
        assert max(allocations(lambda: model(**given))) < least / 2


def test_the_transient_global_encoder_is_left_alone() -> None:
    """Its decoder is not."""
    options = {"local_radius": RADIUS, "global_block_size": 4, "encoder_attention_type": "transient-global"}
    model = t5(hf.LongT5Config, hf.LongT5ForConditionalGeneration, **options)().eval()
    given = inputs(TINY["longt5"], 2, 20, "right")
    with torch.no_grad():
        want = model(**given).logits
        ours = relpos.hf.patch(model)(**given).logits
    torch.testing.assert_close(ours, want, atol=1e-5 * float(want.abs().max()), rtol=0)
    left, patched = str(relpos.hf.summary(model)).splitlines()
    assert left.startswith("2 x LongT5TransientGlobalAttention  left alone: its tokens also see sums of 4 tokens, ")
    assert patched == "4 x LongT5Attention                 patched: longt5"
    assert type(model.encoder) is type(model.decoder) is modeling_longt5.LongT5Stack
    assert model.encoder.config._attn_implementation != "relpos" == model.decoder.config._attn_implementation


def test_the_stack_counts_its_own_blocks_again_after_restore() -> None:
    model = relpos.hf.patch(tiny())
    twin = relpos.hf.restore(copy.deepcopy(model))
    assert (model.encoder.block_len, twin.encoder.block_len) == (1, RADIUS + 1)
    assert str(relpos.hf.summary(model)).splitlines() == [
        "1 x LongT5Stack           patched: longt5",
        "2 x LongT5LocalAttention  patched: longt5",
    ]
