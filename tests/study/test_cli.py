"""The command: options reach the study, errors are one clear message, help is light."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import relpos
from relpos.cli.app import app
from relpos.cli.extras import needs_extra
from relpos.study import Recipe, StudyConfig

SOURCE = str(Path(relpos.__file__).parents[1])
TINY = ["--length", "16", "--multiples", "1,2", "--steps", "4", "--size", "tiny", "--threads", "1"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["study", *arguments])
    return result.exit_code, result.output


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": SOURCE}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_options_reach_the_configuration(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, output = run(*TINY, "--schemes", "t5, learned", "--seeds", "0,2", "--text", text, "--out", str(folder))
    assert code == 0, output
    config = StudyConfig.from_json(json.loads((folder / "config.json").read_text())["config"])
    assert config.schemes == ("t5", "learned")
    assert config.seeds == (0, 2)
    assert (config.recipe.length, config.recipe.multiples, config.recipe.steps) == (16, (1, 2), 4)
    assert (config.recipe.size, config.recipe.threads, config.recipe.text) == ("tiny", 1, text)
    assert "undefined" in output
    assert "learned" in output
    assert "extrapolation.png" in output
    assert "report.html" in output

    again, output = run(*TINY, "--schemes", "t5, learned", "--seeds", "0,2", "--text", text, "--out", str(folder))
    assert again == 0
    assert "windows end to end" in output
    code, output = run(*TINY, "--schemes", "t5", "--text", text, "--out", str(folder))
    assert code == 2
    assert "config.schemes" in output
    assert "another --out" in output


def test_quick_is_shorter_and_has_a_folder_of_its_own(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--size", "tiny", "--length", "4", "--threads", "1", "--text", text, "--schemes", "nope"]
    code, output = run("--quick", *options)
    assert code == 0, output
    quick = StudyConfig.from_json(json.loads(Path("runs/quick/config.json").read_text())["config"]).recipe
    assert (quick.steps, quick.multiples) == (80, (1, 2, 4, 8, 16))
    assert quick.steps <= Recipe().steps / 4
    assert Path("runs/quick/extrapolation.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schemes", "ropee"], "did you mean 'rope'"),
        (["--multiples", "1,two"], "whole numbers with commas"),
        (["--size", "giant"], "tiny, small, medium"),
        (["--steps", "0"], "1 or more"),
        (["--length", "10"], "a multiple of 4"),
        (["--text", "no/such/file"], "check the path"),
    ],
)
def test_errors_are_one_message_and_write_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run(*arguments)
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "runs").exists()


def test_help_imports_nothing_heavier_than_torch() -> None:
    code = """
import sys
sys.argv = ["relpos", "study", "--help"]
from relpos.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
heavy = {"altair", "vl_convert", "transformers", "tensorboard", "safetensors", "pandas"} & set(sys.modules)
assert not heavy, heavy
assert not [name for name in sys.modules if name.startswith(("relpos.study", "relpos.plots"))]
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert all(
        option in done.stdout
        for option in (
            "--schemes",
            "--length",
            "--multiples",
            "--steps",
            "--seeds",
            "--size",
            "--text",
            "--out",
            "--quick",
            "--report-only",
        )
    )


@pytest.mark.parametrize("package", ["typer", "altair", "safetensors", "tensorboard", "rich", "vl_convert", "jinja2"])
def test_a_missing_package_gets_a_clear_word(package: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
sys.argv = ["relpos", "study"]
from relpos.cli import main
main()
"""
    done = python(code)
    assert done.returncode == 1
    assert "pip install 'relpos[study]'" in done.stderr
    assert package in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_module_of_another_kind_is_not_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match="unheard_of"), needs_extra("study"):
        raise ModuleNotFoundError("No module named 'unheard_of'", name="unheard_of")


def test_help_shows_the_defaults() -> None:
    output = CliRunner().invoke(app, ["study", "--help"], env={"COLUMNS": "200"}).output
    for default in ("64", "1,2,4,8,10,16", str(Recipe().steps), "small", "runs/default"):
        assert f"(default: {default}" in output


@pytest.mark.parametrize("content", ["", '{"scheme": ', "null", "[]", "{}"])
@pytest.mark.parametrize("name", ["config.json", "trials/t5-seed0/config.json", "trials/t5-seed0/result.json"])
def test_a_damaged_file_is_refused_by_name(text: str, tmp_path: Path, name: str, content: str) -> None:
    options = [*TINY, "--schemes", "t5", "--text", text, "--out", str(tmp_path / "run")]
    assert run(*options)[0] == 0
    (tmp_path / "run" / name).write_text(content)
    code, output = run(*options)
    assert code == 2
    assert str(Path(name).parent if "config" in name else Path(name)).split("/")[-1] in output
    assert "What to do: " in output


def test_a_checkpoint_of_other_content_is_refused(text: str, tmp_path: Path) -> None:
    options = [*TINY, "--schemes", "t5", "--text", text, "--out", str(tmp_path / "run")]
    assert run(*options)[0] == 0
    (tmp_path / "run/trials/t5-seed0/result.json").unlink()
    state = next((tmp_path / "run").rglob("state.safetensors"))
    save_file({"model.head.bias": torch.zeros(3)}, state, metadata={"seconds": "1.0"})
    code, output = run(*options)
    assert code == 2
    assert "state.safetensors" in output


def test_a_run_folder_inside_the_text_or_in_place_of_a_file_is_refused(text: str, tmp_path: Path) -> None:
    code, output = run(*TINY, "--text", str(Path(text).parent), "--out", str(Path(text).parent / "run"))
    assert (code, "inside the text" in output) == (2, True)
    assert run(*TINY, "--text", text, "--out", text)[0] == 2
