"""What is timed: a scheme, a task, a shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import relpos
from relpos import errors
from relpos.schemes import Scheme
from relpos.terms import DistanceBias

Task = Literal["forward", "train", "decode"]
TASKS: tuple[Task, ...] = ("forward", "train", "decode")
DTYPES = ("float32", "bfloat16", "float16", "float64")
#: Constructor arguments of the schemes that can be timed; learned tables are filled with normal numbers.
SCHEMES: dict[str, dict[str, Any]] = {
    "t5": {"scale": None},
    "alibi": {},
    "shaw_bias": {"max_distance": 64},
    "deberta": {"num_buckets": 256, "max_distance": 512},
    "shaw": {"max_distance": 64},
}
#: Those whose vectors meet the content, which takes a table of products in place of one of numbers.
WITH_CONTENT = ("deberta", "shaw")

#: Query, key and value to the output, `[B, H, T, D]` all.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Work:
    """One row of a benchmark.

    Attributes:
        task: "forward" without gradients; "train", forward and backward; "decode", one query after `length` keys.
        scheme: one of `SCHEMES`.
        length: of keys, and of queries unless one token is decoded.
    """

    task: Task
    scheme: str
    length: int
    is_causal: bool = False
    dtype: str = "float32"
    batch: int = 1
    heads: int = 8
    width: int = 64

    def __post_init__(self) -> None:
        call = "Work"
        for what, name, known in (
            ("task", self.task, TASKS),
            ("scheme", self.scheme, tuple(SCHEMES)),
            ("dtype", self.dtype, DTYPES),
        ):
            if name not in known:
                raise errors.unknown_name(call, what, name, known)
        errors.positive_int(call, length=self.length, batch=self.batch, heads=self.heads, width=self.width)
        errors.flags(call, is_causal=self.is_causal)

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return 1 if self.task == "decode" else self.length

    @property
    def has_content(self) -> bool:
        """Whether what the scheme adds depends on content and distance, not on distance alone."""
        return self.scheme in WITH_CONTENT

    def __str__(self) -> str:
        shape = "" if (self.batch, self.heads, self.width) == (1, 8, 64) else f" {self.batch}x{self.heads}x{self.width}"
        causal = " causal" if self.is_causal else ""
        return f"{self.task} {self.scheme}{causal} {self.dtype}{shape} T={self.length}"

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    def build(self) -> Scheme:
        """The scheme, its tables filled."""
        options = dict(SCHEMES[self.scheme])
        if self.scheme == "t5":
            options["bidirectional"] = not (self.is_causal or self.task == "decode")
        if self.has_content:
            options["head_dim"] = self.width
        scheme = relpos.make(self.scheme, num_heads=self.heads, **options)
        generator = torch.Generator().manual_seed(0)
        for table in scheme.parameters():
            torch.nn.init.normal_(table, generator=generator)
        return scheme

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Random query, key and value, which need gradients where the task is to train."""
        generator = torch.Generator().manual_seed(1)
        dtype = getattr(torch, self.dtype)

        def draw(length: int) -> Tensor:
            x = torch.randn(self.batch, self.heads, length, self.width, generator=generator)
            return x.to(dtype).requires_grad_(self.task == "train")

        return draw(self.queries), draw(self.length), draw(self.length)

    def bias(self, scheme: Scheme, rows: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The dense bias `[H, rows, Tk]`, -inf where a causal query may not see, for these query rows or all."""
        rows = torch.arange(self.queries) if rows is None else rows
        distance = torch.arange(self.length) - (rows[:, None] + self.length - self.queries)
        dense = distance_bias(scheme).values(distance, dtype)
        return dense.masked_fill(distance > 0, -math.inf) if self.is_causal else dense


def distance_bias(scheme: Scheme) -> DistanceBias:
    """The one thing that a scheme adds whose bias depends on distance alone."""
    (term,) = scheme.terms(relpos.Positions.arange(1))
    assert isinstance(term, DistanceBias)
    return term


def _default() -> tuple[Work, ...]:
    """The rows of `benchmarks/README.md`."""
    works: list[Work] = []
    works += [Work("forward", "t5", length) for length in (512, 2048, 4096, 16384)]
    works += [Work("forward", "t5", length, is_causal=True) for length in (512, 2048, 4096)]
    works += [Work("forward", "alibi", 2048), Work("forward", "alibi", 2048, is_causal=True)]
    works += [Work("forward", "t5", 2048, causal, "bfloat16") for causal in (False, True)]
    works += [Work("forward", "deberta", length, heads=12) for length in (512, 1024, 2048, 4096)]
    works += [Work("forward", "deberta", length, dtype="bfloat16", heads=12) for length in (128, 512, 2048)]
    works += [Work("forward", "shaw", 2048, heads=12)]
    works += [Work("decode", scheme, length, True) for scheme in ("t5", "alibi") for length in (4096, 32768)]
    works += [Work("train", "alibi", 512), Work("train", "alibi", 2048, is_causal=True)]
    works += [Work("train", "t5", length) for length in (1024, 2048, 4096)]
    for scheme in ("t5", "alibi"):
        works += [Work("train", scheme, length, True, "float32", 32, 4, 32) for length in (64, 128, 256)]
    works += [Work("train", "deberta", length, heads=12) for length in (1024, 2048)]
    return tuple(works)


def _default_memory() -> tuple[tuple[Work, str], ...]:
    """Bias of distance alone, then DeBERTa's: ours at both lengths, the others where all pairs fit."""
    pairs: list[tuple[Work, str]] = []
    tasks: tuple[Task, ...] = ("forward", "train")
    for task in tasks:
        pairs += [(Work(task, "t5", 4096), name) for name in ("sdpa without bias", "relpos sdpa", "dense bias + sdpa")]
        pairs += [(Work(task, "t5", 16384), name) for name in ("relpos sdpa", "dense bias + sdpa")]
    pairs.append((Work("forward", "t5", 65536), "relpos sdpa"))
    for task, length in itertools.product(tasks, (4096, 16384)):
        pairs += [(Work(task, "deberta", length, heads=12), name) for name in ("relpos blocked", "eager")]
    return tuple(pairs)


#: What `make bench` runs.
DEFAULT = _default()
#: Whose memory it measures, and at what.
DEFAULT_MEMORY = _default_memory()
