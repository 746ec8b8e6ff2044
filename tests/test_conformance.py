"""What every scheme must do, each setting of each scheme without asking."""

from __future__ import annotations

import copy
import io
import itertools
import pickle

import pytest
import torch
from conformance import (
    ABSOLUTE,
    ALL,
    DISTANCE,
    EMBED_DIM,
    HEAD_DIM,
    HEADS,
    INVARIANT,
    RELATIVE,
    Built,
    build,
    gradients,
    name_of,
    tensors,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import relpos
from relpos import Positions
from relpos.terms import DistanceBias

every = pytest.mark.parametrize("built", ALL, ids=name_of)
relative = pytest.mark.parametrize("built", RELATIVE, ids=name_of)
invariant = pytest.mark.parametrize("built", INVARIANT, ids=name_of)
absolute = pytest.mark.parametrize("built", ABSOLUTE, ids=name_of)
distance = pytest.mark.parametrize("built", DISTANCE, ids=name_of)
EXACT = {"rtol": 1e-11, "atol": 1e-11}


@relative
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("query_len", "key_len"), [(1, 1), (1, 7), (5, 5), (3, 8)])
def test_output_has_the_shape_dtype_and_device_of_the_query(
    built: Built, dtype: torch.dtype, query_len: int, key_len: int
) -> None:
    query, key, value = tensors(query_len=query_len, key_len=key_len, dtype=dtype)
    scheme = build(built, torch.float32)
    output = relpos.attention(query, key, value, scheme, is_causal=True)
    assert (output.shape, output.dtype, output.device) == (query.shape, dtype, query.device)
    exact = relpos.attention(query.double(), key.double(), value.double(), scheme, is_causal=True)
    eps = torch.finfo(dtype).eps if dtype != torch.float64 else torch.finfo(torch.float32).eps
    assert_close(output.double(), exact, rtol=8 * eps, atol=8 * eps)


@relative
def test_meta_tensors_give_a_meta_result(built: Built) -> None:
    scheme = build(built, torch.float32).to("meta")
    query, key, value = (tensor.to("meta") for tensor in tensors(dtype=torch.float32))
    output = relpos.attention(query, key, value, scheme, is_causal=True, window=3)
    assert output.device.type == "meta"
    assert output.shape == query.shape


@absolute
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_embed_keeps_shape_and_dtype(built: Built, dtype: torch.dtype) -> None:
    x = torch.randn(2, 5, EMBED_DIM, dtype=dtype)
    y = build(built, torch.float32).embed(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)


@invariant
@pytest.mark.parametrize("shift", [1, 1000, -37, 2**20])
def test_shifting_both_positions_changes_nothing(built: Built, shift: int) -> None:
    scheme, (query, key, value) = build(built), tensors()
    place = torch.tensor([3, 4, 5, 9, 10, 30])
    here = relpos.attention(query, key, value, scheme, positions=Positions.explicit(place, place))
    there = relpos.attention(query, key, value, scheme, positions=Positions.explicit(place + shift, place + shift))
    # Angles are float64: at 2^20 they are good to about 1e-10.
    assert_close(there, here, rtol=1e-8, atol=1e-8)


@distance
def test_shifting_the_queries_alone_changes_the_result(built: Built) -> None:
    scheme, (query, key, value) = build(built), tensors()
    place = torch.arange(6)
    here = relpos.attention(query, key, value, scheme, positions=Positions.explicit(place, place))
    there = relpos.attention(query, key, value, scheme, positions=Positions.explicit(place + 3, place))
    assert (there - here).abs().max() > 1e-3


@absolute
def test_shifting_positions_changes_what_embed_adds(built: Built) -> None:
    scheme, x, place = build(built), torch.zeros(1, 6, EMBED_DIM, dtype=torch.float64), torch.arange(6)
    here, there = (scheme.embed(x, Positions.explicit(at, at)) for at in (place, place + 3))
    assert (there - here).abs().max() > 0.1
    assert_close(there[:, :3], here[:, 3:])


@relative
def test_one_row_alone_equals_the_row_in_a_batch(built: Built) -> None:
    scheme, (query, key, value) = build(built), tensors(batch=3, query_len=4, key_len=6)
    starts = torch.tensor([0, 2, 9])
    batch = relpos.attention(query, key, value, scheme, positions=Positions.arange(4, 6, starts))
    for row in range(3):
        one = slice(row, row + 1)
        positions = Positions.arange(4, 6, int(starts[row]))
        alone = relpos.attention(query[one], key[one], value[one], scheme, positions=positions)
        assert_close(batch[one], alone, **EXACT)


@relative
@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 1, 3, 1]])
def test_cached_steps_equal_the_full_pass(built: Built, groups: int, chunks: list[int]) -> None:
    layer = relpos.RelativeAttention(EMBED_DIM, HEADS, build(built), is_causal=True, num_kv_heads=groups).double()
    x = torch.randn(2, 9, EMBED_DIM, dtype=torch.float64)
    full, cache, steps = layer(x), relpos.KVCache(), []
    for chunk in x.split(chunks, dim=1):
        y, cache = layer(chunk, cache=cache)
        steps.append(y)
    assert cache.length == 9
    assert_close(torch.cat(steps, dim=1), full, **EXACT)


@relative
@pytest.mark.shapes_unchecked
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), is_causal=st.booleans())
def test_packed_equals_separate(built: Built, lengths: list[int], is_causal: bool) -> None:
    scheme, (query, key, value) = build(built), tensors(batch=1, query_len=sum(lengths))
    ends = torch.tensor([0, *lengths]).cumsum(0)
    packed = relpos.attention(query, key, value, scheme, is_causal=is_causal, positions=Positions.packed(ends))
    for start, end in itertools.pairwise(ends):
        part = (slice(None), slice(None), slice(int(start), int(end)))
        alone = relpos.attention(query[part], key[part], value[part], scheme, is_causal=is_causal)
        assert_close(packed[part], alone, **EXACT)


@relative
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("garbage", [0.0, float("inf"), float("nan")])
def test_padding_of_either_side_changes_nothing(built: Built, side: str, is_causal: bool, garbage: float) -> None:
    scheme = build(built)
    inputs = tensors(batch=1, query_len=5)
    pad = (0, 0, 3, 0) if side == "left" else (0, 0, 0, 3)
    # A padded query still sees the real keys where only keys are masked, so what it holds is its own affair.
    query = torch.nn.functional.pad(inputs[0], pad, value=1.0)
    key, value = (torch.nn.functional.pad(x, pad, value=garbage).requires_grad_() for x in inputs[1:])
    key_mask = torch.nn.functional.pad(torch.ones(1, 5, dtype=torch.bool), pad[2:])
    real = key_mask[0]
    alone = relpos.attention(*inputs, scheme, is_causal=is_causal)
    places = (None, Positions.from_mask(key_mask))
    for positions in places if side == "right" or built in INVARIANT else places[1:]:
        output = relpos.attention(
            query, key, value, scheme, is_causal=is_causal, key_mask=key_mask, positions=positions
        )[:, :, real]
        assert_close(output, alone, **EXACT)
        for gradient in gradients(output, (key, value), scheme):
            assert gradient.isfinite().all()


@relative
def test_hidden_rows_and_keys_have_no_influence_and_no_gradient(built: Built) -> None:
    scheme, clean = build(built), tensors(batch=2, query_len=6)
    lengths, dirty = torch.tensor([6, 4]), [x.clone() for x in clean]
    for x in dirty:
        x[1, :, 4:] = float("nan")
    inputs = [x.requires_grad_() for x in dirty]
    output = relpos.attention(*inputs, scheme, lengths=lengths)
    assert (output[1, :, 4:] == 0).all()
    short = relpos.attention(*(x[1:, :, :4] for x in clean), scheme)
    assert_close(output[1:, :, :4], short, **EXACT)
    of_inputs = gradients(output, inputs, scheme)
    assert all(gradient.isfinite().all() for gradient in of_inputs)
    assert all((gradient[1, :, 4:] == 0).all() for gradient in of_inputs[:3])


@relative
def test_far_positions_in_bfloat16_stay_near_float64(built: Built) -> None:
    scheme = build(built, torch.float32)
    query, key, value = tensors(query_len=4, key_len=8, dtype=torch.bfloat16)
    place = 300_001 + torch.tensor([0, 1, 2, 3, 256, 257, 1000, 1001])
    positions = Positions.explicit(place[4:], place)
    low = relpos.attention(query, key, value, scheme, positions=positions)
    exact = relpos.attention(query.double(), key.double(), value.double(), scheme, positions=positions)
    assert_close(low.double(), exact, rtol=2**-8, atol=2**-8)


@relative
def test_gradcheck(built: Built) -> None:
    scheme = build(built)
    inputs = [x.requires_grad_() for x in tensors(batch=1, query_len=3, key_len=4, heads=HEADS, groups=2)]
    tables = dict(scheme.named_parameters())

    def output(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        with torch.nn.utils.stateless._reparametrize_module(scheme, dict(zip(tables, values, strict=True))):
            return relpos.attention(query, key, value, scheme, is_causal=True)

    # Fast mode checks a random direction through all of them at once: DeBERTa's tables have 32 768 numbers.
    assert torch.autograd.gradcheck(output, (*inputs, *tables.values()), fast_mode=True)


@absolute
def test_gradcheck_of_embed(built: Built) -> None:
    scheme, x = build(built, embed_dim=3), torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: scheme.embed(x), (x, *scheme.parameters()))


@relative
@pytest.mark.shapes_unchecked
@given(
    groups=st.sampled_from([1, 2, HEADS]),
    query_len=st.integers(1, 7),
    extra=st.integers(0, 5),
    start=st.integers(-3, 9),
)
def test_grouped_heads_equal_repeated_ones(built: Built, groups: int, query_len: int, extra: int, start: int) -> None:
    scheme = build(built)
    query, key, value = tensors(query_len=query_len, key_len=query_len + extra, groups=groups)
    positions = Positions.arange(query_len, query_len + extra, start)
    grouped = relpos.attention(query, key, value, scheme, positions=positions)
    repeated = (x.repeat_interleave(HEADS // groups, dim=1) for x in (key, value))
    assert_close(grouped, relpos.attention(query, *repeated, scheme, positions=positions), **EXACT)


@relative
def test_slices_of_the_heads_make_the_whole(built: Built) -> None:
    scheme, (query, key, value) = build(built), tensors()
    whole = relpos.attention(query, key, value, scheme)
    parts = []
    for start, stop in ((0, 1), (1, HEADS)):
        some = (x[:, start:stop] for x in (query, key, value))
        parts.append(relpos.attention(*some, scheme.heads(start, stop)))
    assert_close(torch.cat(parts, dim=1), whole, **EXACT)


@relative
def test_autocast_gives_the_dtype_of_torch_and_the_accuracy_of_the_reference(built: Built) -> None:
    scheme, (query, key, value) = build(built, torch.float32), tensors(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = relpos.attention(query, key, value, scheme)
        torchs = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        double = relpos.attention(query.double(), key.double(), value.double(), scheme)
    assert output.dtype == torchs.dtype == torch.bfloat16
    assert double.dtype == torch.float64
    low = [x.bfloat16() for x in (query, key, value)]
    assert torch.equal(output, relpos.attention(*low, scheme))


@every
def test_state_dict_holds_the_learned_tables_only(built: Built) -> None:
    scheme = build(built)
    assert set(scheme.state_dict()) == {name for name, _ in scheme.named_parameters()}
    assert all(buffer.numel() == 0 for buffer in scheme.buffers())


def result(scheme: relpos.Scheme) -> torch.Tensor:
    """What a scheme does, wherever it acts."""
    dtype = next((table.dtype for table in scheme.parameters()), torch.float64)
    if scheme.encodes == "position":
        return scheme.embed(torch.zeros(1, 6, EMBED_DIM, dtype=dtype))
    return relpos.attention(*tensors(dtype=dtype), scheme, is_causal=True)


@every
def test_round_trips_change_nothing(built: Built) -> None:
    scheme = build(built)
    expected = result(scheme)
    saved = io.BytesIO()
    torch.save(scheme.state_dict(), saved)
    saved.seek(0)
    loaded = build(built)
    for table in loaded.parameters():
        torch.nn.init.zeros_(table)
    loaded.load_state_dict(torch.load(saved, weights_only=True))
    pickled = pickle.loads(pickle.dumps(scheme))  # noqa: S301  # our own bytes
    for other in (loaded, pickled, copy.deepcopy(scheme)):
        assert_close(result(other), expected, rtol=0, atol=0)


@every
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_a_stay_in_low_precision_rounds_the_tables_and_nothing_else(built: Built, low: torch.dtype) -> None:
    scheme, rounded = build(built), build(built)
    with torch.no_grad():
        for table in rounded.parameters():
            table.copy_(table.to(low))
    assert_close(result(scheme.to(low).double()), result(rounded), rtol=0, atol=0)


@every
def test_a_module_built_on_meta_works_once_it_is_filled(built: Built) -> None:
    expected = build(built)
    with torch.device("meta"):
        scheme = build(built)
    scheme = scheme.to_empty(device="cpu")
    scheme.load_state_dict(expected.state_dict())
    assert_close(result(scheme), result(expected), rtol=0, atol=0)
    with torch.device("meta"):
        fresh = build(built)
    fresh = fresh.to_empty(device="cpu")
    fresh.reset_parameters()
    assert all(table.isfinite().all() for table in fresh.parameters())


@every
def test_two_schemes_in_one_process_do_not_mix(built: Built) -> None:
    first = build(built)
    expected = result(first)
    others = [build(other) for other in ALL if other[0] == built[0]]
    if built[0] == "rope":
        others.append(build(built, base=77.0))
    for other in others:
        result(other)
    assert_close(result(first), expected, rtol=0, atol=0)


@pytest.mark.parametrize("other", DISTANCE, ids=name_of)
def test_a_list_adds_up(other: Built) -> None:
    """A rotation with any scheme equals rotating by hand and then attending with that scheme alone, where it is one
    that looks at content only through the product; a distance bias adds to all."""
    bias, scheme, (query, key, value) = relpos.ALiBi(HEADS), build(other), tensors()
    dense = bias.bias(6).double()
    both = relpos.attention_weights(query, key, value, [scheme, bias]).log()
    alone = relpos.attention_weights(query, key, value, scheme).log() + dense
    assert_close(both, alone.log_softmax(-1), rtol=1e-9, atol=1e-9)


def test_rotary_in_a_list_rotates_the_content_product() -> None:
    query, key, value = tensors()
    rope, t5 = relpos.Rotary(HEAD_DIM), build(("t5", {}))
    place = torch.arange(6)
    inv_freq, _ = relpos.functional.rope_inv_freq(HEAD_DIM, dtype=torch.float64)
    turned = (relpos.functional.apply_rotary(x, place, inv_freq, "half") for x in (query, key))
    assert_close(relpos.attention(query, key, value, [rope, t5]), relpos.attention(*turned, value, t5), **EXACT)


@distance
def test_what_a_bias_says_of_a_run_of_distances_is_what_it_says_of_each(built: Built) -> None:
    scheme = build(built)
    for term in scheme.terms(Positions.arange(1)):
        if isinstance(term, DistanceBias) and term.between is not None:
            # Near, far, one side only, grown and shrunk again, and in another dtype: what is kept must fit all.
            for dtype in (torch.float64, torch.float32, torch.float64):
                for first, end in ((-3, 4), (-60, 1), (5, 9), (1000, 1003), (-2, 90), (0, 1), (-1003, -1000)):
                    expected = term.values(torch.arange(first, end), dtype)
                    assert torch.equal(term.between(first, end, dtype), expected)


def test_what_is_kept_of_a_bias_follows_its_configuration() -> None:
    alibi = relpos.ALiBi(4)
    before = alibi.terms(Positions.arange(1))[0]
    assert isinstance(before, DistanceBias)
    assert before.between is not None
    first = before.between(-5, 6, torch.float32).clone()
    alibi.bias_scale = 2.0
    assert torch.equal(before.between(-5, 6, torch.float32), 2 * first)
    x = torch.randn(1, 2, 6, 8)
    whole, part = relpos.ALiBi(4), relpos.ALiBi(4)
    relpos.attention(torch.randn(1, 4, 6, 8), *[torch.randn(1, 4, 6, 8)] * 2, part, is_causal=True)
    got = relpos.attention(x, x, x, part.heads(2, 4), is_causal=True)
    expected = relpos.attention(x, x, x, whole.heads(2, 4), is_causal=True, backend="reference")
    torch.testing.assert_close(got, expected)


def test_what_is_kept_was_made_outside_inference_mode() -> None:
    t5, x = relpos.T5Bias(4), torch.randn(1, 4, 6, 8)
    with torch.inference_mode():
        relpos.attention(x, x, x, t5)
    relpos.attention(x, x, x, t5).sum().backward()
    assert t5.table.grad is not None


def test_what_is_kept_stays_behind() -> None:
    t5, x = relpos.T5Bias(4), torch.randn(1, 4, 600, 8)
    fresh = len(pickle.dumps(t5))
    relpos.attention(x, x, x, t5)
    assert len(pickle.dumps(t5)) == fresh
    assert copy.deepcopy(t5).state_dict().keys() == {"table"}
