"""Attention with a bias: any length, and dropout in training only."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from conformance import allocations
from torch import Tensor, nn
from torch.nn import functional as F

import relpos
from relpos import backends

BIAS_SCHEMES = ["t5", "t5_causal", "alibi", "shaw_bias", "deberta_p2p"]


def biased(kind: str, heads: int) -> relpos.Scheme:
    """A scheme whose whole effect is a dense bias, with random tables."""
    builders: dict[str, Callable[[], relpos.Scheme]] = {
        "t5": lambda: relpos.T5Bias(heads, num_buckets=16, max_distance=30, scale=None),
        "t5_causal": lambda: relpos.T5Bias(heads, num_buckets=16, max_distance=30, bidirectional=False, scale=None),
        "alibi": lambda: relpos.ALiBi(heads),
        "shaw_bias": lambda: relpos.ShawBias(heads, max_distance=9),
        "deberta_p2p": lambda: relpos.Disentangled(heads, 16, 8, 20, parts=("p2p",)),
    }
    scheme = builders[kind]()
    for table in scheme.parameters():
        nn.init.normal_(table)
    return scheme


def tolerance(dtype: torch.dtype) -> float:
    """Rounding of outputs of about one, in a sum over a few dozen keys."""
    return 32 * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_k1_a_fast_path_trains_the_table(is_causal: bool, backend: str) -> None:
    """No gradient through the bias, so T5 tables cannot be trained."""
    scheme = relpos.T5Bias(3, num_buckets=8, max_distance=16, scale=None)
    nn.init.normal_(scheme.table)
    inputs = [torch.randn(1, 3, 9, 16, requires_grad=True) for _ in range(3)]
    exact = copy.deepcopy(scheme).double()
    dense = exact.bias(9)
    if is_causal:
        dense = dense.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    query, key, value = (tensor.detach().double().requires_grad_() for tensor in inputs)
    scores = query @ key.mT / 4 + dense
    expected = torch.autograd.grad((scores.softmax(-1) @ value).sin().sum(), [exact.table, query, key, value])
    output = relpos.attention(*inputs, scheme, is_causal=is_causal, backend=backend)
    got = torch.autograd.grad(output.sin().sum(), [scheme.table, *inputs])
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0.0, atol=1e-6 * max(1.0, theirs.abs().max().item()))
    assert (got[0][:, 4] == 0).all()  # the row that a bidirectional table never uses: a zero, not nothing


def extra_peak(length: int, kind: str, is_causal: bool) -> tuple[int, int]:
    """Bytes that a training step holds at most beyond its inputs, and its largest single allocation."""
    scheme = biased(kind, 8)
    inputs = [torch.randn(1, 8, length, 16, requires_grad=True) for _ in range(3)]
    sizes = allocations(lambda: relpos.attention(*inputs, scheme, is_causal=is_causal).sum().backward())
    return max(itertools.accumulate(sizes)), max(sizes)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["t5", "alibi", "shaw_bias"])
def test_k4_memory_grows_with_the_length_and_not_its_square(kind: str, is_causal: bool) -> None:
    """A bias of heads x L x L: stride overflow at 8k, or out of memory."""
    if next(iter(backends.BACKENDS)) == "blocked":
        pytest.skip("its blocks grow up to 4096 tokens and are linear from there on: tests/backends/test_blocked.py")
    (small, _), (large, largest) = (extra_peak(length, kind, is_causal) for length in (2048, 4096))
    assert large <= 2.6 * small
    assert largest < 4096 * 4096  # bytes: a quarter of one head's scores


@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("length", "batch"), [(21, 1), (37, 3), (1, 3), (8, 1), (67, 2)])
@pytest.mark.parametrize("kind", BIAS_SCHEMES)
def test_k5_any_length_and_batch(kind: str, length: int, batch: int, is_causal: bool, backend: str) -> None:
    """Lengths that are not a multiple of 8 are rejected: people over-allocate and slice."""
    scheme = biased(kind, 6)
    query, key, value = torch.randn(3, batch, 6, length, 16).unbind()
    dense = scheme.bias(length)
    if is_causal:
        dense = dense.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    scale = relpos.explain(query, key, value, scheme).scale
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=dense, scale=scale)
    got = relpos.attention(query, key, value, scheme, is_causal=is_causal, backend=backend)
    torch.testing.assert_close(got, expected, rtol=0.0, atol=tolerance(torch.float32))


@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("queries", "keys"), [(1, 37), (13, 19)])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("kind", BIAS_SCHEMES)
def test_k5_unequal_lengths_groups_and_dtypes(
    kind: str, groups: int, queries: int, keys: int, dtype: torch.dtype, backend: str
) -> None:
    """The same, for chunks of queries, grouped heads and other dtypes."""
    scheme = biased(kind, 6)
    query = torch.randn(2, 6, queries, 16).to(dtype)
    key, value = torch.randn(2, 2, groups, keys, 16).to(dtype).unbind()
    start = keys - queries
    wide = torch.promote_types(dtype, torch.float32)
    dense = scheme.to(wide).bias(queries, keys, start)
    repeated = [tensor.to(wide).repeat_interleave(6 // groups, dim=1) for tensor in (key, value)]
    scale = scheme.scale
    expected = F.scaled_dot_product_attention(query.to(wide), repeated[0], repeated[1], attn_mask=dense, scale=scale)
    positions = relpos.Positions.arange(queries, keys, query_start=start)
    got = relpos.attention(query, key, value, scheme, positions=positions, backend=backend)
    assert got.dtype == dtype
    # The reference rounds once; torch's kernel also rounds every probability, before it multiplies with the values.
    rounded = 0.0 if backend == "reference" else torch.finfo(dtype).eps * value.abs().max().item()
    torch.testing.assert_close(got.to(wide), expected, rtol=torch.finfo(dtype).eps, atol=tolerance(wide) + rounded)


LAYER_SCHEMES = ["none", "rope", "shaw", *BIAS_SCHEMES]


def layer(kind: str, dropout: float, is_causal: bool = False) -> relpos.RelativeAttention:
    """A layer, the same for the same kind whatever its dropout."""
    torch.manual_seed(1)
    schemes = {"none": None, "rope": relpos.Rotary(16), "shaw": relpos.Shaw(2, 16, 3)}
    scheme = schemes[kind] if kind in schemes else biased(kind, 2)
    return relpos.RelativeAttention(32, 2, scheme, dropout=dropout, is_causal=is_causal)


@pytest.mark.parametrize("dropout", [0.5, 0.1, 0.9])
@pytest.mark.parametrize("kind", LAYER_SCHEMES)
def test_k8_no_dropout_in_eval(kind: str, dropout: float) -> None:
    """Functional attention applies dropout in eval."""
    x = torch.randn(2, 9, 32)
    dropping = layer(kind, dropout).eval()
    first, second = dropping(x), dropping(x)
    assert torch.equal(first, second)
    assert torch.equal(first, layer(kind, 0.0)(x))


@pytest.mark.parametrize("kind", ["none", "t5"])
def test_k8_no_dropout_in_eval_with_a_cache(kind: str) -> None:
    """The same, while decoding."""
    x = torch.randn(2, 9, 32)
    dropping, plain = layer(kind, 0.5, is_causal=True).eval(), layer(kind, 0.0, is_causal=True)
    _, cache = dropping(x[:, :8], cache=relpos.KVCache())
    step, _ = dropping(x[:, 8:], cache=cache)
    torch.testing.assert_close(step, plain(x)[:, 8:])


@pytest.mark.parametrize("kind", LAYER_SCHEMES)
def test_k8_dropout_in_training(kind: str) -> None:
    """The other side: in training two calls differ, and the functional call drops whenever it is told to."""
    x = torch.randn(2, 9, 32)
    dropping = layer(kind, 0.5)
    assert dropping.training
    assert not torch.equal(dropping(x), dropping(x))
    query = torch.randn(1, 2, 40, 16)
    kept: Tensor = relpos.attention_weights(query, query, query, dropout_p=0.5) != 0.0
    assert 0.4 < kept.double().mean().item() < 0.6  # 3200 draws: six standard deviations are 0.053
