"""Peak memory of a training step and of a long window, counted in torch's own allocator: the same in every run."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

from relpos.study.config import TrialConfig
from relpos.study.model import build_model
from relpos.study.optimizer import make_optimizer, set_learning_rate
from relpos.study.results import Memory
from relpos.study.seeds import generator
from relpos.study.train import train_step


def measure_memory(config: TrialConfig) -> Memory:
    """The peak of one training step, and of one window of the longest evaluated length, on a model of its own.

    The step is the second one, when the optimizer has its moments; its own gradients count, weights and moments do not.
    Memory does not depend on what the bytes are.
    """
    recipe = config.recipe
    model = build_model(config)
    optimizer = make_optimizer(model, recipe)
    set_learning_rate(optimizer, 0, recipe)
    longest = recipe.lengths[-1]
    tokens = torch.randint(256, (recipe.batch_size, recipe.length + 1), generator=generator("memory"))
    window = torch.randint(256, (1, longest), generator=generator("memory"))
    train_step(model, optimizer, tokens, config)
    optimizer.zero_grad()
    step = peak_bytes(lambda: train_step(model, optimizer, tokens, config))
    limit = model.max_length()
    if limit is not None and longest > limit:
        return Memory(step, longest, None)
    model.eval()
    with torch.no_grad():
        return Memory(step, longest, peak_bytes(lambda: model(window)))


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes that torch's CPU allocator had handed out at once during `call`, beyond those before it.

    Scratch space that a kernel takes from elsewhere is not seen.
    """
    with _without_stderr(), profile(profile_memory=True) as records:
        call()
    assert records.kineto_results is not None
    blocks: dict[int, int] = {}
    held = peak = 0
    for address, size in _allocations(records.kineto_results.experimental_event_tree()):
        if size > 0:
            blocks[address] = size
            held += size
            peak = max(peak, held)
        else:
            held -= blocks.pop(address, 0)  # 0: a block from before the call, which was not counted either
    return peak


def _allocations(tree: list[Any]) -> list[tuple[int, int]]:
    """Address and size of every block in the order of time; the size is negative where it was given back."""
    found: list[tuple[int, int, int]] = []
    while tree:
        event = tree.pop()
        tree += event.children
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    return [(address, size) for _, address, size in sorted(found, key=lambda each: each[0])]


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what torch's profiler writes to the process's stderr on every start and stop; exceptions still rise."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
