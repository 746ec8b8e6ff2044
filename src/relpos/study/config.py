"""What a study and one of its trials are asked to do: frozen values that survive a round trip through JSON.

A trial is a function of its `TrialConfig` and of nothing else, so trials may run in any order, one after another or on
different machines, and give the same losses.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Self, get_type_hints

from relpos import errors
from relpos.study.presets import check_scheme_name
from relpos.study.serial import plain, read

DEFAULT_SCHEMES = (
    "nope",
    "learned",
    "sinusoidal",
    "shaw_bias",
    "t5",
    "alibi",
    "alibi_reversed",
    "deberta",
    "rope",
)


@dataclass(frozen=True)
class Size:
    """The shape of the network: `layers` blocks, `width` channels, `heads` attention heads."""

    layers: int
    width: int
    heads: int


SIZES = {"tiny": Size(2, 64, 2), "small": Size(3, 128, 4), "medium": Size(4, 256, 8)}


@dataclass(frozen=True)
class Recipe:
    """Everything that all trials of a study share: the text, the network, the training and the evaluation.

    `length` is the trained length in bytes, `multiples` the evaluated lengths in units of it. `text` is a file or a
    folder, None for the Python standard library's source. `segments` held-out segments are scored, each as long as the
    least common multiple of the evaluated lengths. `position_rate` and `input_rate` are factors on the learning rate of
    position tables, inside attention and on the input (see `relpos.study.optimizer`). A checkpoint is written every
    `checkpoint_every` steps.
    """

    length: int = 64
    multiples: tuple[int, ...] = (1, 2, 4, 8, 10, 16)
    steps: int = 320
    size: str = "small"
    text: str | None = None
    segments: int = 2
    batch_size: int = 32
    learning_rate: float = 3e-3
    position_rate: float = 100.0
    input_rate: float = 10.0
    warmup: int = 20
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    checkpoint_every: int = 50
    threads: int = 2

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("length", "steps", "segments", "batch_size", "checkpoint_every", "threads"):
            if getattr(self, name) < 1:
                raise errors.value(f"Recipe({name}=...)", str(getattr(self, name)), "1 or more", f"raise {name}")
        for name in ("learning_rate", "position_rate", "input_rate", "clip_norm"):
            number = getattr(self, name)
            if not (math.isfinite(number) and number > 0):
                raise errors.value(f"Recipe({name}=...)", str(number), "a number above 0", f"raise {name}")
        if self.length % 4:
            raise errors.value(
                "Recipe(length=...)",
                str(self.length),
                "a multiple of 4 (the sliding stride is a quarter window)",
                f"use {self.length - self.length % 4 or 4} or {self.length + 4 - self.length % 4}",
            )
        if not self.multiples or min(self.multiples) < 1 or len(set(self.multiples)) != len(self.multiples):
            raise errors.value(
                "Recipe(multiples=...)", str(self.multiples), "different whole numbers, 1 or more", "give 1,2,4"
            )
        if self.size not in SIZES:
            raise errors.value("Recipe(size=...)", repr(self.size), f"one of {', '.join(SIZES)}", "choose a size")
        if self.warmup < 0 or self.weight_decay < 0:
            raise errors.value(
                "Recipe(warmup=..., weight_decay=...)", f"{self.warmup}, {self.weight_decay}", "0 or more", "raise them"
            )

    @property
    def shape(self) -> Size:
        """Layers, width and heads that `size` names."""
        return SIZES[self.size]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The evaluated lengths in bytes, shortest first."""
        return tuple(self.length * multiple for multiple in sorted(self.multiples))

    @property
    def segment_length(self) -> int:
        """Scored tokens per held-out segment: the shortest stretch that every evaluated length divides."""
        return self.length * math.lcm(*self.multiples)

    @property
    def attended_lengths(self) -> tuple[int, ...]:
        """Where attention is looked at: the trained length, and the longest evaluated one up to 8 times it."""
        longer = [length for length in self.lengths if self.length < length <= 8 * self.length]
        return (self.length, *longer[-1:])


@dataclass(frozen=True)
class TrialConfig:
    """One scheme trained from one seed. `corpus_sha256` names the exact bytes that the numbers belong to."""

    scheme: str
    seed: int
    corpus_sha256: str
    recipe: Recipe

    def __post_init__(self) -> None:
        _check_types(self)
        check_scheme_name(self.scheme)

    @property
    def name(self) -> str:
        """The name of the trial's folder."""
        return f"{self.scheme}-seed{self.seed}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them: tuples as lists, `recipe` as an object of its own."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; unknown or missing fields and wrong values raise."""
        return read(cls, data)


@dataclass(frozen=True)
class StudyConfig:
    """Which schemes are compared, from which seeds, under which recipe."""

    schemes: tuple[str, ...] = DEFAULT_SCHEMES
    seeds: tuple[int, ...] = (0,)
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        _check_types(self)
        for scheme in self.schemes:
            check_scheme_name(scheme)
        for name, items in (("schemes", self.schemes), ("seeds", self.seeds)):
            if not items or len(set(items)) != len(items):
                raise errors.value(
                    f"StudyConfig({name}=...)", str(items), "at least one, each once", "drop the repetition"
                )
        if min(self.seeds) < 0:
            raise errors.value("StudyConfig(seeds=...)", str(self.seeds), "whole numbers from 0", "use 0,1,2")

    def trials(self, corpus_sha256: str) -> tuple[TrialConfig, ...]:
        """The trials in the order in which they run: every scheme once, then the next seed."""
        return tuple(
            TrialConfig(scheme, seed, corpus_sha256, self.recipe) for seed in self.seeds for scheme in self.schemes
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them: tuples as lists, `recipe` as an object of its own."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; unknown or missing fields and wrong values raise."""
        return read(cls, data)


def differences(ours: dict[str, Any], theirs: Any, prefix: str = "") -> list[str]:
    """Name every field in which two configurations differ, as `recipe.steps: 320 here, 100 there`."""
    if not isinstance(theirs, dict):
        return [f"a configuration here, {theirs!r} there"]
    found: list[str] = []
    for key in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(key), theirs.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            found += differences(here, there, f"{prefix}{key}.")
        elif here != there:
            found.append(f"{prefix}{key}: {here!r} here, {there!r} there")
    return found


_TYPES: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    str | None: (str, type(None)),
    tuple[int, ...]: (tuple,),
    tuple[str, ...]: (tuple,),
    Recipe: (Recipe,),
}


def _check_types(config: Any) -> None:
    """Refuse wrong types at once: JSON files are edited by hand, and `steps="400"` would fail far from here."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        items = value if isinstance(value, tuple) else ()
        inner = int if hint == tuple[int, ...] else str
        # bool is an int to isinstance, and True steps is nobody's intention.
        wrong = not isinstance(value, _TYPES[hint]) or isinstance(value, bool)
        if wrong or any(not isinstance(item, inner) or isinstance(item, bool) for item in items):
            wanted = hint.__name__ if isinstance(hint, type) else str(hint)
            raise errors.wrong_type(f"{type(config).__name__}({name}=...)", repr(value), wanted, f"give {wanted}")
