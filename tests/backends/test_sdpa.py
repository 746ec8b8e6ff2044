"""The `sdpa` backend against `reference`, whole outputs and every gradient, and what it must never do."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from conformance import HEAD_DIM, HEADS, RELATIVE, Built, allocations, build, name_of, tensors
from layouts import LAYOUTS, ByKey, columns_first, compare, expanded, run, transposed, wide_hole, with_garbage
from torch import Tensor
from torch.nn import functional as F

import relpos
from relpos import Positions
from relpos.backends.sdpa import flash

ACCEPTED: list[Built] = [
    ("nope", {}),
    ("rope", {}),
    ("rope", {"rotary_dim": 4, "base": 100.0}),
    ("rope", {"layout": "interleaved"}),
    ("t5", {}),
    ("t5", {"bidirectional": False, "num_buckets": 8, "max_distance": 20, "bias_scale": 0.5, "scale": None}),
    ("shaw_bias", {}),
    ("shaw_bias", {"symmetric": True}),
    ("alibi", {}),
    ("alibi", {"learned": True}),
    ("alibi", {"slopes": [0.5, -0.25, 0.0, 1.0], "bias_scale": 0.3}),
    ("deberta", {"parts": ("p2p",), "num_buckets": 4, "max_distance": 10}),
]
LENGTHS = [21, *(pytest.param(length, marks=pytest.mark.shapes_unchecked) for length in (1, 7, 129, 257, 600))]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
accepted = pytest.mark.parametrize("built", ACCEPTED, ids=name_of)
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def test_every_scheme_that_is_accepted_is_tested() -> None:
    """No setting of a scheme that the conformance tests know is accepted and missing here."""
    chosen = [built for built in RELATIVE if relpos.explain(*tensors(), build(built)).backend == "sdpa"]
    assert [built for built in chosen if built not in ACCEPTED] == []


@layouts
@accepted
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(built: Built, layout: str, length: int) -> None:
    more, call = LAYOUTS[layout]
    inputs = tensors(query_len=length, key_len=length + more, groups=HEADS if length % 2 else 2)
    scheme, arguments = build(built), call(length)
    got, expected = (run(backend, inputs, scheme, arguments) for backend in ("sdpa", "reference"))
    compare(got, expected, torch.float64)
    with torch.no_grad():
        assert torch.equal(relpos.attention(*inputs, scheme, **arguments), got[0])


@layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("built", [("t5", {}), ("alibi", {}), ("alibi", {"learned": True}), ("nope", {})], ids=name_of)
def test_other_dtypes_are_as_near_as_their_rounding(built: Built, layout: str, dtype: torch.dtype) -> None:
    more, call = LAYOUTS[layout]
    inputs = tensors(query_len=129, key_len=129 + more, dtype=dtype)
    scheme = build(built, torch.float32)
    got = run("sdpa", inputs, scheme, call(129))
    assert [x.dtype for x in got[:4]] == [dtype] * 4
    expected = run("reference", tuple(x.double() for x in inputs), scheme, call(129))
    compare(got, expected, dtype, ulps=64 if dtype == torch.float32 else 1)


@pytest.mark.parametrize("layout", ["causal", "chunk", "left padding", "packed causal", "holes", "window"])
@pytest.mark.parametrize("batch", [1, 2])
def test_key_biases_alone_and_beside_distance_biases(layout: str, batch: int) -> None:
    more, call = LAYOUTS[layout]
    inputs = tensors(query_len=150, key_len=150 + more)
    by_key = ByKey(batch, 150 + more, torch.float64)
    for schemes in ([by_key], [by_key, build(("t5", {})), relpos.Rotary(HEAD_DIM)], [by_key, by_key]):
        got, expected = (run(backend, inputs, schemes, call(150)) for backend in ("sdpa", "reference"))
        compare(got, expected, torch.float64)


def test_a_key_bias_fits_batch_heads_and_keys() -> None:
    with pytest.raises(ValueError, match=r"KeyBias of shape \[3, 4, 6\]"):
        relpos.attention(*tensors(), ByKey(3, 6, torch.float64))


@accepted
def test_biases_add_up(built: Built) -> None:
    inputs, schemes = tensors(query_len=60), [build(built), relpos.ALiBi(HEADS), build(("shaw_bias", {}))]
    got, expected = (run(backend, inputs, schemes, {"scale": 0.4}) for backend in ("sdpa", "reference"))
    compare(got, expected, torch.float64)


@pytest.mark.parametrize("need", itertools.product([True, False], repeat=3))
@pytest.mark.parametrize("table", [True, False])
def test_any_set_of_tensors_may_need_a_gradient(need: tuple[bool, bool, bool], table: bool) -> None:
    scheme = build(("t5", {}))
    scheme.table.requires_grad_(table)
    results = []
    for backend in ("sdpa", "reference"):
        leaves = [x.clone().requires_grad_(needed) for x, needed in zip(tensors(query_len=40), need, strict=True)]
        output = relpos.attention(*leaves, scheme, backend=backend, is_causal=True)
        wanted = [x for x in (*leaves, scheme.table) if x.requires_grad]
        assert output.requires_grad == bool(wanted)
        results.append(list(torch.autograd.grad(output.cos().sum(), wanted)) if wanted else [])
    compare(*results, torch.float64)


@pytest.mark.parametrize("strides", [transposed, columns_first, expanded])
@pytest.mark.parametrize("built", [("t5", {}), ("alibi", {}), ("nope", {})], ids=name_of)
def test_strides_change_nothing(built: Built, strides: Callable[[Tensor], Tensor]) -> None:
    for layout in ("causal", "right padding", "packed"):
        call = LAYOUTS[layout][1](50)
        inputs = tuple(strides(x) for x in tensors(query_len=50))
        plain = tuple(x.clone(memory_format=torch.contiguous_format) for x in inputs)
        for mine, theirs in zip(
            run("sdpa", inputs, build(built), call), run("sdpa", plain, build(built), call), strict=True
        ):
            assert torch.equal(mine, theirs)


BIASED = [("t5", {}), ("shaw_bias", {}), ("alibi", {})]


@pytest.mark.parametrize("length", [7, 257, 700, 1300])
@pytest.mark.parametrize(("is_causal", "window"), [(False, None), (True, None), (False, (300, 40)), (True, (520, 0))])
@pytest.mark.parametrize("built", BIASED, ids=name_of)
def test_bit_equal_to_a_dense_mask(built: Built, is_causal: bool, window: tuple[int, int] | None, length: int) -> None:
    """In float32, for whole sequences and for their last queries, by torch's kernel over the whole matrix."""
    scheme = build(built, torch.float32)
    query, key, value = tensors(query_len=length, dtype=torch.float32)
    distance = torch.arange(length) - torch.arange(length)[:, None]
    dense = scheme.bias(length).detach()
    if is_causal:
        dense = dense.masked_fill(distance > 0, -math.inf)
    if window is not None:
        dense = dense.masked_fill((distance < -window[0]) | (distance > window[1]), -math.inf)
    for start in (0, length // 2, length - 1):
        mask, some = dense[None, :, start:], query[:, :, start:]
        positions = Positions.arange(length - start, length, start)
        got = relpos.attention(
            some, key, value, scheme, is_causal=is_causal, window=window, positions=positions, scale=0.3, backend="sdpa"
        )
        assert torch.equal(got, F.scaled_dot_product_attention(some, key, value, attn_mask=mask, scale=0.3))


@pytest.mark.parametrize("content", [1.0, 30.0])
@pytest.mark.parametrize("slope", [0.5, 8.0])
def test_what_is_dropped_as_negligible_is(slope: float, content: float) -> None:
    """Far keys of a steep bias are dropped by a bound on the content; content that could lift them keeps them."""
    scheme = relpos.ALiBi(HEADS, slopes=[slope] * HEADS)
    query, key, value = tensors(query_len=400)
    query = query * content
    key[:, :, 0] = query.mean(2) * content  # a far key that calls
    got, expected = (run(backend, (query, key, value), scheme, {}) for backend in ("sdpa", "reference"))
    compare(got, expected, torch.float64)


def test_weights_far_below_rounding_cost_nothing() -> None:
    """ALiBi's strip holds no bias that could only lead to a number too small for full speed."""
    from relpos.backends.sdpa.inputs import Inputs
    from relpos.backends.sdpa.masks import Masks

    query, key, value = tensors(batch=1, query_len=1000, dtype=torch.float32)
    table = -0.5 * torch.arange(-999, 1000).abs().float().expand(1, HEADS, -1)
    inputs = Inputs(query, key, value, table, None, None, None, None, 0, 2**40, 2**40, HEAD_DIM**-0.5)
    (tile,) = inputs.tiles(256, whole=True)
    mask = Masks(inputs).of(tile)
    assert mask is not None
    kept = mask[mask > -math.inf]
    assert kept.min() > -80
    assert mask.untyped_storage().nbytes() == HEADS * 1999 * 4


def test_garbage_that_nobody_sees_stays_out() -> None:
    """NaN in every place that no query of its batch row may see, and in queries that see nothing."""
    calls = {name: LAYOUTS[name] for name in ("left padding", "lengths", "holes", "counted", "ahead of all keys")}
    calls["a wide hole"] = (0, wide_hole)
    calls["decode in a window"] = (600, lambda n: {"is_causal": True, "window": (9, 0)})
    for more, call in calls.values():
        for built in (("t5", {}), ("alibi", {}), ("nope", {})):
            arguments = call(30)
            clean, dirty = (
                with_garbage(tensors(query_len=30, key_len=30 + more), arguments, value) for value in (0.0, math.nan)
            )
            results = [run("sdpa", inputs, build(built), arguments) for inputs in (clean, dirty)]
            for mine, theirs in zip(*results, strict=True):
                assert mine.isfinite().all()
                assert torch.equal(mine, theirs)


def training_step(length: int, built: Built, heads: int = 8, **call: object) -> Callable[[], object]:
    scheme = build(built, torch.float32, num_heads=heads)
    query, key, value = (torch.randn(1, heads, length, 16, requires_grad=True) for _ in range(3))
    return lambda: relpos.attention(query, key, value, scheme, backend="sdpa", **call).sum().backward()


@pytest.mark.parametrize("call", [{}, {"is_causal": True}, {"key_mask": torch.arange(2048)[None] % 7 > 0}])
@pytest.mark.parametrize("built", [("t5", {}), ("alibi", {})], ids=name_of)
def test_no_tensor_of_all_pairs_is_ever_made(built: Built, call: dict[str, object]) -> None:
    sizes = allocations(training_step(2048, built, heads=1, **call))
    assert max(sizes) < 2048 * 2048  # bytes: a quarter of the scores


def test_the_watch_sees_what_kernels_allocate() -> None:
    scheme = build(("t5", {}), torch.float32, num_heads=1)
    query = torch.randn(1, 1, 512, 16)
    assert max(allocations(lambda: relpos.attention(query, query, query, scheme, backend="reference"))) >= 4 * 512**2


def test_what_the_kernels_refuse_is_said() -> None:
    query, key, value = tensors()

    def reasons(*inputs: Tensor, scheme: object = None, **call: object) -> str:
        why = relpos.explain(*inputs, scheme, **call)
        assert why.backend != "sdpa"
        with pytest.raises(relpos.BackendRefused):
            relpos.attention(*inputs, scheme, backend="sdpa", **call)
        return "; ".join(why.refused["sdpa"])

    assert "values are 3 wide and queries 8" in reasons(query, key, value[..., :3])
    assert "dropout_p=0.1" in reasons(query, key, value, dropout_p=0.1)
    assert "attn_mask" in reasons(query, key, value, attn_mask=torch.ones(6, 6, dtype=torch.bool))
    assert "no keys" in reasons(query[:, :, :0], key, value, is_causal=True)
    assert "KeyDistance and QueryDistance" in reasons(query, key, value, scheme=build(("deberta", {})))
    gaps = Positions.explicit(torch.tensor([0, 1, 2, 4, 5, 6]), torch.arange(6))
    assert "one by one" in reasons(query, key, value, scheme=relpos.ALiBi(HEADS), positions=gaps)
    assert relpos.explain(query, key, value, positions=gaps).backend == "sdpa"  # nothing depends on distance
    meta = (x.to("meta") for x in (query, key, value))
    assert "on meta" in "; ".join(relpos.explain(*meta, is_causal=True).refused["sdpa"])


def test_a_torch_without_the_kernels_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, schema, reason in [
        ("_no_such_kernel", "()", "has no aten::"),
        ("mul", "(Tensor x)", "another aten::mul"),
    ]:
        monkeypatch.setattr(flash, "SCHEMAS", {name: schema})
        flash.why_not.cache_clear()
        assert reason in "; ".join(relpos.explain(*tensors()).refused["sdpa"])
    monkeypatch.undo()
    flash.why_not.cache_clear()
    assert relpos.explain(*tensors()).backend == "sdpa"


@pytest.mark.parametrize(
    ("built", "batch", "says"),
    [
        (("t5", {}), 2, 'backend="reference"'),
        (("alibi", {}), 1, 'backend="reference"'),
        (("nope", {}), 2, "is not implemented"),  # torch's own attention, in torch's own words
    ],
)
def test_a_second_gradient_is_refused(built: Built, batch: int, says: str) -> None:
    query, key, value = (x.requires_grad_() for x in tensors(batch=batch))
    output = relpos.attention(query, key, value, build(built), backend="sdpa")
    (gradient,) = torch.autograd.grad(output.sin().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=says):
        torch.autograd.grad(gradient.sum(), query)
    output = relpos.attention(query, key, value, build(built), backend="reference")
    (gradient,) = torch.autograd.grad(output.sin().sum(), query, create_graph=True)
    assert torch.autograd.grad(gradient.sum(), query)[0].abs().max() > 0


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize("documents", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(table: bool, by_key: bool, documents: bool, dtype: torch.dtype) -> None:
    inputs = [x.requires_grad_() for x in tensors(query_len=9, key_len=12, groups=2, dtype=dtype)]
    number = torch.tensor([[0] * 5 + [1] * 4, [0] * 8 + [-1]])
    arguments = (
        *inputs,
        torch.randn(1, HEADS, 20, requires_grad=True) if table else None,
        torch.randn(2, HEADS, 12, requires_grad=True) if by_key else None,
        number if documents else None,
        F.pad(number, (0, 3), value=-1) if documents else None,
        torch.tensor([0, -2]) if documents else None,
        -3,
        50,
        0,
        0.3,
    )
    torch.library.opcheck(torch.ops.relpos.distance_attention.default, arguments)


@accepted
def test_gradcheck_over_tiles(built: Built) -> None:
    """Longer than one tile of the backward pass, by a random direction through all inputs and tables."""
    scheme = build(built)
    inputs = [x.requires_grad_() for x in tensors(batch=1, query_len=140, groups=2)]
    tables = dict(scheme.named_parameters())

    def output(query: Tensor, key: Tensor, value: Tensor, *values: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(scheme, dict(zip(tables, values, strict=True))):
            return relpos.attention(query, key, value, scheme, is_causal=True, backend="sdpa")

    assert torch.autograd.gradcheck(output, (*inputs, *tables.values()), fast_mode=True)


def test_gradients_are_the_same_every_time() -> None:
    step = run("sdpa", tensors(query_len=300, dtype=torch.float32), build(("t5", {}), torch.float32), {})
    again = run("sdpa", tensors(query_len=300, dtype=torch.float32), build(("t5", {}), torch.float32), {})
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(step, again, strict=True))


def test_one_graph_whatever_the_padding_and_the_packing() -> None:
    """In a process of its own: the run-time shape checks of these tests cannot be compiled."""
    code = """
import torch, relpos
from relpos import Positions
schemes = [relpos.T5Bias(4), relpos.ALiBi(4, learned=True), relpos.Rotary(8), relpos.ShawBias(4, 5)]
with torch.no_grad():
    for scheme in schemes:
        for table in scheme.parameters():
            table.normal_()
def attend(x, scheme, **call):
    return relpos.attention(x, x, x, scheme, backend="sdpa", **call)
keep = torch.arange(9) < torch.tensor([[9], [6]])
calls = [dict(key_mask=keep), dict(key_mask=~keep.flip(1)), dict(lengths=torch.tensor([9, 4]), is_causal=True),
         dict(positions=Positions.packed(torch.tensor([0, 4, 9])), is_causal=True),
         dict(positions=Positions.arange(9, 9, torch.tensor([1, 3])), is_causal=True), dict(window=2)]
for scheme in schemes:
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    for call in calls:
        x = torch.randn(2, 4, 9, 8, requires_grad=True)
        tables = list(scheme.parameters())
        got, expected = compiled(x, scheme, **call), attend(x, scheme, **call)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(torch.autograd.grad(got.cos().sum(), [x, *tables]),
                                   torch.autograd.grad(expected.cos().sum(), [x, *tables]))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_k12_lengths_and_new_tables_do_not_compile_again() -> None:
    """New bias values or lengths trigger recompilation."""
    code = """
import torch, relpos
from torch._dynamo.testing import CompileCounter
count, scheme = CompileCounter(), relpos.T5Bias(4)
compiled = torch.compile(lambda x: relpos.attention(x, x, x, scheme, is_causal=True, backend="sdpa"), backend=count,
                         fullgraph=True, dynamic=True)
for length in (17, 18, 19):
    with torch.no_grad():
        scheme.table.normal_()
    x = torch.randn(1, 4, length, 8)
    torch.testing.assert_close(compiled(x), relpos.attention(x, x, x, scheme, is_causal=True))
assert count.frame_count <= 2, count.frame_count
"""
    subprocess.run([sys.executable, "-c", code], check=True)
