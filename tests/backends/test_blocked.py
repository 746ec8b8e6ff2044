"""The `blocked` backend against `reference`, whole outputs and every gradient, with the native kernel and without."""

from __future__ import annotations

import functools
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from conformance import HEAD_DIM, HEADS, RELATIVE, Built, allocations, build, gradients, name_of, tensors
from layouts import LAYOUTS, ByKey, columns_first, compare, expanded, padded, run, transposed, wide_hole, with_garbage
from torch import Tensor
from torch.nn import functional as F

import relpos
from relpos import Positions
from relpos._native import Block, kernel
from relpos.backends.blocked import pair_bias, part, scratch, whole
from relpos.schemes import Scheme

#: What only this backend computes.
CONTENT = [built for built in RELATIVE if built[0] in ("shaw", "huang", "deberta", "fire")]
FIRE = ("fire", {"initial_threshold": 3.0, "width": 5})
LENGTHS = [21, *(pytest.param(length, marks=pytest.mark.shapes_unchecked) for length in (1, 7, 100, 129))]


def scattered(length: int, more: int = 0) -> Tensor:
    """Positions with gaps, in no order, other ones in each row of a batch of two."""
    generator = torch.Generator().manual_seed(length)
    return torch.stack([torch.randperm(3 * length + 9, generator=generator)[: length + more] for _ in range(2)])


def some_pairs(length: int) -> Tensor:
    """A mask of pairs, with a query that sees nothing and a key that nobody sees."""
    mask = torch.rand(2, 1, length, length, generator=torch.Generator().manual_seed(length)) > 0.5
    mask[0, :, length // 2] = False
    mask[:, :, :, length // 3] = False
    return mask


#: What this backend takes besides the layouts of all.
PAIRED: dict[str, tuple[int, Callable[[int], dict[str, object]]]] = {
    "mask": (0, lambda n: {"attn_mask": some_pairs(n)}),
    "mask of a matrix": (0, lambda n: {"attn_mask": some_pairs(n)[1, 0], "is_causal": True, "key_mask": padded(n)}),
    "mask by head": (0, lambda n: {"attn_mask": some_pairs(n).expand(2, HEADS, n, n).roll(1, 2), "window": 4}),
    "mask and offsets": (
        0,
        lambda n: {"attn_mask": some_pairs(n), "positions": Positions.arange(n, n, torch.tensor([0, 5]))},
    ),
    "gaps": (0, lambda n: {"positions": Positions.explicit(scattered(n), scattered(n))}),
    "gaps, causal": (3, lambda n: {"positions": Positions.explicit(scattered(n), scattered(n, 3)), "is_causal": True}),
    "gaps, padded": (
        0,
        lambda n: {"positions": Positions.explicit(scattered(n)[0], scattered(n)[1]), "key_mask": padded(n)},
    ),
}
EVERY_LAYOUT = {**LAYOUTS, **PAIRED}
layouts = pytest.mark.parametrize("layout", EVERY_LAYOUT)


def test_the_native_kernel_was_built() -> None:
    # .ci/run sets RELPOS_NATIVE=required: there, no kernel is a failure and not a reason to skip.
    if os.environ.get("RELPOS_NATIVE") != "required" and kernel.library() is None:
        pytest.skip("the native kernel was not built here")
    assert kernel.library() is not None
    assert kernel.loops() in ("avx512", "avx2", "portable")


@pytest.fixture(params=["kernel", "kernel by blocks", "twin"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the native kernel, where it was built: all that it can, or only what it does to blocks; and without."""
    if request.param == "kernel by blocks":
        monkeypatch.setattr(whole, "takes", lambda inputs, area: False)
    if request.param == "twin":
        monkeypatch.setattr(kernel, "library", lambda: None)
    elif kernel.library() is None:
        pytest.skip("the native kernel was not built here")
    return str(request.param)


@pytest.fixture(params=[(2**20, 512), (600, 16)], ids=["one block", "many blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As blocks are, and so small that short sequences have many, of some heads and some rows of the batch."""
    monkeypatch.setattr(part, "SCORES", request.param[0])
    monkeypatch.setattr(part, "ROWS", request.param[1])
    monkeypatch.setattr(part, "FEWEST", min(request.param[1], part.FEWEST))
    monkeypatch.setattr(pair_bias, "PAIRS", min(request.param[0], pair_bias.PAIRS))


@layouts
@pytest.mark.parametrize("built", CONTENT, ids=name_of)
@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_reference(built: Built, layout: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if length in (21, 100):
        monkeypatch.setattr(part, "SCORES", 7 * length)
        monkeypatch.setattr(part, "ROWS", 16)
        monkeypatch.setattr(part, "FEWEST", 16)
    more, call = EVERY_LAYOUT[layout]
    inputs = tensors(query_len=length, key_len=length + more, groups=HEADS if length % 2 else 2)
    scheme, arguments = build(built), call(length)
    got, expected = (run(backend, inputs, scheme, arguments) for backend in ("blocked", "reference"))
    compare(got, expected, torch.float64)
    with torch.no_grad():
        assert torch.equal(relpos.attention(*inputs, scheme, backend="blocked", **arguments), got[0])


@layouts
@pytest.mark.parametrize("built", RELATIVE, ids=name_of)
def test_float32_is_as_near_as_its_rounding(built: Built, layout: str, native: str) -> None:
    more, call = EVERY_LAYOUT[layout]
    inputs, scheme = tensors(query_len=70, key_len=70 + more, dtype=torch.float32), build(built, torch.float32)
    got = run("blocked", inputs, scheme, call(70))
    expected = run("reference", tuple(x.double() for x in inputs), scheme, call(70))
    compare(got, expected, torch.float32, ulps=128)


@layouts
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("built", [("shaw", {}), ("deberta", {}), ("huang", {"method": 4}), FIRE], ids=name_of)
def test_low_precision_is_rounded_once(built: Built, layout: str, dtype: torch.dtype, blocks: None) -> None:
    more, call = EVERY_LAYOUT[layout]
    inputs = tensors(query_len=70, key_len=70 + more, dtype=dtype)
    scheme = build(built, torch.float32)
    got = run("blocked", inputs, scheme, call(70))
    assert [x.dtype for x in got[:4]] == [dtype] * 4
    expected = run("reference", tuple(x.double() for x in inputs), scheme, call(70))
    compare(got, expected, dtype, ulps=1)


@pytest.mark.parametrize("layout", ["causal", "chunk", "packed causal", "holes", "mask"])
@pytest.mark.parametrize("batch", [1, 2])
def test_everything_adds_up(layout: str, batch: int, blocks: None) -> None:
    """Rotation, tables of distance vectors, several of each kind, gains, biases by distance and by key."""
    more, call = EVERY_LAYOUT[layout]
    inputs = tensors(query_len=70, key_len=70 + more)
    by_key, rope = ByKey(batch, 70 + more, torch.float64), relpos.Rotary(HEAD_DIM)
    shaw, huang, gain, channels = (
        build(("shaw", {})),
        build(("huang", {"method": 4})),
        build(("huang", {"method": 2})),
        build(("huang", {"method": 3})),
    )
    deberta = build(("deberta", {"num_buckets": 4, "max_distance": 10}))
    lists: list[list[Scheme]] = [
        [rope, shaw],
        [rope, deberta, by_key, build(("t5", {"scale": None}))],
        [shaw, huang, deberta, relpos.ALiBi(HEADS), by_key],
        [gain, channels, rope, shaw],
        [gain, build(("huang", {}))],
        [build(FIRE), build(("fire", {})), rope, shaw, by_key, build(("t5", {"scale": None}))],
    ]
    for schemes in lists:
        got, expected = (run(b, inputs, schemes, {**call(70), "scale": 0.3}) for b in ("blocked", "reference"))
        compare(got, expected, torch.float64)


def test_values_may_have_another_width() -> None:
    query, key, value = tensors(query_len=40)
    value = torch.cat([value, value[..., :3]], dim=-1)
    got, expected = (run(b, (query, key, value), build(("huang", {"method": 4})), {}) for b in ("blocked", "reference"))
    compare(got, expected, torch.float64)


@pytest.mark.parametrize("strides", [transposed, columns_first, expanded])
@pytest.mark.parametrize("built", CONTENT, ids=name_of)
def test_strides_change_nothing(built: Built, strides: Callable[[Tensor], Tensor]) -> None:
    for layout in ("causal", "right padding", "packed", "mask"):
        call = EVERY_LAYOUT[layout][1](50)
        inputs = tuple(strides(x) for x in tensors(query_len=50))
        plain = tuple(x.clone(memory_format=torch.contiguous_format) for x in inputs)
        got, expected = (run("blocked", some, build(built), call) for some in (inputs, plain))
        compare(got, expected, torch.float64)


@pytest.mark.parametrize("built", CONTENT, ids=name_of)
def test_garbage_that_nobody_sees_stays_out(built: Built, native: str) -> None:
    names = ("left padding", "lengths", "holes", "counted", "ahead of all keys", "mask", "mask of a matrix")
    for more, call in [*(EVERY_LAYOUT[name] for name in names), (0, wide_hole)]:
        arguments, given = call(30), tensors(query_len=30, key_len=30 + more, groups=2, dtype=torch.float32)
        for value in (math.nan, math.inf):
            clean, dirty = (with_garbage(given, arguments, number) for number in (0.0, value))
            results = [run("blocked", inputs, build(built, torch.float32), arguments) for inputs in (clean, dirty)]
            for mine, theirs in zip(*results, strict=True):
                assert mine.isfinite().all()
                assert torch.equal(mine, theirs)


@pytest.mark.parametrize("layout", ["all", "causal", "left padding", "mask"])
@pytest.mark.parametrize(
    "built", [("nope", {}), ("shaw", {}), ("deberta", {}), ("huang", {"method": 3}), FIRE], ids=name_of
)
def test_dropout_is_one_mask_for_output_and_gradients(built: Built, layout: str, blocks: None) -> None:
    """The mask is read off with values that are the unit matrix; then everything is computed from it, dense."""
    scheme, p, call = build(built), 0.3, EVERY_LAYOUT[layout][1](60)
    query, key, value = tensors(query_len=60)
    unit = torch.eye(60, dtype=torch.float64).expand(2, HEADS, 60, 60)
    torch.manual_seed(3)
    same_blocks = scheme if isinstance(scheme, relpos.FIRE) else None  # a pair bias has blocks of its own
    dropped = relpos.attention(query, key, unit, same_blocks, backend="blocked", dropout_p=p, **call)
    kept = (dropped / relpos.attention_weights(query, key, value, same_blocks, **call)).nan_to_num(0.0).detach()
    assert (kept.abs().minimum((kept - 1 / (1 - p)).abs()) < 1e-9).all()
    torch.manual_seed(3)
    got = run("blocked", (query, key, value), scheme, {**call, "dropout_p": p})
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    weights = relpos.attention_weights(*leaves, scheme, **call) * kept
    output = weights @ leaves[2]
    if isinstance(scheme, relpos.Shaw):
        row = relpos.functional.shaw_index(torch.arange(60) - torch.arange(60)[:, None], 5)
        output = output + torch.einsum("bhij,ijd->bhid", weights, scheme.value_table[row])
    compare(got, [output.detach(), *gradients(output, leaves, torch.nn.ModuleList([scheme]))], torch.float64)


def test_dropout_drops_as_many_as_it_says_and_others_each_time() -> None:
    query, key, _ = tensors(query_len=60)
    unit = torch.eye(60, dtype=torch.float64).expand(2, HEADS, 60, 60)
    first, second = (relpos.attention(query, key, unit, backend="blocked", dropout_p=0.3) > 0 for _ in range(2))
    assert abs(first.double().mean() - 0.7) < 0.02
    assert abs((first & second).double().mean() - 0.49) < 0.02


def training_step(length: int, built: Built, heads: int = 1, **call: object) -> Callable[[], object]:
    scheme = build(built, torch.float32, num_heads=heads)
    query, key, value = (torch.randn(1, heads, length, HEAD_DIM, requires_grad=True) for _ in range(3))
    return lambda: relpos.attention(query, key, value, scheme, backend="blocked", **call).sum().backward()


@pytest.mark.parametrize(
    "call",
    [{}, {"is_causal": True, "key_mask": torch.arange(4096)[None] % 7 > 0}, {"dropout_p": 0.1}],
    ids=["all", "causal with holes", "dropout"],
)
@pytest.mark.parametrize("built", [("shaw", {}), ("deberta", {}), ("huang", {"method": 1}), FIRE], ids=name_of)
def test_no_tensor_of_all_pairs_is_ever_made(built: Built, call: dict[str, object], native: str) -> None:
    # In bytes: the scores would be four times as many. The twin's indices of a block are an eighth of that.
    scratch.SCRATCH.kept.clear()
    assert max(allocations(training_step(4096, built, **call))) <= 4096 * 4096


@pytest.mark.parametrize(
    ("built", "short"),
    [(("deberta", {"num_buckets": 4, "max_distance": 10}), 4096), (FIRE, 1024)],
    ids=["deberta", "fire"],
)
def test_memory_grows_with_the_length(built: Built, short: int) -> None:
    def peak(length: int) -> int:
        scratch.SCRATCH.kept.clear()
        step = training_step(length, built, heads=2)
        return max(itertools.accumulate(allocations(step)))

    assert peak(4 * short) <= 4.5 * peak(short)


@pytest.mark.parametrize("built", CONTENT, ids=name_of)
def test_gradcheck_over_blocks(built: Built, blocks: None) -> None:
    scheme = build(built)
    inputs = [x.requires_grad_() for x in tensors(batch=2, query_len=60, groups=2)]
    tables = dict(scheme.named_parameters())

    def output(query: Tensor, key: Tensor, value: Tensor, *values: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(scheme, dict(zip(tables, values, strict=True))):
            return relpos.attention(query, key, value, scheme, is_causal=True, backend="blocked")

    assert torch.autograd.gradcheck(output, (*inputs, *tables.values()), fast_mode=True)


def test_gradients_are_the_same_every_time(native: str) -> None:
    for built in CONTENT:
        step, again = (
            run("blocked", tensors(query_len=300, dtype=torch.float32), build(built, torch.float32), {})
            for _ in range(2)
        )
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(step, again, strict=True))


def test_any_number_of_threads_gives_the_same_numbers() -> None:
    """A row of scores, and a column of what is summed by key, belongs to one thread."""
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            blocks = [tensors_of_a_block() for _ in range(1)]
            kernel.softmax(blocks[0])
            results.append(blocks[0].scores)
        finally:
            torch.set_num_threads(1)
    assert torch.equal(*results)


def tensors_of_a_block() -> Block:
    generator = torch.Generator().manual_seed(2)
    random = functools.partial(torch.randn, generator=generator)
    row = (torch.arange(99) // 3).clamp(5, 28).int() - 5
    return Block(
        random(2, 3, 40, 60),
        random(3, 2, 40, 24),
        random(3, 24, 2, 60),
        random(3, 99),
        row,
        row,
        kernel.runs(row, row, 99),
        None,
    )


def test_a_second_gradient_is_refused() -> None:
    query, key, value = (x.requires_grad_() for x in tensors())
    output = relpos.attention(query, key, value, build(("shaw", {})), backend="blocked")
    (gradient,) = torch.autograd.grad(output.sin().sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        torch.autograd.grad(gradient.sum(), query)


@pytest.mark.parametrize("documents", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(documents: bool, masked: bool, dtype: torch.dtype) -> None:
    inputs = [x.requires_grad_() for x in tensors(query_len=9, key_len=12, groups=2, dtype=dtype)]
    number = torch.tensor([[0] * 5 + [1] * 4, [0] * 8 + [-1]])
    row = torch.arange(22, dtype=torch.int32).clamp(3, 9) - 3
    table = functools.partial(torch.randn, requires_grad=True)
    arguments = (
        *inputs,
        *(x.detach().clone().requires_grad_() for x in inputs[:2]),
        table(HEADS, 22),
        table(2, HEADS, 12),
        table(1, 7, HEAD_DIM),
        table(HEADS, 7, HEAD_DIM),
        table(HEADS, 7, HEAD_DIM),
        table(HEADS, 7),
        *(row,) * 4,
        number if documents else None,
        F.pad(number, (0, 3), value=-1) if documents else None,
        torch.tensor([0, -2]) if documents else None,
        None,
        None,
        torch.rand(2, 1, 9, 12) > 0.3 if masked else None,
        None,
        -10,
        0,
        50,
        2,
        0.3,
        0.0,
    )
    torch.library.opcheck(torch.ops.relpos.blocked_attention.default, arguments)


def test_one_graph() -> None:
    """In a process of its own: the run-time shape checks of these tests cannot be compiled."""
    code = """
import torch, relpos
from relpos import Positions
schemes = [relpos.Shaw(4, 8, 5), relpos.Disentangled(4, 8, 4, 10), relpos.Huang(4, 8, 5, method=2)]
def attend(x, scheme, **call):
    return relpos.attention(x, x, x, scheme, backend="blocked", **call)
keep = torch.arange(9) < torch.tensor([[9], [6]])
calls = [dict(key_mask=keep), dict(lengths=torch.tensor([9, 4]), is_causal=True), dict(window=2),
         dict(positions=Positions.packed(torch.tensor([0, 4, 9])), is_causal=True), dict(attn_mask=torch.eye(9) > 0)]
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


def test_what_it_refuses_is_said() -> None:
    query, key, value = tensors()

    def reasons(*inputs: Tensor, scheme: object = None, **call: object) -> str:
        with pytest.raises(relpos.BackendRefused) as refused:
            relpos.attention(*inputs, scheme, backend="blocked", **call)
        return str(refused.value)

    far = Positions.explicit(torch.tensor([0, 1, 2, 3, 4, 2**40]), torch.arange(6))
    assert "positions are up to" in reasons(query, key, value, scheme=relpos.ALiBi(HEADS), positions=far)
    assert "no keys" in reasons(query, key[:, :, :0], value[:, :, :0], is_causal=True)
    meta = (x.to("meta") for x in (query, key, value))
    assert "on meta" in reasons(*meta)


def test_explain_names_the_native_loops(native: str) -> None:
    kernel.loops.cache_clear()
    said = str(relpos.explain(*tensors(), build(("shaw", {}))))
    kernel.loops.cache_clear()
    assert "backend  blocked" in said
    assert ("native   not built" in said) == (native == "twin")


@pytest.mark.parametrize("spread", [1.0, 3.0], ids=["soft", "sharp"])
@pytest.mark.usefixtures("native", "blocks")
def test_bfloat16_beside_attention_written_out_in_bfloat16(spread: float) -> None:
    """Against float64 of the same numbers: no output farther off than theirs, gradients off by their rounding alone."""
    normal = functools.partial(torch.randn, generator=torch.Generator().manual_seed(3))
    length, row = 150, functools.partial(relpos.functional.deberta_row, num_buckets=32, max_distance=64)
    values = [
        (normal(*shape) * spread * factor).bfloat16()
        for shape, factor in (*[((2, 3, length, 64), 1.0)] * 3, *[((3, 64, 64), 0.5)] * 2)
    ]
    flow = normal(2, 3, length, 64).bfloat16()

    def ours(query: Tensor, key: Tensor, value: Tensor, query_table: Tensor, key_table: Tensor) -> Tensor:
        terms = [relpos.terms.QueryDistance(query_table, row), relpos.terms.KeyDistance(key_table, row)]
        return relpos.attention(query, key, value, terms, scale=192**-0.5, backend="blocked")

    def written_out(query: Tensor, key: Tensor, value: Tensor, query_table: Tensor, key_table: Tensor) -> Tensor:
        distance = torch.arange(length) - torch.arange(length)[:, None]
        query, rows = query * 192**-0.5, row(distance).expand(2, 3, -1, -1)
        by_query = (query @ query_table.mT).gather(-1, rows)
        by_key = ((key * 192**-0.5) @ key_table.mT).gather(-1, rows.mT).mT
        return (query @ key.mT + by_query + by_key).softmax(-1) @ value

    def off(of: Callable[..., Tensor]) -> list[float]:
        """How far the output and each gradient are from the truth, as a part of it."""
        results = []
        for attend, dtype in ((of, torch.bfloat16), (written_out, torch.float64)):
            leaves = [x.to(dtype, copy=True).requires_grad_() for x in values]
            output = attend(*leaves)
            output.backward(flow.to(dtype))
            results.append([output.detach().double(), *(x.grad.double() for x in leaves)])
        return [float((x - truth).norm() / truth.norm()) for x, truth in zip(*results, strict=True)]

    mine, theirs = off(ours), off(written_out)
    assert mine[0] < theirs[0]
    assert max(mine[1:]) < 2**-9


@pytest.fixture
def every_loop() -> Iterator[list[str]]:
    """The names of the loops that this processor has; the fastest are chosen again after."""
    library = kernel.library()
    if library is None:
        pytest.skip("the native kernel was not built here")
    names = [name for name in ("avx512", "avx2", "portable") if library.relpos_choose(name.encode())]
    yield names
    library.relpos_choose(None)


def test_all_loops_compute_the_same(every_loop: list[str]) -> None:
    for built in (("shaw", {"max_distance": 40}), ("deberta", {"num_buckets": 32, "max_distance": 64})):
        results = []
        for name in every_loop:
            kernel.library().relpos_choose(name.encode())
            results.append(run("blocked", tensors(query_len=200, dtype=torch.float32), build(built, torch.float32), {}))
        for other in results[1:]:
            compare(other, results[0], torch.float32, ulps=8)
    assert "portable" in every_loop


def bias_of_pairs(slope: Tensor, table: Tensor) -> relpos.terms.PairBias:
    """A bias that no distance gives: by head, a slope times the product of both positions, and a table by parity."""

    def values(query: Tensor, key: Tensor, dtype: torch.dtype, slope: Tensor, table: Tensor) -> Tensor:
        pairs = (query * key).to(dtype)
        return slope.to(dtype).view(-1, *[1] * pairs.dim()) * pairs.sin() + table.to(dtype)[(query + key) % 2]

    return relpos.terms.PairBias(values, (slope, table))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("layout", EVERY_LAYOUT)
def test_a_pair_bias_of_any_function(layout: str) -> None:
    """Beside another term; output and all gradients, its tensors' included, against loops over all pairs at once."""
    more, call = EVERY_LAYOUT[layout]
    arguments, leaves = call(60), [x.requires_grad_() for x in tensors(query_len=60, key_len=60 + more, groups=2)]
    slope, table = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (HEADS, 2))
    results = []
    for backend in ("blocked", "reference"):
        terms = [bias_of_pairs(slope, table), bias_of_pairs(2 * slope.flip(0), table), build(("shaw", {}))]
        output = relpos.attention(*leaves, terms, backend=backend, **arguments)
        results.append([output, *torch.autograd.grad(output.square().sum(), [*leaves, slope, table])])
    compare(*results, torch.float64)


def test_a_pair_bias_breaks_a_graph_and_says_why() -> None:
    code = """
import torch, relpos

torch.manual_seed(0)
query, key, value = (torch.randn(2, 4, 30, 8) for _ in range(3))
fire = relpos.FIRE(4)

def attend(query):
    return relpos.attention(query * 2, key, value, fire, backend="blocked") * 2

torch.testing.assert_close(torch.compile(attend, backend="eager")(query), attend(query))
torch._dynamo.reset()
try:
    torch.compile(attend, backend="eager", fullgraph=True)(query)
except torch._dynamo.exc.Unsupported as error:
    assert "pair bias of a scheme is a Python function" in str(error), error
else:
    raise AssertionError("no break")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pair_bias_hides_no_tensor_that_learns() -> None:
    query, key, value = tensors(query_len=5)
    hidden = torch.ones(HEADS, 1, 1, dtype=torch.float64, requires_grad=True)
    term = relpos.terms.PairBias(lambda query, key, dtype: hidden * (query - key))
    with pytest.raises(ValueError, match=r"PairBias whose function reads a tensor that wants a gradient.*every such"):
        relpos.attention(query, key, value, term)
    term = relpos.terms.PairBias(lambda query, key, dtype: (query - key).to(dtype))
    with pytest.raises(ValueError, match=r"values have shape.*heads, then the pairs"):
        relpos.attention(query, key, value, term)
    term = bias_of_pairs(torch.randn(HEADS), torch.randn(2))
    assert "PairBias depends on both positions" in str(relpos.explain(query, key, value, term))
