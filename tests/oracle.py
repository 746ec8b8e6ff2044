"""Attention by loops, in float64, and the numbers that the papers define: what every scheme is compared with.

`attend` and the rules below it are written from the papers and use nothing of relpos; only `Situation.ask` and the
`check_*` functions at the end call it. Tables are read in the public layout, so layouts are compared too.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

import relpos

TOLERANCE = 1e-10
"""For float64 results of size 1 to 100, whose sums have some dozen summands: rounding is below 1e-12."""

Rows = Sequence[Sequence[int]]
SchemeT = TypeVar("SchemeT", bound=relpos.Scheme)


@dataclass(frozen=True, eq=False)
class Pair:
    """One query and one key of one head, as the papers write them: vectors, and positions `i` and `j`."""

    batch: int
    head: int
    query: Tensor
    key: Tensor
    value: Tensor
    i: int
    j: int
    query_index: int
    key_index: int


Score = Callable[[Pair], Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Score,
    visible: Callable[[Pair], bool],
    query_positions: Rows,
    key_positions: Rows,
    value_vector: Score | None = None,
) -> Tensor:
    """`output_i = sum_j softmax_j(score_ij) (value_j + value_vector_ij)` over the visible keys, else zeros.

    `[B, H, Tq, D]`, `[B, G, Tk, D]`, `[B, G, Tk, Dv]` and one list of positions for each batch row.
    """
    batch, heads, query_len, _ = query.shape
    outputs: list[Tensor] = []
    for b, h in itertools.product(range(batch), range(heads)):
        g = h // (heads // key.shape[1])
        queries, keys, values = query[b, h].unbind(), key[b, g].unbind(), value[b, g].unbind()
        for m in range(query_len):
            pairs = [
                Pair(b, h, queries[m], keys[n], values[n], query_positions[b][m], key_positions[b][n], m, n)
                for n in range(len(keys))
            ]
            outputs.append(_mix([pair for pair in pairs if visible(pair)], score, value_vector, value.shape[-1]))
    return torch.stack(outputs).reshape(batch, heads, query_len, -1)


def _mix(pairs: list[Pair], score: Score, value_vector: Score | None, width: int) -> Tensor:
    if not pairs:
        return torch.zeros(width, dtype=torch.float64)
    scores = torch.stack([score(pair) for pair in pairs])
    weights = (scores - scores.detach().max()).exp()
    mixed = torch.zeros(width, dtype=torch.float64)
    for pair, weight in zip(pairs, (weights / weights.sum()).unbind(), strict=True):
        mixed = mixed + weight * (pair.value if value_vector is None else pair.value + value_vector(pair))
    return mixed


def clip(number: int, low: int, high: int) -> int:
    """Shaw et al. 2018, section 3.2."""
    return max(low, min(number, high))


def t5_bucket(distance: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """mesh-tensorflow, `_relative_position_bucket`, for one `relative_position = key - query`; logarithm in float32."""
    bucket, n = 0, -distance
    if bidirectional:
        num_buckets //= 2
        if n < 0:
            bucket += num_buckets
        n = abs(n)
    else:
        n = max(n, 0)
    max_exact = num_buckets // 2
    if n < max_exact:
        return bucket + n
    logarithm = torch.log(torch.tensor(float(n), dtype=torch.float32) / max_exact)
    large = max_exact + int(logarithm / math.log(max_distance / max_exact) * (num_buckets - max_exact))
    return bucket + min(large, num_buckets - 1)


def deberta_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """microsoft/DeBERTa, `make_log_bucket_position`, for one distance; both logarithms in float32."""
    mid = num_buckets // 2
    if abs(distance) <= mid:
        return distance
    numerator = torch.log(torch.tensor(float(abs(distance)), dtype=torch.float32) / mid)
    denominator = torch.log(torch.tensor((max_distance - 1) / mid, dtype=torch.float32))
    bucket = int(torch.ceil(numerator / denominator * (mid - 1))) + mid
    return bucket if distance > 0 else -bucket


def alibi_slopes(heads: int, max_exponent: float = 8.0) -> list[float]:
    """`get_slopes` of Press et al. 2022, whose `2 ** (-2 ** -(log2(n) - 3))` is `2 ** (-8 / n)`."""
    if math.log2(heads).is_integer():
        start = 2 ** (-max_exponent / heads)
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    longer = alibi_slopes(2 * closest, max_exponent)
    return alibi_slopes(closest, max_exponent) + longer[0::2][: heads - closest]


def sinusoid(position: int, channel: int, width: int, base: float, layout: str) -> float:
    """Vaswani et al. 2017, section 3.5: `PE(pos, 2i) = sin(pos / base^(2i / d))`, `PE(pos, 2i + 1) = cos(...)`."""
    if layout == "concatenated":
        sines = math.ceil(width / 2)
        channel = 2 * channel if channel < sines else 2 * (channel - sines) + 1
    angle = position / base ** (channel // 2 * 2 / width)
    return math.cos(angle) if channel % 2 else math.sin(angle)


@functools.cache
def rotation(position: int, width: int, rotary_dim: int, base: float, layout: str) -> Tensor:
    """Su et al. 2021, equation 15: the block-diagonal R of one position, identity past `rotary_dim`.

    Layout "half" is the same matrix for channels in another order: all first members of pairs, then all second ones.
    """
    blocks = torch.eye(width, dtype=torch.float64)
    for m in range(rotary_dim // 2):
        angle = position * base ** (-2 * m / rotary_dim)
        blocks[2 * m, 2 * m], blocks[2 * m, 2 * m + 1] = math.cos(angle), -math.sin(angle)
        blocks[2 * m + 1, 2 * m], blocks[2 * m + 1, 2 * m + 1] = math.sin(angle), math.cos(angle)
    if layout == "interleaved":
        return blocks
    order = [*range(0, rotary_dim, 2), *range(1, rotary_dim, 2), *range(rotary_dim, width)]
    return torch.stack([torch.stack([blocks[row, column] for column in order]) for row in order])


@dataclass(frozen=True, eq=False)
class Situation:
    """One way to call attention, told twice: in plain numbers for the loops, and in relpos' own words.

    `positions` makes what relpos is given; None leaves it to its default. `key_mask` and `documents` are 0/1 and
    document numbers for each batch row.
    """

    name: str
    query_positions: Rows
    key_positions: Rows
    positions: Callable[[], relpos.Positions] | None = None
    is_causal: bool = False
    window: int | tuple[int, int] | None = None
    key_mask: Rows | None = None
    documents: Rows | None = None
    heads: int = 3
    key_heads: int = 3

    def visible(self, pair: Pair) -> bool:
        """Whether the query may see the key."""
        if self.is_causal and pair.j > pair.i:
            return False
        if self.window is not None:
            back, ahead = (self.window, self.window) if isinstance(self.window, int) else self.window
            if not -back <= pair.j - pair.i <= ahead:
                return False
        if self.documents is not None:
            document = self.documents[pair.batch]
            if document[pair.query_index] != document[pair.key_index]:
                return False
        return self.key_mask is None or bool(self.key_mask[pair.batch][pair.key_index])

    def tensors(self, head_dim: int, value_dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Random query, key and value, float64, that want gradients."""
        query_len, key_len = len(self.query_positions[0]), len(self.key_positions[0])

        def draw(heads: int, length: int, width: int) -> Tensor:
            return torch.randn(len(self.key_positions), heads, length, width, dtype=torch.float64, requires_grad=True)

        return (
            draw(self.heads, query_len, head_dim),
            draw(self.key_heads, key_len, head_dim),
            draw(self.key_heads, key_len, value_dim),
        )

    def ask(
        self, query: Tensor, key: Tensor, value: Tensor, scheme: relpos.Scheme | None, scale: float | None = None
    ) -> Tensor:
        """What relpos answers."""
        return relpos.attention(
            query,
            key,
            value,
            scheme,
            is_causal=self.is_causal,
            positions=None if self.positions is None else self.positions(),
            window=self.window,
            key_mask=None if self.key_mask is None else torch.tensor(self.key_mask, dtype=torch.bool),
            scale=scale,
        )


def _explicit(query: Sequence[object], key: Sequence[object]) -> Callable[[], relpos.Positions]:
    return lambda: relpos.Positions.explicit(torch.tensor(query), torch.tensor(key))


BIDIRECTIONAL = Situation("bidirectional", [range(6)] * 2, [range(6)] * 2)
CAUSAL_TAIL = Situation("causal-tail", [range(4, 7)] * 2, [range(7)] * 2, is_causal=True)
GAPS = Situation(
    "gaps",
    [[-3, 0, 4, 9, 30]] * 2,
    [[-40, -3, 1, 4, 25, 31]] * 2,
    _explicit([-3, 0, 4, 9, 30], [-40, -3, 1, 4, 25, 31]),
)
SITUATIONS = [
    BIDIRECTIONAL,
    CAUSAL_TAIL,
    GAPS,
    Situation("causal", [range(6)] * 2, [range(6)] * 2, is_causal=True),
    Situation(
        "offset",
        [range(1, 4)] * 2,
        [range(6)] * 2,
        lambda: relpos.Positions.arange(3, 6, query_start=1),
        heads=2,
        key_heads=2,
    ),
    Situation(
        "causal-from-first",
        [range(3)] * 2,
        [range(6)] * 2,
        lambda: relpos.Positions.arange(3, 6, query_start=0),
        is_causal=True,
    ),
    Situation(
        "start-per-row",
        [range(2, 5), range(3)],
        [range(5)] * 2,
        lambda: relpos.Positions.arange(3, 5, query_start=torch.tensor([2, 0])),
    ),
    Situation("grouped", [range(5)] * 2, [range(5)] * 2, heads=4, key_heads=2),
    Situation("grouped-causal-tail", [range(3, 5)] * 2, [range(5)] * 2, is_causal=True, heads=4, key_heads=1),
    Situation(
        "explicit-per-row",
        [[5, 2, 9, 7], [0, 1, 11, 3]],
        [[2, 9, 5, 0, 6], [1, 0, 3, 20, -4]],
        _explicit([[5, 2, 9, 7], [0, 1, 11, 3]], [[2, 9, 5, 0, 6], [1, 0, 3, 20, -4]]),
        is_causal=True,
    ),
    Situation("window", [range(6)] * 2, [range(6)] * 2, window=(2, 1)),
    Situation("window-causal-tail", [range(2, 6)] * 2, [range(6)] * 2, is_causal=True, window=2),
    Situation("padded", [range(6)] * 2, [range(6)] * 2, key_mask=[[1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1]]),
    Situation(
        "padded-blind-rows",
        [range(5)] * 2,
        [range(5)] * 2,
        is_causal=True,
        key_mask=[[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]],
    ),
    Situation(
        "packed",
        [[0, 1, 0, 1, 2, 3]] * 2,
        [[0, 1, 0, 1, 2, 3]] * 2,
        lambda: relpos.Positions.packed(torch.tensor([0, 2, 6])),
        documents=[[0, 0, 1, 1, 1, 1]] * 2,
    ),
]


def randomize(scheme: SchemeT) -> SchemeT:
    """The scheme in float64 with every learned number drawn anew, so that none is zero, one or equal to another."""
    scheme.double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.normal_()
    return scheme


def close(actual: Tensor, expected: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    """Fail unless two tensors agree everywhere, in shape and dtype too."""
    torch.testing.assert_close(
        actual, expected, rtol=0.0, atol=tolerance, msg=lambda difference: f"{what}: {difference}"
    )


def check_attention(
    situation: Situation,
    scheme: relpos.Scheme | None,
    score: Score,
    *,
    head_dim: int = 4,
    value_vector: Score | None = None,
    scale: float | None = None,
) -> None:
    """Compare relpos' attention with the loops: the output, and the gradients of q, k, v and of every table."""
    value_dim = head_dim + 1 if value_vector is None else head_dim
    inputs = dict(zip(("query", "key", "value"), situation.tensors(head_dim, value_dim), strict=True))
    leaves = inputs if scheme is None else inputs | dict(scheme.named_parameters())
    actual = situation.ask(**inputs, scheme=scheme, scale=scale)
    expected = attend(
        **inputs,
        score=score,
        visible=situation.visible,
        query_positions=situation.query_positions,
        key_positions=situation.key_positions,
        value_vector=value_vector,
    )
    close(actual, expected, "output")
    weight = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad(output, list(leaves.values()), weight, materialize_grads=True)
        for output in (actual, expected)
    )
    for name, one, other in zip(leaves, ours, theirs, strict=True):
        close(one, other, f"gradient of {name}")


def check_heads(scheme: relpos.Scheme, head_dim: int = 4) -> None:
    """Compare heads 1 and 2 of three, alone, with what they do among all three; and that they are a copy."""
    query, key, value = BIDIRECTIONAL.tensors(head_dim, head_dim)
    whole = BIDIRECTIONAL.ask(query, key, value, scheme)[:, 1:3].detach()
    part = scheme.heads(1, 3)
    alone = BIDIRECTIONAL.ask(query[:, 1:3], key[:, 1:3], value[:, 1:3], part)
    close(alone, whole, "heads 1 and 2")
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.zero_()
    close(BIDIRECTIONAL.ask(query, key, value, scheme)[:, 1:3], whole, "the whole after its copy changed")


def dense(heads: int, query_positions: Sequence[int], key_len: int, bias: Callable[[int, int, int], Tensor]) -> Tensor:
    """`[H, Tq, Tk]` of `bias(head, i, j)`, keys at 0, 1, ..."""
    rows = [[torch.stack([bias(h, i, j) for j in range(key_len)]) for i in query_positions] for h in range(heads)]
    return torch.stack([torch.stack(row) for row in rows])


def state_shapes(scheme: relpos.Scheme) -> dict[str, tuple[int, ...]]:
    """What a state dict holds, by name and shape."""
    return {name: tuple(tensor.shape) for name, tensor in scheme.state_dict().items()}
