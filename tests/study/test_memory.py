"""Memory: counted bytes of known tensors, and lower bounds that the mathematics gives."""

import gc
import os

import pytest
import torch

from relpos import backends
from relpos.study import Recipe, TrialConfig
from relpos.study.memory import measure_memory, peak_bytes

RECIPE = Recipe(size="tiny", length=16, multiples=(1, 2, 16), batch_size=4, threads=1)


def of(scheme: str, recipe: Recipe = RECIPE) -> TrialConfig:
    return TrialConfig(scheme, 0, "", recipe)


def test_known_tensors_are_counted() -> None:
    kept = []

    def call() -> None:
        first = torch.zeros(1000)
        second = torch.zeros(2000)
        del first
        third = torch.zeros(500)
        kept.append(second)
        del third

    assert peak_bytes(call) == 4 * (1000 + 2000)


def test_what_was_there_before_does_not_count() -> None:
    there = torch.zeros(100_000)
    assert peak_bytes(lambda: there.neg_()) == 0
    assert peak_bytes(lambda: there.neg()) == 4 * 100_000


def test_a_step_holds_at_least_its_activations_and_gradients() -> None:
    """Per block the stream (twice), its norms, queries, keys, values and 8 widths of the GELU layer; the logits; the
    gradients of all weights."""
    found = measure_memory(of("nope"))
    tokens, width, layers = 4 * 16, 64, 2
    parameters = 256 * width * 2
    least = 4 * (tokens * (layers * (2 + 2 + 3 + 8) * width + 256) + parameters)
    assert least < found.train_step < 6 * least


def test_dense_attention_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the longest length its scores alone are heads * T * T numbers, several times."""
    linear = measure_memory(of("t5"))
    monkeypatch.setattr(backends, "BACKENDS", {"reference": backends.BACKENDS["reference"]})
    dense = measure_memory(of("t5"))
    assert dense.window == linear.window == 256
    assert dense.longest_window is not None
    assert linear.longest_window is not None
    assert dense.longest_window > 4 * 2 * 256 * 256 * 2
    assert dense.longest_window > linear.longest_window + 4 * 2 * 256 * 256


def test_a_learned_table_has_no_longest_window() -> None:
    found = measure_memory(of("learned"))
    assert found.longest_window is None
    assert found.train_step > 0


@pytest.mark.parametrize("scheme", ["alibi", "t5", "rope"])
def test_the_same_every_time(scheme: str) -> None:
    """Also after other work, so that a trial that was stopped and goes on ends with the same file."""
    first = measure_memory(of(scheme))
    measure_memory(of("deberta"))
    measure_memory(of(scheme, Recipe(size="tiny", length=32, multiples=(1, 16), batch_size=4, threads=1)))
    assert measure_memory(of(scheme)) == first


def test_garbage_from_before_does_not_count() -> None:
    """Tensors from before that are freed while the call runs must not be subtracted from its peak."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self
            self.tensor = torch.zeros(1000)

    kept = []
    peak_bytes(Cycle)  # leaves a cycle with a tensor that the profiler has seen
    peak_bytes(lambda: kept.append(torch.zeros(1000)))
    assert peak_bytes(lambda: (gc.collect(), kept.clear(), torch.zeros(100))) == 4 * 100


def test_it_is_silent_and_leaves_random_numbers_alone(capfd: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    measure_memory(of("nope"))
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), state)


def test_an_error_inside_is_not_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise ValueError("said aloud")

    with pytest.raises(ValueError, match="said aloud"):
        peak_bytes(fails)
    os.write(2, b"still there")
    assert "still there" in capfd.readouterr().err
