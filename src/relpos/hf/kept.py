"""What a layer projects from its embedding of distances, kept in inference while nothing it comes from has changed."""

from __future__ import annotations

from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from relpos._native import fingerprint
from relpos.hf.patched import hooks

#: What tells whether a tensor is what it was: its dtype, shape and fingerprint, or a copy.
Mark = tuple[torch.dtype, torch.Size, int] | Tensor
#: Of a projection: the marks of the input, weight and bias of its last product, and the product.
_KEPT: WeakKeyDictionary[nn.Module, tuple[tuple[Mark, ...], Tensor]] = WeakKeyDictionary()
#: Of a stack of layers: a copy of the embedding that all of them project.
_SHARED: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def shared(stack: nn.Module, embedding: Tensor) -> Tensor:
    """The copy of the embedding that was made before, where both are equal bit for bit, so that each layer sees at once
    that nothing has changed; else a new one. The embedding itself where no product is kept.
    """
    if not _is_plain_inference(stack) or not _is_plain(embedding):
        return embedding
    before = _SHARED.get(stack)
    if before is None or not _equal(embedding, before):
        before = _SHARED[stack] = embedding.detach().clone()
    return before


def keeps(projection: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a product of `projection` can serve again: plain layers in inference on a CPU, outside of a recording."""
    return (
        type(projection) is nn.Linear
        and _is_plain_inference(projection)
        and _is_plain(projection.weight)
        and "forward" not in vars(projection)
        and not hooks(projection)
    )


def project(projection: nn.Linear, x: Float[Tensor, "R E"]) -> Float[Tensor, "R F"]:
    """`projection(x)`, or what it gave before, where `x` and all weights equal those of then.

    For a projection of which `keeps` is true. Weights just read are compared by their fingerprints in a tenth of the
    product's time, and bit for bit with copies where no kernel was built. Version counters are no proof: writing to
    `.data` does not count.
    """
    sources = (x, projection.weight, *(() if projection.bias is None else (projection.bias,)))
    marks, product = _KEPT.get(projection, ((), x))
    if len(marks) != len(sources) or not all(map(_is_same, sources, marks)):
        product = projection(x)
        _KEPT[projection] = tuple(map(_mark, sources)), product
    return product


def forget(module: nn.Module) -> None:
    """Free what was kept of the projections in `module`."""
    for child in module.modules():
        _KEPT.pop(child, None)
        _SHARED.pop(child, None)


def _is_plain(x: Tensor) -> bool:
    """Whether its numbers are in memory, where others can be compared with them."""
    return x.device.type == "cpu" and type(x) in (Tensor, nn.Parameter) and not is_functorch_wrapped_tensor(x)


def _is_plain_inference(module: nn.Module) -> bool:
    if torch.is_grad_enabled() or module.training or torch.is_autocast_enabled("cpu"):
        return False
    return not (torch.compiler.is_compiling() or torch._C._get_tracing_state())


def _is_shared(x: Tensor) -> bool:
    """Whether it lies in a copy that nobody writes to."""
    return any(x.untyped_storage().data_ptr() == copy.untyped_storage().data_ptr() for copy in _SHARED.values())


def _mark(x: Tensor) -> Mark:
    x = x.detach()
    if _is_shared(x):
        return x
    found = fingerprint(x)
    return x.clone() if found is None else (x.dtype, x.shape, found)


def _is_same(x: Tensor, mark: Mark) -> bool:
    return _equal(x, mark) if isinstance(mark, Tensor) else mark == (x.dtype, x.shape, fingerprint(x))


def _equal(x: Tensor, y: Tensor) -> bool:
    """Bit for bit; eight bytes at a time take half the time of numbers."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.data_ptr() == y.data_ptr():  # a copy made here, of which both are views
        return True
    x, y = (bits.reshape(-1).view(torch.uint8) for bits in (x.detach(), y))
    whole = len(x) // 8 * 8 if x.storage_offset() % 8 == 0 else 0
    return torch.equal(x[whole:], y[whole:]) and torch.equal(x[:whole].view(torch.int64), y[:whole].view(torch.int64))
