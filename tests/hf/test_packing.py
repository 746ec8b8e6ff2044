"""Padding that layers do not compute: which batches, what the layers see, and that nobody can tell from the output."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_patched_models import eager, gradients, logits, near, same_gradients
from torch import Tensor
from zoo import BOTH, TINY, WIDTH, Tiny, inputs

import relpos.hf

PACKED = {name: tiny for name, tiny in TINY.items() if name.startswith(("deberta", "mpnet", "t5", "mt5", "umt5"))}
EVERY = pytest.mark.parametrize("tiny", [pytest.param(tiny, id=name) for name, tiny in PACKED.items()])
#: Masks of a batch, one string a text.
ONE_SIDE = {
    "right": ["111111", "111000", "110000"],
    "left": ["111111", "001111", "000001"],
    "either": ["011110", "000011", "111000"],
    "longer than any": ["111000", "110000", "111000"],
    "one text": ["110000"],
    "nothing in one": ["111100", "000000", "110000"],
}


def masked(tiny: Tiny, rows: list[str]) -> dict[str, Tensor]:
    """Tokens with this mask."""
    mask = torch.tensor([[int(token) for token in row] for row in rows])
    given = inputs(tiny, *mask.shape)
    return given | {"input_ids": given["input_ids"].masked_fill(mask == 0, tiny.pad), "attention_mask": mask}


def feed_forward(model: Any) -> tuple[torch.nn.Module, str]:
    """What holds the second layer's feed-forward part, and its name there."""
    encoder = model.base_model.encoder
    return (
        (encoder.block[1].layer[-1], "DenseReluDense")
        if hasattr(encoder, "block")
        else (encoder.layer[1], "intermediate")
    )


def states(model: Any, **given: Any) -> tuple[Tensor, ...]:
    """What goes into the encoder's layers and comes out of them."""
    output = model(**given, output_hidden_states=True)
    return output["encoder_hidden_states" if "encoder_hidden_states" in output else "hidden_states"]


class Seen(torch.nn.Module):
    """Stands in for a layer's feed-forward part and writes down what it was given."""

    def __init__(self, wrapped: torch.nn.Module) -> None:
        super().__init__()
        self.wrapped, self.shapes = wrapped, []

    def forward(self, x: Tensor) -> Tensor:
        """The part's own output."""
        self.shapes.append(list(x.shape))
        return self.wrapped(x)


def shapes(model: Any, **given: Any) -> list[list[int]]:
    """Those of what the second layer computes outside of attention."""
    holder, name = feed_forward(model)
    seen = Seen(getattr(holder, name))
    setattr(holder, name, seen)
    model(**given)
    setattr(holder, name, seen.wrapped)
    return seen.shapes


@EVERY
@pytest.mark.parametrize("rows", [pytest.param(rows, id=name) for name, rows in ONE_SIDE.items()])
@torch.no_grad()
def test_layers_see_tokens_alone(tiny: Tiny, rows: list[str]) -> None:
    """And every state of every layer is that of transformers, in its place; zeros where there is no token."""
    model, given = eager(tiny.model()), masked(tiny, rows)
    shown = given["attention_mask"].bool()
    theirs = states(model, **given)
    ours = states(relpos.hf.patch(model), **given)
    assert shapes(model, **given) == [[1, int(shown.sum()), WIDTH]]
    assert len(ours) == len(theirs) == 3
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        near(mine[shown], other[shown], 1e-5)
    for mine in ours:
        assert (mine[~shown] == 0).all()
    as_tuple = model(**given, return_dict=False)
    assert torch.equal(as_tuple[0], model(**given).logits)


@EVERY
@torch.no_grad()
def test_padding_stays_where_it_cannot_be_left_out(tiny: Tiny) -> None:
    """A hole counts in distances; probabilities are of the padded batch; a hook expects the shapes it knows."""
    model = eager(tiny.model())
    given = {"holes": masked(tiny, ["111111", "110110"]), "no padding": masked(tiny, ["111111", "111111"])}
    theirs = {name: logits(model, tiny, batch) for name, batch in given.items()}
    relpos.hf.patch(model)
    for name, batch in given.items():
        assert shapes(model, **batch) == [[2, 6, WIDTH]]
        near(logits(model, tiny, batch), theirs[name], 1e-5, name)
    batch = masked(tiny, ONE_SIDE["right"])
    assert shapes(model, **batch) == [[1, 11, WIDTH]]
    assert shapes(model, **batch, output_attentions=True) == [[3, 6, WIDTH]]
    found = []
    hook = next(feed_forward(model)[0].children()).register_forward_hook(
        lambda module, given, output: found.append(output)
    )
    assert shapes(model, **batch) == [[3, 6, WIDTH]]
    assert len(found) == 1
    hook.remove()
    assert shapes(model, **batch) == [[1, 11, WIDTH]]


@EVERY
@pytest.mark.parametrize("checkpoints", [False, True])
def test_gradients_of_tokens_alone(tiny: Tiny, checkpoints: bool) -> None:
    """Of a batch of which half is padding, also computed anew in the backward pass."""
    model, given = eager(tiny.model()).train(), masked(tiny, ["111100", "000010", "001100"])
    want = gradients(model, tiny, given)
    relpos.hf.patch(model)
    if checkpoints:
        if not model.supports_gradient_checkpointing:
            pytest.skip("transformers cannot checkpoint it")
        model.gradient_checkpointing_enable({"use_reentrant": False})
    same_gradients(gradients(model, tiny, given), want)


@EVERY
@torch.no_grad()
def test_numbers_in_padding_reach_nobody(tiny: Tiny) -> None:
    model, given = relpos.hf.patch(tiny.model()), masked(tiny, ONE_SIDE["either"])
    shown = given["attention_mask"].bool()
    x = model.get_input_embeddings()(given.pop("input_ids"))
    where = ... if tiny.kind == BOTH else shown
    want = model(inputs_embeds=x, **given).logits[where]
    x[~shown] = float("nan")
    assert torch.equal(model(inputs_embeds=x, **given).logits[where], want)


@EVERY
@torch.no_grad()
def test_masks_of_nothing_and_of_more_than_there_is(tiny: Tiny) -> None:
    """No token at all is computed as it was; a mask of another length is refused, and picks no tokens."""
    model = relpos.hf.patch(tiny.model())
    given = masked(tiny, ["000000", "000000"])
    assert shapes(model, **given) == [[2, 6, WIDTH]]
    assert model(**given).logits.isfinite().all()
    given["attention_mask"] = masked(tiny, ["00011111", "11111111"])["attention_mask"]
    with pytest.raises((ValueError, RuntimeError)):
        model(**given)


def test_padding_stays_for_attention_of_another_kind() -> None:
    """A layer whose attention `patch` left alone knows nothing of texts end to end."""
    model, given = relpos.hf.patch(TINY["mpnet"].model()), masked(TINY["mpnet"], ONE_SIDE["right"])
    assert shapes(model, **given) == [[1, 11, WIDTH]]
    model.mpnet.encoder.layer[0].attention.attn = Own()
    assert shapes(model, **given) == [[3, 6, WIDTH]]


class Own(torch.nn.Module):
    """Attention that lets nothing pass but its input."""

    def forward(self, x: Tensor, *args: Any, **options: Any) -> tuple[Tensor]:
        """The input."""
        return (x,)
