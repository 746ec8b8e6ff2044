"""Projected distances are made once in inference, and again as soon as anything they come from has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_patched_models import eager, near
from torch import nn
from zoo import ENCODER, Tiny, deberta, deberta_v2, inputs

import relpos.hf
from relpos.hf import kept

TINY = {
    "v3": Tiny(deberta_v2(), ENCODER, 3),
    "v2, tables of its own": Tiny(deberta_v2(share_att_key=False), ENCODER, 3),
    "v1": Tiny(deberta(), ENCODER, 3),
}


@pytest.fixture(autouse=True, params=["fingerprints", "copies"])
def _marks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's fingerprints, and with copies, as where no kernel was built."""
    if request.param == "copies":
        monkeypatch.setattr(kept, "fingerprint", lambda x: None)


@pytest.fixture(params=TINY.values(), ids=TINY)
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return request.param


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every product of a table, as it is made."""
    made: list[int] = []
    linear = nn.Linear.forward

    def counting(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:  # hidden states have a batch, the embedding of distances has none
            made.append(len(x))
        return linear(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counting)
    return made


def pair(tiny: Tiny) -> tuple[Any, Any]:
    theirs, ours = eager(tiny.model()), relpos.hf.patch(eager(tiny.model()))
    ours.load_state_dict(theirs.state_dict())
    return theirs.eval(), ours.eval()


def attention(model: nn.Module) -> Any:
    return next(m for m in model.modules() if type(m).__name__ == "DisentangledSelfAttention")


def projection(model: nn.Module) -> nn.Linear:
    """What makes the table that queries meet."""
    self = attention(model)
    return self.pos_proj if hasattr(self, "pos_proj") else self.key_proj if self.share_att_key else self.pos_key_proj


def embedding(model: nn.Module) -> torch.Tensor:
    return next(p for name, p in model.named_parameters() if "rel_embeddings" in name)


@torch.no_grad()
def test_made_once_at_any_length(tiny: Tiny, products: list[int]) -> None:
    theirs, ours = pair(tiny)
    for length in (5, 9, 2):
        given = inputs(tiny, 2, length)
        want = theirs(**given).logits
        products.clear()
        near(ours(**given).logits, want, 1e-5)
        assert bool(products) == (length == 5)


def through_data(model: nn.Module) -> None:
    projection(model).weight.data.mul_(1.5)


def in_place(model: nn.Module) -> None:
    projection(model).weight.mul_(1.5)


def one_number(model: nn.Module) -> None:
    projection(model).weight.data[-1, -1] += 1


def another_tensor(model: nn.Module) -> None:
    self = projection(model)
    self.weight = nn.Parameter(self.weight * 1.5)


def of_the_embedding(model: nn.Module) -> None:
    embedding(model).data[embedding(model).shape[0] // 2] += 1


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: x * 1.2 for name, x in model.state_dict().items()})


CHANGES: list[Callable[[nn.Module], None]] = [
    through_data,
    in_place,
    one_number,
    another_tensor,
    of_the_embedding,
    loaded,
    lambda model: model.double(),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_made_again_after_a_change(tiny: Tiny, change: Callable[[nn.Module], None]) -> None:
    theirs, ours = pair(tiny)
    given = inputs(tiny, 1, 9)
    before = ours(**given).logits
    change(theirs)
    change(ours)
    after = ours(**given).logits
    near(after, theirs(**given).logits, 1e-5)
    assert not torch.equal(after, before)


def test_made_anew_in_training_under_autocast_and_with_hooks(tiny: Tiny, products: list[int]) -> None:
    _, ours = pair(tiny)
    given = inputs(tiny, 1, 9)
    with torch.no_grad():
        ours(**given)
    products.clear()
    ours(**given).logits.sum().backward()  # gradients, with dropout off
    assert products
    reached = products[0]
    assert embedding(ours).grad is not None
    assert (embedding(ours).grad != 0).any()
    products.clear()
    ours.train()
    with torch.no_grad():
        ours(**given)
    assert products == [reached] * len(products)
    assert products
    ours.eval()
    products.clear()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours(**given)
    assert products
    seen = []
    projection(ours).register_forward_hook(lambda _, given, output: seen.append(given[0].dim()))
    with torch.no_grad():
        ours(**given)
    assert 2 in seen


@torch.no_grad()
def test_kept_beside_the_model_and_freed(tiny: Tiny) -> None:
    _, ours = pair(tiny)
    given = inputs(tiny, 1, 9)
    names, before = set(vars(projection(ours))), len(kept._KEPT)
    want = ours(**given).logits
    assert set(vars(projection(ours))) == names
    assert len(kept._KEPT) > before
    copied = copy.deepcopy(ours)
    attention(copied).apply(lambda m: m.weight.mul_(2) if isinstance(m, nn.Linear) else None)
    assert not torch.equal(copied(**given).logits, want)
    assert torch.equal(ours(**given).logits, want)
    relpos.hf.restore(ours)
    relpos.hf.restore(copied)
    assert len(kept._KEPT) == before


@torch.no_grad()
def test_layers_share_one_copy_of_the_embedding(tiny: Tiny) -> None:
    _, ours = pair(tiny)
    ours(**inputs(tiny, 1, 9))
    copies = [kept._KEPT[child][0][0] for child in ours.modules() if child in kept._KEPT]
    assert len(copies) > 1
    assert len({x.untyped_storage().data_ptr() for x in copies}) == 1
    assert copies[0].untyped_storage().data_ptr() != embedding(ours).untyped_storage().data_ptr()
    relpos.hf.restore(ours)
    assert not any(child in kept._SHARED for child in ours.modules())


@torch.no_grad()
def test_rows_that_no_pair_meets_are_not_projected(products: list[int]) -> None:
    tiny = TINY["v1"]
    _, ours = pair(tiny)
    ours.train()
    for length, rows in ((1, 1), (5, 9)):
        products.clear()
        ours(**inputs(tiny, 1, length))
        assert products
        assert set(products) == {rows}
