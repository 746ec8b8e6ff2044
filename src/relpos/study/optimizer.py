"""AdamW with a learning rate of their own for position tables, and the schedule as a function of the step alone.

Tables that act inside attention get `position_rate` times the network's learning rate, tables of the input `input_rate`
times, both without weight decay. AdamW moves a parameter by about its learning rate per step, whatever the gradient's
size. A weight matrix is done after a few hundredths, but a score bias has to travel several units before softmax
forgets a distant token, and a few hundred steps at the network's rate cannot take it there; weight decay pulls it back
on top.

Measured with the default network (320 steps, rate 3e-3, seed 0, one thread), perplexity at the trained length and at 16
times it:

    factor       1              10            30            100
    t5           7.33, 10.29    4.69, 6.98    4.51, 4.73    4.50, 4.36
    shaw_bias    7.31,  9.97                                4.49, 4.34
    deberta      5.19,  7.35                                4.63, 4.55
    learned      6.85           6.02          6.30

against 5.85 and 5.75 for ALiBi, which has nothing to learn. The rows for far distances are read least and so arrive
last: a factor of 10 is enough at the trained length and not beyond it.
"""

import math

from torch import nn
from torch.optim import AdamW

from relpos.study.config import Recipe
from relpos.study.model import ByteLM


def make_optimizer(model: ByteLM, recipe: Recipe) -> AdamW:
    """Three groups: matrices (with weight decay), biases and norms (without), position parameters."""
    positions = model.position_parameters()
    position_rate = recipe.position_rate if model.absolute is None else recipe.input_rate
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if name not in positions:
            (matrices if parameter.dim() > 1 else vectors).append(parameter)
    groups = [
        {"params": matrices, "rate": 1.0, "weight_decay": recipe.weight_decay},
        {"params": vectors, "rate": 1.0, "weight_decay": 0.0},
        {"params": list(positions.values()), "rate": position_rate, "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return AdamW(used, lr=recipe.learning_rate, betas=(0.9, 0.99), fused=True)


def learning_rate(step: int, recipe: Recipe) -> float:
    """The network's learning rate at `step`: a linear warm-up, then half a cosine down to a tenth."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def set_learning_rate(optimizer: AdamW, step: int, recipe: Recipe) -> float:
    """Give every group its learning rate for `step`; returns the network's."""
    rate = learning_rate(step, recipe)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
    return rate
