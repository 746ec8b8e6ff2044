"""The same text on every machine, cut the same way, and nothing held out is trained on."""

import hashlib
from pathlib import Path

import pytest
import torch

from relpos.study import Recipe, load_corpus
from relpos.study.corpus import check_trainable, held_out_segments


def folder_of(path: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return str(path)


TEN_FILES = {f"part/{index}.txt": f"file {index} ".encode() * 50 for index in range(10)}


def test_the_standard_library() -> None:
    corpus = load_corpus(None)
    assert 3_000_000 < corpus.bytes < 7_000_000
    assert corpus.files > 100
    assert "import " in bytes(corpus.train[:20000].tolist()).decode("utf-8", errors="replace")
    assert 0.1 <= len(corpus.held_out) / corpus.bytes < 0.2
    assert len(corpus.train) + len(corpus.held_out) == corpus.bytes
    assert load_corpus(None).sha256 == corpus.sha256
    assert not any("/" in name or name.startswith("_sysconfigdata") for name in corpus.held_out_files)


def test_whole_files_are_held_out_by_the_hash_of_their_path(tmp_path: Path) -> None:
    corpus = load_corpus(folder_of(tmp_path, TEN_FILES))
    by_hash = sorted(TEN_FILES, key=lambda path: hashlib.sha256(path.encode()).hexdigest())
    assert corpus.held_out_files == (by_hash[0],)
    assert bytes(corpus.held_out.tolist()) == TEN_FILES[by_hash[0]]
    assert bytes(corpus.train.tolist()) == b"".join(TEN_FILES[path] for path in sorted(TEN_FILES) if path != by_hash[0])


def test_the_hash_sees_names_contents_and_their_borders(tmp_path: Path) -> None:
    base = {"a": b"1" * 99, "b": b"2" * 99}
    one_file = {"a": b"1" * 99 + b"b" + b"2" * 99}
    variants = [base, one_file, {"a": b"1" * 99, "c": b"2" * 99}, {**base, "c": b"3"}, {**base, "b": b"3" * 99}]
    hashes = [load_corpus(folder_of(tmp_path / str(i), files)).sha256 for i, files in enumerate(variants)]
    assert len(set(hashes)) == len(variants)
    assert load_corpus(folder_of(tmp_path / "again", base)).sha256 == hashes[0]


def test_one_file_holds_out_its_tail(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(200)))
    corpus = load_corpus(str(path))
    assert corpus.train.tolist() == list(range(180))
    assert corpus.held_out.tolist() == list(range(180, 200))


def test_binary_files_are_skipped_and_counted_hidden_ones_ignored(tmp_path: Path) -> None:
    text = folder_of(tmp_path, TEN_FILES | {"picture.png": b"\xff\xfe\x00", ".git/config": b"secret", "empty": b""})
    corpus = load_corpus(text)
    assert (corpus.files, corpus.skipped) == (10, 1)


def test_a_missing_path_and_a_folder_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="check the path"):
        load_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="UTF-8"):
        load_corpus(folder_of(tmp_path, {"x.bin": b"\xff"}))


def test_segments_are_held_out_text_apart_from_one_another(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(index % 251 for index in range(20_000)))
    corpus = load_corpus(str(path))
    recipe = Recipe(length=16, multiples=(1, 2, 3), segments=5)
    segments = held_out_segments(corpus, recipe)
    assert segments.shape == (5, 16 * 6 + 1)
    held_out = bytes(corpus.held_out.tolist())
    starts = [held_out.index(bytes(row.tolist())) for row in segments]
    # 251 is prime, so a segment may repeat earlier text; its own place is the n-th fifth of the stretch.
    assert len(set(starts)) == 5
    assert all(torch.equal(row, corpus.held_out[i * 400 : i * 400 + 97].long()) for i, row in enumerate(segments))


def test_a_text_too_small_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * 2000)
    corpus = load_corpus(str(path))
    with pytest.raises(ValueError, match=r"200 held-out bytes of 2000.*at least 10242"):
        held_out_segments(corpus, Recipe())
    with pytest.raises(ValueError, match=r"1800 training bytes.*at least 2080"):
        check_trainable(corpus, Recipe())
