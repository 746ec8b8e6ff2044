"""A study small enough to run in a second."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from relpos.study import Recipe, Silent, StudyConfig, StudyResult, run_study


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another are slow where tests share the cores, and these networks are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A text with structure at several distances: numbered lines that repeat words."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = ["position", "distance", "query", "key", "value", "bias", "table", "bucket", "slope", "angle"]
    path.write_text("".join(f"{i}: {words[i % 10]} {words[i * 7 % 10]} {words[i % 3]}\n" for i in range(2000)))
    return str(path)


@pytest.fixture(scope="session")
def recipe(text: str) -> Recipe:
    """One thread, since tests share the machine's cores."""
    return Recipe(
        length=16,
        multiples=(1, 2, 4),
        steps=12,
        size="tiny",
        text=text,
        segments=2,
        batch_size=4,
        warmup=3,
        checkpoint_every=5,
        threads=1,
    )


@pytest.fixture(scope="session")
def config(recipe: Recipe) -> StudyConfig:
    """Two schemes, one of them undefined beyond the trained length, from two seeds."""
    return StudyConfig(("learned", "rope"), (0, 1), recipe)


@pytest.fixture(scope="session")
def _run_once(config: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    folder = tmp_path_factory.mktemp("study") / "run"
    return folder, run_study(config, folder, Silent())


@pytest.fixture
def finished(_run_once: tuple[Path, StudyResult], tmp_path: Path) -> tuple[Path, StudyResult]:
    """The folder of a finished study, a copy of its own for each test, and what the study returned."""
    folder, result = _run_once
    return Path(shutil.copytree(folder, tmp_path / "finished")), result
