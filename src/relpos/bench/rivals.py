"""Who does the work: attention without a bias, our backends, and what people use today.

A contender is built for a work and gives a function of query, key and value, or says why it cannot.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import relpos
from relpos.bench.work import Work, distance_bias
from relpos.schemes import ALiBi, Scheme, T5Bias

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

#: The yardstick: the same attention without any bias, which computes something else.
LIMIT = "sdpa without bias"


@dataclass(frozen=True)
class Contender:
    """`prepare(work, scheme)` gives the function to time; a string says why there is none.

    `from_hidden`: an attention module with projections, set to the identity; query, key and value are all the query.
    `longest`: more pairs than of so many tokens are not timed, because a call would take seconds.
    """

    name: str
    prepare: Callable[[Work, Scheme], Attend | str]
    from_hidden: bool = False
    longest: int | None = None


def contenders() -> list[Contender]:
    """Everybody, the yardstick first."""
    longest = {"reference": 1024}
    ours = [Contender(f"relpos {name}", _ours(name), longest=longest.get(name)) for name in relpos.backends.BACKENDS]
    return [
        Contender(LIMIT, _without_bias),
        *ours,
        Contender("dense bias + sdpa", _dense, longest=4096),
        Contender("eager", _eager, longest=2048),
        Contender("flex, compiled", _flex, longest=4096),
        Contender("transformers", _transformers, from_hidden=True, longest=2048),
        Contender("x-transformers", _x_transformers, longest=2048),
    ]


def _without_bias(work: Work, scheme: Scheme) -> Attend | str:
    is_causal = work.is_causal and work.queries > 1
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def _ours(backend: str) -> Callable[[Work, Scheme], Attend | str]:
    def prepare(work: Work, scheme: Scheme) -> Attend | str:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            positions = None if work.is_causal else relpos.Positions.arange(work.queries, work.length, 0)
            return relpos.attention(
                query, key, value, scheme, is_causal=work.is_causal, positions=positions, backend=backend
            )

        why = relpos.explain(*work.inputs(), scheme, is_causal=work.is_causal)
        if backend == why.backend or backend == "reference":
            return attend
        return "; ".join(why.refused[backend])

    return prepare


def _dense(work: Work, scheme: Scheme) -> Attend | str:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = work.bias(scheme).to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask[None])

    return attend


def _eager(work: Work, scheme: Scheme) -> Attend | str:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(work.width) + work.bias(scheme).to(query.dtype)
        return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value

    return attend


def _flex(work: Work, scheme: Scheme) -> Attend | str:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if work.task == "train":
        return "FlexAttention has no gradients on a CPU"
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "torch.compile finds no C++ compiler"
    start = work.length - work.queries
    blocks = None
    if work.is_causal and work.queries > 1:
        blocks = create_block_mask(lambda b, h, i, j: j <= i + start, 1, 1, work.queries, work.length, device="cpu")
    # Without a fresh start the compiler gives up after eight works, and what then runs is not what anybody means.
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    distance = torch.arange(1 - work.length, work.length)
    values = distance_bias(scheme).values

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        table = values(distance, torch.float32)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + table[h, j - i - start + work.length - 1]

        output = compiled(query, key, value, score_mod=score, block_mask=blocks)
        assert isinstance(output, Tensor)
        return output

    return attend


def _transformers(work: Work, scheme: Scheme) -> Attend | str:
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    if work.task == "decode":
        return "its modules decode with a cache of their own"
    if isinstance(scheme, T5Bias) and not work.is_causal:
        return _t5_module(work, scheme)
    if isinstance(scheme, ALiBi) and work.is_causal:
        return _mpt_module(work)
    return "no attention module of its own computes this"


def _t5_module(work: Work, scheme: T5Bias) -> Attend:
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    size = work.heads * work.width
    config = T5Config(
        d_model=size,
        d_kv=work.width,
        num_heads=work.heads,
        relative_attention_num_buckets=scheme.num_buckets,
        relative_attention_max_distance=scheme.max_distance,
        attn_implementation="sdpa",
    )
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    _identity(module.q, module.k, module.v, module.o)
    with torch.no_grad():
        # T5 does not scale its products; a query weight that does makes it compute the same as the others.
        module.q.weight /= math.sqrt(work.width)
        module.relative_attention_bias.weight.copy_(scheme.table.T)
    module.to(getattr(torch, work.dtype))
    return lambda query, key, value: _heads(module(_hidden(query))[0], work)


def _mpt_module(work: Work) -> Attend:
    from transformers import MptConfig
    from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor

    size = work.heads * work.width
    module = MptAttention(MptConfig(d_model=size, n_heads=work.heads, max_seq_len=work.length), layer_idx=0).eval()
    _identity(module.out_proj)
    with torch.no_grad():
        module.Wqkv.weight.copy_(torch.eye(size).repeat(3, 1))
    module.to(getattr(torch, work.dtype))
    hidden_keys = torch.ones(work.length, work.length, dtype=torch.bool).triu(1)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = build_mpt_alibi_tensor(work.heads, work.length)
        return _heads(module(_hidden(query), bias, attention_mask=hidden_keys)[0], work)

    return attend


def _x_transformers(work: Work, scheme: Scheme) -> Attend | str:
    if importlib.util.find_spec("x_transformers") is None:
        return "x-transformers is not installed"
    from x_transformers.attend import Attend as TheirAttend
    from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

    positions: Callable[[int, int], Tensor]
    if isinstance(scheme, T5Bias):
        buckets = (not scheme.bidirectional, scheme.num_buckets, scheme.max_distance)
        learned = RelativePositionBias(1.0, *buckets, work.heads)
        with torch.no_grad():
            learned.relative_attention_bias.weight.copy_(scheme.table.T)
        positions = learned
    elif isinstance(scheme, ALiBi):
        positions = AlibiPositionalBias(work.heads)
    else:
        return "it has no such bias"
    attention = TheirAttend(heads=work.heads, causal=work.is_causal, flash=True, dropout=0.0)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = positions(work.queries, work.length).to(query.dtype)
        output, _ = attention(query, key, value, attn_bias=bias)
        assert isinstance(output, Tensor)
        return output

    return attend


def _identity(*projections: nn.Linear) -> None:
    for projection in projections:
        nn.init.eye_(projection.weight)


def _hidden(query: Tensor) -> Tensor:
    """`[B, H, T, D]` as the hidden states `[B, T, H D]` of a module."""
    return query.transpose(1, 2).flatten(2)


def _heads(hidden: Tensor, work: Work) -> Tensor:
    split: Tensor = hidden.unflatten(-1, (work.heads, work.width))
    return split.transpose(1, 2)
