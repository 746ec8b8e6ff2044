"""What cannot be meant is refused: the message names the call, what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conformance import tensors

import relpos
from relpos import Positions, functional

Q, K, V = tensors()
LONG = tensors(key_len=9)
FLAT = Q[0]


def attend(*args: object, **kwargs: object) -> object:
    return relpos.attention(*(args or (Q, K, V)), **kwargs)


VALUES: list[tuple[str, Callable[[], object], str]] = [
    ("3-D query", lambda: attend(FLAT, K, V), "query of shape [4, 6, 8]"),
    ("batch", lambda: attend(Q[:1], K, V), "query [1, 4, 6, 8]"),
    ("width", lambda: attend(Q[..., :4], K, V), "query [2, 4, 6, 4]"),
    ("key length", lambda: attend(Q, K[:, :, :5], V), "key [2, 4, 5, 8]"),
    ("heads that do not divide", lambda: attend(Q, K[:, :3], V[:, :3]), "4 heads cannot share 3"),
    ("no key heads", lambda: attend(Q, K[:, :0], V[:, :0]), "4 heads cannot share 0"),
    ("scheme of other heads", lambda: attend(Q, K, V, relpos.ALiBi(3)), "ALiBi(num_heads=3)"),
    ("scheme of other width", lambda: attend(Q, K, V, relpos.Rotary(16)), "Rotary(head_dim=16)"),
    ("absolute scheme", lambda: attend(Q, K, V, relpos.Sinusoidal(32)), "Sinusoidal, an absolute scheme"),
    ("absolute in a list", lambda: attend(Q, K, V, [relpos.LearnedAbsolute(32, 8)]), "LearnedAbsolute, an absolute"),
    ("two rotations", lambda: attend(Q, K, V, [relpos.Rotary(8), relpos.Rotary(8)]), "two rotations"),
    ("two scales", lambda: attend(Q, K, V, [relpos.T5Bias(4), relpos.Disentangled(4, 8)]), "different scales"),
    ("no anchor", lambda: attend(*LONG, relpos.ALiBi(4)), "query_start"),
    ("no anchor, told lengths only", lambda: attend(*LONG, relpos.ALiBi(4), positions=Positions.arange(6, 9)), "query"),
    ("no anchor for a window", lambda: attend(*LONG, window=2), "query_start"),
    ("mask shape", lambda: attend(attn_mask=torch.ones(6, 5, dtype=torch.bool)), "attn_mask of shape [6, 5]"),
    ("3-D mask", lambda: attend(attn_mask=torch.ones(2, 6, 6, dtype=torch.bool)), "attn_mask of shape [2, 6, 6]"),
    ("key mask shape", lambda: attend(key_mask=torch.ones(2, 5, dtype=torch.bool)), "key_mask of shape [2, 5]"),
    ("lengths shape", lambda: attend(lengths=torch.tensor([3])), "lengths of shape [1]"),
    ("negative window", lambda: attend(window=-1), "window=-1"),
    ("dropout", lambda: attend(dropout_p=1.5), "dropout_p=1.5"),
    ("scale", lambda: attend(scale=float("nan")), "scale=nan"),
    ("positions of another length", lambda: attend(positions=Positions.arange(5)), "query positions of shape [5]"),
    ("positions of another batch", lambda: attend(positions=Positions.arange(6, 6, torch.arange(3))), "[3, 6]"),
    ("unknown backend", lambda: attend(backend="referense"), "did you mean 'reference'?"),
    ("value width", lambda: attend(Q, K, V[..., :4], relpos.Shaw(4, 8, 3)), "value of width 4"),
    ("device", lambda: attend(Q, K.to("meta"), V), "key on meta"),
    ("scheme on another device", lambda: attend(Q, K, V, relpos.T5Bias(4).to("meta")), "T5Bias on meta"),
    ("unknown scheme", lambda: relpos.make("alibbi"), "did you mean 'alibi'?"),
    ("table too short", lambda: relpos.LearnedAbsolute(8, 16).embed(torch.zeros(1, 17, 8)), "position 16"),
    ("offset uses rows", lambda: relpos.LearnedAbsolute(8, 16, 2).embed(torch.zeros(1, 15, 8)), "position 14"),
    (
        "never wrapped",
        lambda: relpos.LearnedAbsolute(8, 16).embed(
            torch.zeros(1, 1, 8), Positions.explicit(torch.tensor([-1]), torch.tensor([-1]))
        ),
        "position -1",
    ),
    ("embedding width", lambda: relpos.Sinusoidal(8).embed(torch.zeros(1, 2, 9)), "x of shape [1, 2, 9]"),
    ("t5 distance inside the exact range", lambda: relpos.T5Bias(4, 32, 8), "max_distance=8"),
    ("t5 causal", lambda: relpos.T5Bias(4, 32, 16, bidirectional=False), "max_distance=16"),
    ("t5 zero distance", lambda: relpos.T5Bias(4, 32, 0), "max_distance=0"),
    ("t5 too few buckets", lambda: relpos.T5Bias(4, 2), "num_buckets=2"),
    ("t5 odd buckets", lambda: relpos.T5Bias(4, 31), "num_buckets=31"),
    ("deberta distance", lambda: relpos.Disentangled(4, 8, 256, 128), "max_distance=128"),
    ("deberta parts", lambda: relpos.Disentangled(4, 8, parts=("c2c",)), "c2c"),
    ("deberta no parts", lambda: relpos.Disentangled(4, 8, parts=()), "parts=()"),
    ("huang method", lambda: relpos.Huang(4, 8, 3, method=5), "method=5"),
    ("shaw limits", lambda: relpos.Shaw(4, 8, (0, 0)), "max_distance=(0, 0)"),
    ("alibi slopes", lambda: relpos.ALiBi(4, slopes=[1.0, 2.0]), "slopes=[1.0, 2.0]"),
    ("alibi infinite slope", lambda: relpos.ALiBi(1, slopes=[float("inf")]), "slopes[0]=inf"),
    ("bias scale", lambda: relpos.ALiBi(3, bias_scale=float("nan")), "bias_scale=nan"),
    ("infinite base", lambda: relpos.Rotary(8, base=float("inf")), "base=inf"),
    ("deberta parts of None", lambda: relpos.Disentangled(2, 4, 8, 16, parts=None), "parts=()"),
    ("layer of other heads", lambda: relpos.RelativeAttention(32, 4, relpos.ALiBi(3)), "ALiBi(num_heads=3)"),
    ("layer dropout", lambda: relpos.RelativeAttention(32, 4, dropout=2.0), "dropout=2.0"),
    ("no width", lambda: attend(Q[..., :0], K[..., :0], V), "query [2, 4, 6, 0]"),
    ("mask of other numbers", lambda: Positions.from_mask(torch.tensor([[0, 2]])), "other numbers"),
    ("two batch sizes", lambda: Positions.explicit(torch.zeros(2, 3).long(), torch.zeros(3, 3).long()), "query [2, 3]"),
    ("bias of vectors as a module", lambda: relpos.RelativeBias(4, "shaw", head_dim=8, max_distance=3), "Shaw.bias"),
    ("cache of another batch", lambda: relpos.KVCache(K, V).append(K[:1], V[:1]), "keys [1, 4, 6, 8]"),
    ("no heads", lambda: relpos.ALiBi(0), "num_heads=0"),
    (
        "rotary positions",
        lambda: functional.apply_rotary(torch.ones(2, 3, 5, 4), torch.ones(3, 5).long(), torch.ones(2), "half"),
        "positions of shape [3, 5]",
    ),
    ("odd rotary", lambda: relpos.Rotary(8, 3), "rotary_dim=3"),
    ("wide rotary", lambda: relpos.Rotary(8, 10), "rotary_dim=10"),
    ("rotary layout", lambda: relpos.Rotary(8, layout="hlf"), "did you mean 'half'?"),
    ("base", lambda: relpos.Rotary(8, base=0.0), "base=0.0"),
    ("heads slice", lambda: relpos.ALiBi(8).heads(4, 9), "stop=9"),
    ("bias of a rotation", lambda: relpos.Rotary(8).bias(4), "Rotary.bias"),
    ("bias of vectors", lambda: relpos.Shaw(4, 8, 3).bias(4), "Shaw.bias"),
    ("bias of an absolute scheme", lambda: relpos.Sinusoidal(8).bias(4), "Sinusoidal"),
    ("negative length", lambda: Positions.arange(-1), "query_len=-1"),
    ("cu_seqlens", lambda: Positions.packed(torch.tensor([1, 3])), "cu_seqlens=[1, 3]"),
    ("falling cu_seqlens", lambda: Positions.packed(torch.tensor([0, 3, 2])), "cu_seqlens=[0, 3, 2]"),
    ("layer heads", lambda: relpos.RelativeAttention(30, 4), "embed_dim=30"),
    ("layer key heads", lambda: relpos.RelativeAttention(32, 4, num_kv_heads=3), "num_heads=4"),
    ("layer with an absolute scheme", lambda: relpos.RelativeAttention(32, 4, relpos.Sinusoidal(32)), "Sinusoidal"),
]

TYPES: list[tuple[str, Callable[[], object], str]] = [
    ("scheme by number", lambda: attend(Q, K, V, 5), "scheme of int"),
    ("scheme class", lambda: attend(Q, K, V, relpos.T5Bias), "scheme of T5Bias"),
    (
        "layer with a module that is no scheme",
        lambda: relpos.RelativeAttention(32, 4, [torch.nn.Linear(1, 1)]),
        "Linear",
    ),
    ("layer by name", lambda: relpos.RelativeAttention(32, 4, "rope"), "scheme of str"),
    ("layer flag", lambda: relpos.RelativeAttention(32, 4, is_causal=1), "is_causal=1"),
    ("cache", lambda: relpos.RelativeAttention(32, 4)(torch.zeros(1, 2, 32), cache=True), "cache of bool"),
    ("mask of a list", lambda: Positions.from_mask([[0, 1]]), "mask of list"),
    ("make without arguments", lambda: relpos.make("t5"), "no arguments"),
    ("make of another scheme", lambda: relpos.RelativeBias(4, mode="rope"), "num_heads"),
    ("make by number", lambda: relpos.make(3), "scheme 3"),
    ("no tensor", lambda: attend([[1.0]], K, V), "query of list"),
    ("integers", lambda: attend(Q.long(), K, V), "query of torch.int64"),
    ("mixed dtypes", lambda: attend(Q, K.float(), V), "key of torch.float32 with query of torch.float64"),
    ("float mask", lambda: attend(attn_mask=torch.zeros(6, 6)), "attn_mask of torch.float32"),
    ("integer key mask", lambda: attend(key_mask=torch.ones(2, 6, dtype=torch.int64)), "key_mask of torch.int64"),
    ("float lengths", lambda: attend(lengths=torch.ones(2)), "lengths of torch.float32"),
    ("scheme by name", lambda: attend(Q, K, V, "t5"), "scheme of str"),
    ("is_causal", lambda: attend(is_causal=1), "is_causal=1"),
    ("scale", lambda: attend(scale=torch.tensor(1.0)), "scale=tensor(1.)"),
    ("window", lambda: attend(window=1.5), "window=1.5"),
    ("window of three", lambda: attend(window=(1, 2, 3)), "window=(1, 2, 3)"),
    ("positions", lambda: attend(positions=torch.arange(6)), "positions of Tensor"),
    ("float positions", lambda: Positions.explicit(torch.ones(2), torch.ones(2)), "query of torch.float32"),
    ("float start", lambda: Positions.arange(2, 3, 1.0), "query_start=1.0"),
    ("float ids", lambda: Positions.from_position_ids(torch.ones(2)), "ids of torch.float32"),
    ("float mask for positions", lambda: Positions.from_mask(torch.ones(1, 2)), "mask of torch.float32"),
    (
        "float distance",
        lambda: functional.t5_bucket(torch.ones(1), bidirectional=True, num_buckets=32, max_distance=128),
        "distance of torch.float32",
    ),
    ("integer embeddings", lambda: relpos.Sinusoidal(4).embed(torch.ones(1, 3, 4).long()), "x of torch.int64"),
    ("embeddings of a list", lambda: relpos.LearnedAbsolute(4, 8).embed([1]), "x of list"),
    ("offset", lambda: relpos.LearnedAbsolute(4, 8, offset=1.5), "offset=1.5"),
    ("method", lambda: relpos.Huang(2, 4, 3, method=4.0), "method=4.0"),
    ("flag", lambda: relpos.T5Bias(3, bidirectional=None), "bidirectional=None"),
    ("declared scale", lambda: relpos.T5Bias(3, scale="x"), "scale='x'"),
    ("slopes of lists", lambda: relpos.ALiBi(2, slopes=[[0.5], [0.2]]), "slopes[0]=[0.5]"),
    ("heads", lambda: relpos.T5Bias(4).heads(0.0, 2), "start=0.0"),
    ("embed", lambda: relpos.Sinusoidal(8).embed(torch.zeros(1, 2, 8), torch.arange(2)), "positions of Tensor"),
    ("heads", lambda: relpos.ALiBi(2.0), "num_heads=2.0"),
]

ALL = [(*case, ValueError) for case in VALUES] + [(*case, TypeError) for case in TYPES]


@pytest.mark.parametrize(("what", "call", "given", "error"), ALL, ids=[f"{e.__name__}-{w}" for w, _, _, e in ALL])
def test_refused_with_the_call_the_given_the_allowed_and_the_cure(
    what: str, call: Callable[[], object], given: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    message = str(raised.value)
    assert given in message
    assert all(part in message for part in (": got ", "Allowed: ", "What to do: "))


def test_a_backend_by_name_runs_or_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky:
        @staticmethod
        def why_not(call: object) -> list[str]:
            return ["it is Monday", "the moon is full"]

    monkeypatch.setitem(relpos.backends.BACKENDS, "picky", Picky)
    with pytest.raises(relpos.BackendRefused, match="it is Monday; the moon is full"):
        attend(backend="picky")
    assert issubclass(relpos.BackendRefused, ValueError)
    why = relpos.explain(Q, K, V)
    assert why.backend == "sdpa"
    assert why.refused == {
        "blocked": ["'sdpa' was chosen before it"],
        "reference": ["'sdpa' was chosen before it"],
        "picky": ["it is Monday", "the moon is full"],
    }


def test_cross_attention_needs_an_offset_and_keeps_no_cache() -> None:
    layer = relpos.RelativeAttention(32, 4, relpos.ALiBi(4)).double()
    x, context = torch.randn(2, 3, 32, dtype=torch.float64), torch.randn(2, 5, 32, dtype=torch.float64)
    for source in (context, context[:, :3]):  # equal lengths by chance are no anchor either
        with pytest.raises(ValueError, match="query_start"):
            layer(x, source)
    with pytest.raises(ValueError, match=r"x of shape \[3, 32\]"):
        layer(x[0])
    assert layer(x, context, positions=Positions.arange(3, 5, query_start=1)).shape == x.shape
    with pytest.raises(ValueError, match="context and cache"):
        layer(x, context, relpos.KVCache())
