"""Rotary embedding in Llama (grouped heads), GPT-NeoX (partial) and GPT-J (interleaved); cases D3, D5, D8, G10.

The models make their angles in float32. So each comparison stands twice: with the model's own embedding, to float32's
precision, and in float64 with angles by the definition (complex powers, not our code) handed to the model's layer,
which tells a wrong pairing or frequency from rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from agreement import (
    additive,
    assert_agree,
    causal,
    inputs,
    leaves_of,
    merge_heads,
    padding,
    randomised,
    split_heads,
)
from torch import Tensor, nn
from transformers import DynamicCache, GPTJConfig, GPTNeoXConfig, LlamaConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention, GPTNeoXRotaryEmbedding
from transformers.models.gptj.modeling_gptj import GPTJAttention, GPTJRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

import relpos

HEAD_DIM = 8
LENGTH = 17
Pair = tuple[Tensor, Tensor]

#: Position ids `[B, T]`: counted from zero, begun later, with gaps that differ between the rows, and far out.
POSITIONS = {
    "plain": torch.arange(LENGTH).repeat(2, 1),
    "offset": torch.arange(LENGTH) + torch.tensor([[5], [31]]),
    "gaps": torch.stack((torch.arange(LENGTH) * 3, torch.arange(LENGTH) + 20 * (torch.arange(LENGTH) > 6))),
}


def half(ids: Tensor, rotary_dim: int, base: float) -> Pair:
    """Cosine and sine `[B, T, rotary_dim]` in float64 as Llama and GPT-NeoX take them, the frequencies twice over."""
    turns = turns_of(ids, rotary_dim, base)
    return torch.cat((turns.real, turns.real), dim=-1), torch.cat((turns.imag, turns.imag), dim=-1)


def interleaved(ids: Tensor, rotary_dim: int, base: float) -> Pair:
    """Sine and cosine `[B, T, rotary_dim / 2]` in float64 as GPT-J takes them."""
    turns = turns_of(ids, rotary_dim, base)
    return turns.imag, turns.real


def turns_of(ids: Tensor, rotary_dim: int, base: float) -> Tensor:
    wavelength = base ** (torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    return torch.exp(1j * ids[..., None].double() / wavelength)


@dataclass(frozen=True)
class Family:
    """A model's attention layer, its rotary embedding, and the scheme that stands for it."""

    layer: nn.Module
    embedding: nn.Module
    scheme: relpos.Rotary
    precise: Callable[[Tensor, int, float], Pair]
    split: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor, Tensor]]
    output: str
    width: int

    def angles(self, ids: Tensor, dtype: torch.dtype) -> Pair:
        """The model's own angles in float32, the definition's in float64."""
        if dtype == torch.float64:
            return self.precise(ids, self.scheme.rotary_dim, self.scheme.base)
        pair: Pair = self.embedding(torch.empty(0, dtype=dtype), ids)
        return pair

    def theirs(self, hidden: Tensor, ids: Tensor, visible: Tensor) -> Tensor:
        angles = self.angles(ids, hidden.dtype)
        output: Tensor = self.layer(hidden, position_embeddings=angles, attention_mask=additive(visible, hidden.dtype))[
            0
        ]
        return output

    def ours(self, hidden: Tensor, ids: Tensor, real: Tensor | None = None) -> Tensor:
        positions = relpos.Positions.explicit(ids, ids)
        query, key, value = self.split(self.layer, hidden)
        mixed = relpos.attention(query, key, value, self.scheme, is_causal=True, positions=positions, key_mask=real)
        output: Tensor = self.layer.get_submodule(self.output)(merge_heads(mixed))
        return output


def llama(dtype: torch.dtype, *, heads: int = 6, groups: int = 2, base: float = 10000.0) -> Family:
    config = LlamaConfig(
        hidden_size=heads * 4,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=HEAD_DIM,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attn_implementation=kind_for(dtype),
    )

    def split(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (layer.get_submodule(f"{name}_proj")(hidden) for name in "qkv")
        return split_heads(query, heads), split_heads(key, groups), split_heads(value, groups)

    layer = randomised(LlamaAttention(config, layer_idx=0), dtype)
    scheme = relpos.Rotary(HEAD_DIM, base=base)
    return Family(layer, LlamaRotaryEmbedding(config), scheme, half, split, "o_proj", heads * 4)


def neox(dtype: torch.dtype, *, rotary_dim: int = 4, base: float = 10000.0) -> Family:
    heads = 3
    config = GPTNeoXConfig(
        hidden_size=heads * HEAD_DIM,
        num_attention_heads=heads,
        attention_bias=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": base,
            "partial_rotary_factor": rotary_dim / HEAD_DIM,
        },
        attn_implementation=kind_for(dtype),
    )

    def split(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = split_heads(layer.get_submodule("query_key_value")(hidden), heads).chunk(3, dim=-1)
        return query, key, value

    layer = randomised(GPTNeoXAttention(config, layer_idx=0), dtype)
    scheme = relpos.Rotary(HEAD_DIM, rotary_dim=rotary_dim, base=base)
    return Family(layer, GPTNeoXRotaryEmbedding(config), scheme, half, split, "dense", heads * HEAD_DIM)


def gptj(dtype: torch.dtype, *, rotary_dim: int = 4) -> Family:
    heads = 3
    config = GPTJConfig(
        n_embd=heads * HEAD_DIM,
        n_head=heads,
        rotary_dim=rotary_dim,
        n_positions=64,
        attn_implementation=kind_for(dtype),
    )

    def split(layer: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (split_heads(layer.get_submodule(f"{name}_proj")(hidden), heads) for name in "qkv")
        return query, key, value

    layer = randomised(GPTJAttention(config, layer_idx=0), dtype)
    scheme = relpos.Rotary(HEAD_DIM, rotary_dim=rotary_dim, layout="interleaved")
    return Family(layer, GPTJRotaryEmbedding(config), scheme, interleaved, split, "out_proj", heads * HEAD_DIM)


def kind_for(dtype: torch.dtype) -> str:
    """The eager routes cast scores to float32; only SDPA keeps float64."""
    return "sdpa" if dtype == torch.float64 else "eager"


FAMILIES: dict[str, Callable[[torch.dtype], Family]] = {
    "llama": llama,
    "llama, one head a group": lambda dtype: llama(dtype, groups=6),
    "llama, one group, other base": lambda dtype: llama(dtype, groups=1, base=500.0),
    "neox, a quarter": lambda dtype: neox(dtype, rotary_dim=2),
    "neox, half": neox,
    "neox, three quarters, other base": lambda dtype: neox(dtype, rotary_dim=6, base=77.0),
    "neox, all": lambda dtype: neox(dtype, rotary_dim=8),
    "gptj, half": gptj,
    "gptj, three quarters": lambda dtype: gptj(dtype, rotary_dim=6),
    "gptj, all": lambda dtype: gptj(dtype, rotary_dim=8),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ids", POSITIONS.values(), ids=POSITIONS.keys())
@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES.keys())
def test_attention(make: Callable[[torch.dtype], Family], ids: Tensor, dtype: torch.dtype) -> None:
    family = make(dtype)
    hidden = inputs(2, LENGTH, family.width, dtype)
    assert_agree(
        lambda: family.ours(hidden, ids),
        lambda: family.theirs(hidden, ids, causal(LENGTH)),
        leaves_of(family.layer, hidden=hidden),
    )


@pytest.mark.parametrize("make", [llama, neox, gptj])
def test_left_padding(make: Callable[[torch.dtype], Family]) -> None:
    """Position ids that count real tokens, as generation makes them."""
    family, real = make(torch.float64), padding([17, 9], LENGTH, "left")
    hidden = inputs(2, LENGTH, family.width, torch.float64)
    ids = (real.long().cumsum(-1) - 1).clamp(min=0)
    # Among a row's pads all positions are 0, where the causal rule by position and by index differ; they are not seen.
    assert_agree(
        lambda: family.ours(hidden, ids, real)[real],
        lambda: family.theirs(hidden, ids, real[:, None, None, :] & causal(LENGTH))[real],
        leaves_of(family.layer, hidden=hidden),
    )


def test_llama_token_by_token() -> None:
    """Case G10: they cache rotated keys, we rotate raw ones in every step."""
    family, ids = llama(torch.float64), POSITIONS["offset"]
    hidden = inputs(2, LENGTH, family.width, torch.float64)

    def theirs() -> Tensor:
        cache = DynamicCache()
        steps = []
        for now in range(LENGTH):
            angles = family.angles(ids[:, now : now + 1], torch.float64)
            steps.append(family.layer(hidden[:, now : now + 1], position_embeddings=angles, cache=cache)[0])
        return torch.cat(steps, dim=1)

    def ours() -> Tensor:
        query, key, value = family.split(family.layer, hidden)
        steps = []
        for now in range(1, LENGTH + 1):
            seen = (query[:, :, now - 1 : now], key[:, :, :now], value[:, :, :now])
            positions = relpos.Positions.arange(1, now, query_start=now - 1)
            steps.append(relpos.attention(*seen, family.scheme, is_causal=True, positions=positions))
        output: Tensor = family.layer.get_submodule("o_proj")(merge_heads(torch.cat(steps, dim=2)))
        return output

    assert_agree(ours, theirs, leaves_of(family.layer, hidden=hidden))


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rotation_alone(base: float) -> None:
    """The rotated vectors themselves, where a scheme that agreed only in products would show."""
    family, ids = llama(torch.float64, base=base), POSITIONS["gaps"]
    x = torch.randn(2, 3, LENGTH, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    cosine, sine = family.angles(ids, torch.float64)
    inv_freq, factor = relpos.functional.rope_inv_freq(HEAD_DIM, base, dtype=torch.float64)
    assert factor == 1.0
    assert_agree(
        lambda: relpos.functional.apply_rotary(x, ids, inv_freq, "half"),
        lambda: apply_rotary_pos_emb(x, x, cosine, sine)[0],
        {"x": x},
    )
    torch.testing.assert_close(
        relpos.functional.rope_inv_freq(HEAD_DIM, base)[0], family.embedding.inv_freq, rtol=1e-6, atol=0.0
    )
