"""Training one model: bit-equal on the same machine and thread count, however often it was stopped in between.

That needs three things: a batch that is a function of seed and step, a learning rate that is a function of the step,
and kernels that add in the same order each time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from torch.utils.tensorboard import SummaryWriter

from relpos.study import checkpoint
from relpos.study.checkpoint import Progress
from relpos.study.config import Recipe, TrialConfig
from relpos.study.model import ByteLM
from relpos.study.optimizer import make_optimizer, set_learning_rate
from relpos.study.reporter import Reporter
from relpos.study.seeds import generator


def batch(text: UInt8[Tensor, " N"], *, seed: int, step: int, recipe: Recipe) -> Int64[Tensor, "B T1"]:
    """`batch_size` windows of `length + 1` bytes: a function of the text, the seed and the step, for every scheme."""
    starts = torch.randint(len(text) - recipe.length, (recipe.batch_size,), generator=generator("batch", seed, step))
    return text[starts[:, None] + torch.arange(recipe.length + 1)].long()


def train(model: ByteLM, config: TrialConfig, text: UInt8[Tensor, " N"], folder: Path, reporter: Reporter) -> Progress:
    """Train `model` to the last step, from the newest checkpoint in `folder` where there is one."""
    recipe = config.recipe
    optimizer = make_optimizer(model, recipe)
    progress = checkpoint.load(folder / "checkpoints", model, optimizer)
    reporter.training_started(config, progress.step)
    model.train()
    # purge_step hides what a stopped process logged past its last checkpoint; those steps are about to be done again.
    with SummaryWriter(str(folder / "tensorboard"), purge_step=progress.step) as writer:
        while progress.step < recipe.steps:
            stop = min(recipe.steps, progress.step + recipe.checkpoint_every)
            progress = _train_until(stop, model, optimizer, config, text, progress, writer, reporter)
            writer.flush()
            checkpoint.save(folder / "checkpoints", model, optimizer, progress)
    return progress


def train_step(model: ByteLM, optimizer: AdamW, tokens: Int64[Tensor, "B T1"], config: TrialConfig) -> float:
    """One step of `optimizer` on one batch; returns the loss."""
    logits = model(tokens[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.recipe.clip_norm)
    optimizer.step()
    number = loss.item()
    if not number < float("inf"):
        raise FloatingPointError(
            f"relpos study: the training loss of {config.name} became {number}. Lower the learning rate."
        )
    return number


@contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """Fixed thread count and fixed order of additions inside the block; the process's own settings afterwards.

    Gradients of table look-ups are sums by index, which torch otherwise adds atomically from several threads.
    """
    before = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # A debugging aid that comes with the line above: it writes NaN into every new tensor, a sixth of the time here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(was_deterministic, warn_only=warned_only)


def _train_until(
    stop: int,
    model: ByteLM,
    optimizer: AdamW,
    config: TrialConfig,
    text: UInt8[Tensor, " N"],
    progress: Progress,
    writer: SummaryWriter,
    reporter: Reporter,
) -> Progress:
    losses = list(progress.losses)
    started = time.perf_counter()
    for step in range(progress.step, stop):
        rate = set_learning_rate(optimizer, step, config.recipe)
        loss = train_step(model, optimizer, batch(text, seed=config.seed, step=step, recipe=config.recipe), config)
        losses.append(loss)
        writer.add_scalar("train/loss", loss, step)
        writer.add_scalar("train/learning_rate", rate, step)
        reporter.step_done(config, step, loss)
    return Progress(tuple(losses), progress.seconds + time.perf_counter() - started)
