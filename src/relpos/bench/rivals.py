"""Who does the work: attention without a bias, our backends, and what people use today.

A contender is built for a work and gives a function of query, key and value, or says why it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import relpos
from relpos.bench import content, modules
from relpos.bench.work import TASKS, Attend, Task, Work, distance_bias
from relpos.schemes import Scheme

#: The yardstick: the same attention without any bias, which computes something else.
LIMIT = "sdpa without bias"


@dataclass(frozen=True)
class Contender:
    """`prepare(work, scheme)` gives the function to time; a string says why there is none.

    `from_hidden`: an attention module with projections, set to the identity; query, key and value are all the query.
    `longest`: more pairs than of so many tokens are not timed, because a call would take seconds.
    `is_linear_in`: tasks whose memory does not grow with the square of the length.
    """

    name: str
    prepare: Callable[[Work, Scheme], Attend | str]
    from_hidden: bool = False
    longest: int | None = None
    is_linear_in: tuple[Task, ...] = ()

    def limit(self, work: Work) -> int | None:
        """Tokens past which it is not timed at this work: half as many where products have gradients, at least 1024."""
        is_slow = work.has_content and work.task == "train"
        return max(self.longest // 2, 1024) if self.longest is not None and is_slow else self.longest


def contenders() -> list[Contender]:
    """Everybody, the yardstick first."""
    return [
        Contender(LIMIT, _without_bias, is_linear_in=TASKS),
        *(_our_own(name) for name in relpos.backends.BACKENDS),
        Contender("gather by blocks", _gather, longest=4096, is_linear_in=("forward", "decode")),
        Contender("dense bias + sdpa", _dense, longest=4096),
        Contender("eager", _eager, longest=2048),
        Contender("flex, compiled", _flex, longest=2048),
        Contender("transformers", modules.transformers, from_hidden=True, longest=2048),
        Contender("x-transformers", modules.x_transformers, longest=2048),
        Contender("disentangled-flash", modules.disentangled_flash, from_hidden=True, longest=2048),
    ]


def _our_own(backend: str) -> Contender:
    if backend == "reference":
        return Contender("relpos reference", _ours(backend), longest=1024)
    return Contender(f"relpos {backend}", _ours(backend), is_linear_in=TASKS)


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


def _gather(work: Work, scheme: Scheme) -> Attend | str:
    if not work.has_content:
        return "a bias of distance alone needs no products to gather from"
    return content.by_blocks(work, scheme, content.TRAIN_BLOCK if work.task == "train" else content.BLOCK)


def _dense(work: Work, scheme: Scheme) -> Attend | str:
    if work.has_content:
        return "its bias depends on content: gather by blocks and eager make it"

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = work.bias(scheme).to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask[None])

    return attend


def _eager(work: Work, scheme: Scheme) -> Attend | str:
    if work.has_content:
        return content.whole(work, scheme)

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
    added = content.tables(work, scheme) if work.has_content else None
    if added is not None and added.value is not None:
        return "FlexAttention changes scores, and Shaw's values are added after the softmax"
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
    if added is not None:
        return _flex_content(work, added, compiled, blocks)
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


def _flex_content(work: Work, added: content.Tables, compiled: Callable[..., object], blocks: object) -> Attend:
    """The two tables of products are made before the call, and its score function reads them."""
    rows = added.rows(work)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with_query, by_row = added.products(query, key)
        with_key = None if by_row is None else by_row.mT.contiguous()

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = rows[j - i + work.queries - 1]
            bias = with_query[b, h, i, row]
            return s + bias if with_key is None else s + bias + with_key[b, h, j, row]

        output = compiled(query, key, value, score_mod=score, block_mask=blocks, scale=added.scale)
        assert isinstance(output, Tensor)
        return output

    return attend
