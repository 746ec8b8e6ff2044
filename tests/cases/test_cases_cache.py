"""Decoding with a cache, and fewer queries than keys: every relative scheme must know where its query stands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from conformance import ABSOLUTE, DISTANCE, EMBED_DIM, HEAD_DIM, HEADS, RELATIVE, Built, build, name_of, tensors
from torch import Tensor, nn

import relpos
from relpos.backends import BACKENDS

EXACT = 1e-12  # float64, outputs of about one

every_relative_scheme = pytest.mark.parametrize("built", RELATIVE, ids=name_of)


def causal_layer(scheme: relpos.Scheme | Sequence[relpos.Scheme] | None) -> relpos.RelativeAttention:
    return relpos.RelativeAttention(EMBED_DIM, HEADS, scheme, is_causal=True).double()


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, EMBED_DIM, dtype=torch.float64)


def in_chunks(layer: relpos.RelativeAttention, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The outputs of a run that gives the tokens of `x` piece by piece."""
    cache, outputs = relpos.KVCache(), []
    for chunk in x.split(list(sizes), dim=1):
        y, cache = layer(chunk, cache=cache)
        outputs.append(y)
    assert cache.length == x.shape[1]
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize(
    ("slope", "expected"), [(0.5, [0.1015, 0.1674, 0.2760, 0.4551]), (0.25, [0.1653, 0.2122, 0.2725, 0.3499])]
)
def test_g1_one_query_sees_the_bias_of_every_key(slope: float, expected: list[float]) -> None:
    """Bias built from the query's length: one-token steps broadcast a zero, and ALiBi is off during decoding."""
    query, key = torch.zeros(1, 1, 1, HEAD_DIM), torch.zeros(1, 1, 4, HEAD_DIM)
    got = relpos.attention_weights(query, key, key, relpos.ALiBi(1, slopes=[slope]), is_causal=True)
    torch.testing.assert_close(got[0, 0, 0], torch.tensor(expected), rtol=0.0, atol=5e-5)


@pytest.mark.parametrize("sizes", [[6, 1, 1, 1], [4, 3, 2]])
@every_relative_scheme
def test_g1_cached_steps_equal_the_full_run(built: Built, sizes: list[int]) -> None:
    """The same, for every relative scheme: token by token after a prompt, and in chunks (which crashed)."""
    layer, x = causal_layer(build(built)), tokens(9)
    torch.testing.assert_close(in_chunks(layer, x, sizes), layer(x), rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [2, 6])
def test_g1_cached_steps_in_other_dtypes(heads: int, dtype: torch.dtype) -> None:
    """The same, for ALiBi in the dtypes of models, with grouped heads."""
    layer = relpos.RelativeAttention(8 * heads, heads, relpos.ALiBi(heads), is_causal=True, num_kv_heads=2).to(dtype)
    x = torch.randn(2, 9, 8 * heads).to(dtype)
    tolerance = 4 * torch.finfo(dtype).eps  # outputs below 1, two roundings each
    torch.testing.assert_close(in_chunks(layer, x, [6, 1, 1, 1]), layer(x), rtol=0.0, atol=tolerance)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "cached", "expected"),
    [(32, 128, 20, {0: 17, 19: 1, 20: 0}), (32, 128, 200, {0: 31, 200: 0}), (8, 20, 12, {0: 6, 9: 3, 11: 1, 12: 0})],
)
def test_g2_a_t5_step_stands_after_its_cache(
    num_buckets: int, max_distance: int, cached: int, expected: dict[int, int]
) -> None:
    """T5 decoding uses a wrong relative offset after the first token."""
    scheme = relpos.T5Bias(1, num_buckets, max_distance, bidirectional=False)
    with torch.no_grad():
        scheme.table[0] = torch.arange(num_buckets)
    bias = scheme.bias(1, cached + 1)[0, 0]
    assert {key: int(bias[key]) for key in expected} == expected
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, cached + 1, 4)
    got = relpos.attention_weights(query, key, key, scheme, is_causal=True)[0, 0, 0]
    torch.testing.assert_close(got, bias.softmax(-1))


@pytest.mark.parametrize(("memories", "queries"), [(3, 4), (1, 1), (8, 2)])
@pytest.mark.parametrize("kind", ["alibi", "t5"])
def test_g4_memories_shift_the_distance(kind: str, memories: int, queries: int) -> None:
    """With memories, the bias is not shifted by the difference of keys and queries."""
    distance = relpos.Positions.arange(queries, memories + queries).distance()
    assert distance[0, 0].item() == -memories  # query 0 to memory 0: 3 tokens back
    assert distance[0, memories].item() == 0
    scheme: relpos.Scheme = relpos.ALiBi(1, slopes=[1.0])
    if kind == "t5":
        scheme = relpos.T5Bias(1, num_buckets=64, max_distance=128)
        nn.init.normal_(scheme.table)
    square = scheme.bias(memories + queries)
    assert torch.equal(scheme.bias(queries, memories + queries), square[:, memories:])
    if kind == "alibi":
        assert torch.equal(scheme.bias(queries, memories + queries)[0], -distance.abs().float())


@pytest.mark.parametrize("segments", [[4, 4], [3, 1, 4]])
@every_relative_scheme
def test_g4_segments_with_memory_equal_one_pass(built: Built, segments: list[int]) -> None:
    """The same, for every relative scheme: segments that read the earlier ones as memories equal one pass."""
    layer, x = causal_layer(build(built)), tokens(8)
    start, outputs = 0, []
    for size in segments:
        stop = start + size
        positions = relpos.Positions.arange(size, stop, query_start=start)
        outputs.append(layer(x[:, start:stop], context=x[:, :stop], positions=positions))
        start = stop
    torch.testing.assert_close(torch.cat(outputs, dim=1), layer(x), rtol=0.0, atol=EXACT)
    torch.testing.assert_close(in_chunks(layer, x, segments), layer(x), rtol=0.0, atol=EXACT)


@pytest.mark.parametrize("scheme", [None, relpos.NoPE(), relpos.T5Bias(1), relpos.ShawBias(1, 3), relpos.Rotary(4)])
@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (1, 3), (4, 4), (3, 9)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_g5_causal_attention_ends_at_the_last_key(
    backend: str, queries: int, keys: int, scheme: relpos.Scheme | None
) -> None:
    """is_causal anchors at the top left: with a cache, the history is masked out."""
    query, key = torch.zeros(1, 1, queries, 4), torch.zeros(1, 1, keys, 4)
    value = torch.arange(1.0, keys + 1)[:, None].expand(1, 1, keys, 4)

    def averages(positions: relpos.Positions | None) -> list[float]:
        out = relpos.attention(query, key, value, scheme, is_causal=True, positions=positions, backend=backend)
        numbers: list[float] = out[0, 0, :, 0].tolist()
        return numbers

    last_at_end = [(keys - queries + 2 + row) / 2 for row in range(queries)]  # 2.5 and 3.0 for 2 of 5
    first_at_first = [(2 + row) / 2 for row in range(queries)]  # 1.0 and 1.5
    assert averages(None) == pytest.approx(last_at_end, rel=1e-6)
    assert averages(relpos.Positions.arange(queries, keys, query_start=0)) == pytest.approx(first_at_first, rel=1e-6)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize(
    ("queries", "keys", "start", "distances"),
    [
        (2, 5, 3, [[3, 2, 1, 0, 1], [4, 3, 2, 1, 0]]),
        (2, 3, 0, [[0, 1, 2], [1, 0, 1]]),
        (1, 4, 7, [[7, 6, 5, 4]]),
        (3, 1, -2, [[2], [1], [0]]),
    ],
)
def test_g7_unequal_lengths_need_an_anchor(
    queries: int, keys: int, start: int, distances: list[list[int]], backend: str
) -> None:
    """Training call and cached call disagree for ALiBi that is not causal: nobody said where the queries stand."""
    query, key = torch.zeros(1, 1, queries, HEAD_DIM), torch.zeros(1, 1, keys, HEAD_DIM)
    value = torch.eye(keys, HEAD_DIM)[None, None]
    scheme = relpos.ALiBi(1, slopes=[0.5])
    positions = relpos.Positions.arange(queries, keys, query_start=start)
    got = relpos.attention(query, key, value, scheme, positions=positions, backend=backend)
    expected = (-0.5 * torch.tensor(distances)).softmax(-1)
    torch.testing.assert_close(got[0, 0, :, :keys], expected)
    with pytest.raises(ValueError, match="query_start"):
        relpos.attention(query, key, value, scheme, backend=backend)


@pytest.mark.parametrize("built", DISTANCE, ids=name_of)
def test_g7_every_relative_scheme_needs_the_anchor(built: Built) -> None:
    """The same, for every relative scheme; the anchored call equals those rows of the square."""
    scheme = build(built)
    query, key, value = tensors(query_len=5)
    with pytest.raises(ValueError, match="query_start"):
        relpos.attention(query[:, :, 3:], key, value, scheme)
    positions = relpos.Positions.arange(2, 5, query_start=3)
    got = relpos.attention(query[:, :, 3:], key, value, scheme, positions=positions)
    square = relpos.attention(query, key, value, scheme)
    torch.testing.assert_close(got, square[:, :, 3:], rtol=0.0, atol=EXACT)


class Decoder(nn.Module):
    """A small causal language model: an absolute scheme on the input, or a relative one in every layer."""

    def __init__(self, scheme: relpos.Scheme) -> None:
        super().__init__()
        self.absolute = scheme if scheme.encodes == "position" else None
        self.tokens = nn.Embedding(11, EMBED_DIM)
        self.layers = nn.ModuleList(causal_layer(None if self.absolute else scheme) for _ in range(2))
        self.head = nn.Linear(EMBED_DIM, 11)
        self.double()

    def forward(self, ids: Tensor, caches: list[relpos.KVCache]) -> tuple[Tensor, list[relpos.KVCache]]:
        start = caches[0].length
        x = self.tokens(ids)
        if isinstance(self.absolute, relpos.LearnedAbsolute | relpos.Sinusoidal):
            x = self.absolute.embed(x, relpos.Positions.arange(ids.shape[1], query_start=start))
        grown = []
        for layer, cache in zip(self.layers, caches, strict=True):
            y, cache = layer(x, cache=cache)
            x = x + y
            grown.append(cache)
        return self.head(x), grown


@pytest.mark.parametrize(("prompt", "steps"), [(6, 3), (1, 4)])
@pytest.mark.parametrize("built", [*RELATIVE, *ABSOLUTE], ids=name_of)
def test_g10_decoding_equals_prefill(built: Built, prompt: int, steps: int) -> None:
    """Every decoded token gets position 0, or the offset grows by the prompt's length twice."""
    model = Decoder(build(built))
    ids = torch.randint(11, (2, prompt + steps))
    expected, _ = model(ids, [relpos.KVCache()] * 2)
    logits, caches = model(ids[:, :prompt], [relpos.KVCache()] * 2)
    outputs = [logits]
    for step in range(prompt, prompt + steps):
        assert caches[0].length == step  # positions 6, 7, 8 after a prompt of 6
        logits, caches = model(ids[:, step : step + 1], caches)
        outputs.append(logits)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=0.0, atol=EXACT)


@pytest.mark.parametrize(("cached", "new"), [(6, 1), (7, 1), (8, 1), (0, 6), (3, 4)])
def test_g10_new_tokens_stand_after_the_cached_ones(cached: int, new: int) -> None:
    """The same: the positions themselves, and the rotation that a step applies."""
    positions = relpos.Positions.arange(new, cached + new)
    assert positions.query.tolist() == list(range(cached, cached + new))
    assert positions.key.tolist() == list(range(cached + new))
    query, key = torch.randn(1, 1, new, HEAD_DIM), torch.randn(1, 1, cached + new, HEAD_DIM)
    inv_freq, _ = relpos.functional.rope_inv_freq(HEAD_DIM)
    turned = [
        relpos.functional.apply_rotary(x, at, inv_freq, "half")
        for x, at in ((query, torch.arange(cached, cached + new)), (key, torch.arange(cached + new)))
    ]
    scores = turned[0] @ turned[1].transpose(-1, -2) / math.sqrt(HEAD_DIM)
    later = torch.arange(cached + new) > torch.arange(cached, cached + new)[:, None]
    expected = scores.masked_fill(later, -math.inf).softmax(-1)
    torch.testing.assert_close(
        relpos.attention_weights(query, key, key, relpos.Rotary(HEAD_DIM), is_causal=True), expected
    )
