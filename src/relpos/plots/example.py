"""The example of the data flow picture: five words, a small table, and every number on the way to their scores.

The sentence has one word twice. Its two tokens have the same content, so that without positions their scores are
equal; the table, trained to look at the word before, tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

import relpos
from relpos import functional

SENTENCE = ("the", "cat", "eats", "the", "fish")
MAX_DISTANCE, WIDTH = 2, 4


@dataclass(frozen=True)
class Example:
    """Everything that the picture shows: `[T, T]` by query and key, and the table `[2k + 1]`."""

    distance: Int[Tensor, "T T"]
    row: Int[Tensor, "T T"]
    table: Float[Tensor, " R"]
    bias: Float[Tensor, "T T"]
    content: Float[Tensor, "T T"]
    score: Float[Tensor, "T T"]


def example() -> Example:
    """The numbers, each from the library's own call."""
    vectors = _word_vectors()
    positions = relpos.Positions.arange(len(SENTENCE))
    scheme = _trained(vectors)
    bias = scheme.bias(len(SENTENCE))[0].detach()
    content = vectors @ vectors.T / WIDTH**0.5
    distance = positions.distance()
    row = functional.shaw_index(distance, MAX_DISTANCE)
    return Example(distance, row, scheme.table.detach()[0], bias, content, content + bias)


def _word_vectors() -> Float[Tensor, "T D"]:
    """A vector of -1, 0 and 1 for each word; equal words have equal vectors."""
    generator = torch.Generator().manual_seed(8)
    of_word = {word: torch.randint(-1, 2, (WIDTH,), generator=generator).float() for word in dict.fromkeys(SENTENCE)}
    return torch.stack([of_word[word] for word in SENTENCE])


def _trained(vectors: Float[Tensor, "T D"]) -> relpos.ShawBias:
    """A table that has learned to look at the word before, rounded to tenths so that a reader can add."""
    scheme = relpos.ShawBias(num_heads=1, max_distance=MAX_DISTANCE)
    optimizer = torch.optim.SGD(scheme.parameters(), lr=1.0)
    query = vectors[None, None]
    for _ in range(10):
        weights = relpos.attention_weights(query, query, query, scheme)[0, 0]
        loss = -weights.diagonal(-1).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scheme.table.copy_((10 * scheme.table).round() / 10)
    return scheme
