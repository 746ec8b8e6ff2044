"""The shares of attention by distance against one query, one key and one Python number at a time."""

import math

import pytest
import torch
from torch import Tensor

import relpos
from relpos.functional import apply_rotary, rope_inv_freq
from relpos.schemes import Scheme
from relpos.study import Recipe, TrialConfig
from relpos.study.attended import attended_distances
from relpos.study.model import Block, ByteLM, build_model
from relpos.study.windows import distance_bins

RECIPE = Recipe(size="tiny", length=16, multiples=(1, 2, 4))
# The first distance of each bin.
STARTS = {16: (0, 1, 2, 4, 8), 32: (0, 1, 2, 4, 8, 16)}


def model_of(scheme: str) -> ByteLM:
    model = build_model(TrialConfig(scheme, 0, "", RECIPE)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():  # tables that start at zero, and weights so small that all attention is even, say nothing
        for name, parameter in model.named_parameters():
            if "scheme" in name or "_proj.weight" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def segments_of(count: int, pairs: int) -> Tensor:
    return torch.randint(256, (count, pairs + 1), generator=torch.Generator().manual_seed(1))


def inputs_of_attention(model: ByteLM, tokens: Tensor) -> list[Tensor]:
    """What each layer's attention really gets in a forward pass."""
    seen: list[Tensor] = []
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    handles = [block.attention.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in blocks]
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    return seen


def naive_shares(model: ByteLM, windows: list[Tensor], scheme: str) -> list[list[list[float]]]:
    """Softmax over the keys up to each query of the last quarter, added up distance by distance."""
    window, layers = len(windows[0]), []
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        layer = block.attention
        width = layer.head_dim
        bias = None
        if isinstance(layer.scheme, Scheme) and scheme in ("alibi", "t5", "shaw_bias"):
            bias = layer.scheme.bias(window).detach().double()
        heads = [[0.0] * window for _ in range(layer.num_heads)]
        queries = range(window - window // 4, window)
        for tokens in windows:
            x = inputs_of_attention(model, tokens[None])[index][0]
            with torch.no_grad():
                query, key = layer.query_proj(x), layer.key_proj(x)
            for head in range(layer.num_heads):
                q, k = (each[:, head * width : (head + 1) * width] for each in (query, key))
                if scheme == "rope":
                    frequencies = rope_inv_freq(width)[0]
                    q, k = (
                        apply_rotary(each[None, None], torch.arange(window), frequencies, "half")[0, 0]
                        for each in (q, k)
                    )
                for i in queries:
                    scores = [float(q[i].double() @ k[j].double()) / math.sqrt(width) for j in range(i + 1)]
                    if bias is not None:
                        scores = [score + float(bias[head, i, j]) for j, score in enumerate(scores)]
                    weights = [math.exp(score - max(scores)) for score in scores]
                    for j, weight in enumerate(weights):
                        heads[head][i - j] += weight / sum(weights)
        count, starts = len(windows) * len(queries), STARTS[window]
        bins = list(zip(starts, [*starts[1:], window], strict=True))
        layers.append([[sum(head[first:end]) / count for first, end in bins] for head in heads])
    return layers


@pytest.mark.parametrize("scheme", ["nope", "alibi", "t5", "rope", "sinusoidal"])
@pytest.mark.parametrize("window", [16, 32])
def test_shares_against_a_naive_loop(scheme: str, window: int) -> None:
    model, segments = model_of(scheme), segments_of(2, 32)
    found = attended_distances(model, segments, window)
    windows = [s[a : a + window] for s in segments for a in range(0, 32, window)]
    expected = naive_shares(model, windows, scheme)
    assert found.window == window
    assert found.starts == STARTS[window]
    assert found.shares is not None
    for ours, theirs in zip(found.shares, expected, strict=True):
        for head, naive in zip(ours, theirs, strict=True):
            assert head == pytest.approx(naive, abs=1e-6)
            assert sum(head) == pytest.approx(1, abs=1e-6)


def test_the_heads_of_the_oracle_are_not_all_alike() -> None:
    """Otherwise heads or layers in the wrong order would pass above."""
    shares = attended_distances(model_of("rope"), segments_of(2, 32), 32).shares
    assert shares is not None
    flat = [head for layer in shares for head in layer]
    assert all(max(abs(x - y) for x, y in zip(a, b, strict=True)) > 1e-4 for a in flat for b in flat if a is not b)


def test_long_texts_are_sampled_evenly() -> None:
    """No more than 1024 queries a length: every k-th window, from the first on."""
    model, segments = model_of("alibi"), segments_of(2, 16 * 512)
    found = attended_distances(model, segments, 16)
    windows = segments[:, :-1].reshape(-1, 16)
    chosen = windows[::4]
    assert len(chosen) == 256  # 4 queries each
    alone = attended_distances(model, torch.cat([chosen.reshape(1, -1), torch.zeros(1, 1).long()], dim=1), 16)
    assert found.shares is not None
    assert alone.shares is not None
    assert torch.tensor(found.shares).flatten().tolist() == pytest.approx(
        torch.tensor(alone.shares).flatten().tolist(), abs=1e-6
    )


def test_bins_double() -> None:
    assert distance_bins(64) == (0, 1, 2, 4, 8, 16, 32)
    assert distance_bins(65) == (0, 1, 2, 4, 8, 16, 32, 64)
    assert distance_bins(48) == (0, 1, 2, 4, 8, 16, 32)
    assert distance_bins(4) == (0, 1, 2)


@pytest.mark.parametrize(
    ("multiples", "windows"),
    [((1, 2, 4, 8, 10, 16), (64, 512)), ((1, 2), (64, 128)), ((1,), (64,)), ((1, 16), (64,)), ((2, 4), (64, 256))],
)
def test_which_lengths(multiples: tuple[int, ...], windows: tuple[int, ...]) -> None:
    assert Recipe(multiples=multiples).attended_lengths == windows


def test_a_learned_table_is_undefined_beyond_its_end_and_says_why() -> None:
    model, segments = model_of("learned"), segments_of(2, 64)
    assert attended_distances(model, segments, 16).shares is not None
    beyond = attended_distances(model, segments, 32)
    assert beyond.shares is None
    assert beyond.undefined == "position 16 of a window of 32 lies past the table's 16 rows"


def test_measuring_changes_nothing() -> None:
    """Neither weights nor the caller's random numbers."""
    model = model_of("t5")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    attended_distances(model, segments_of(1, 64), 16)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(model.blocks[0], Block)
    assert isinstance(model.blocks[0].attention, relpos.RelativeAttention)
