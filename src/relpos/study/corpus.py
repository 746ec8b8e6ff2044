"""The text: bytes to train on and bytes of other files to score.

Without `--text` it is the source of the Python standard library, which every machine with Python has: the modules that
stand directly in the library's folder (about 4.7 MB), not its packages, tests or site-packages. Tokens are bytes.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from relpos import errors
from relpos.study.config import Recipe
from relpos.study.results import CorpusSummary

HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Corpus:
    """Training bytes and held-out bytes, and what is needed to tell one corpus from another."""

    rule: str
    files: int
    skipped: int
    bytes: int
    sha256: str
    held_out_files: tuple[str, ...]
    train: UInt8[Tensor, " N"]
    held_out: UInt8[Tensor, " M"]

    def summary(self) -> CorpusSummary:
        """What a results file says about the text; everything but the text."""
        return CorpusSummary(
            rule=self.rule,
            files=self.files,
            skipped_files=self.skipped,
            bytes=self.bytes,
            sha256=self.sha256,
            train_bytes=len(self.train),
            held_out_bytes=len(self.held_out),
            held_out_files=self.held_out_files,
        )


def load_corpus(text: str | None) -> Corpus:
    """Read the standard library (`text=None`), one file, or every UTF-8 file of a folder."""
    if text is None:
        return _from_files("*.py directly in the Python standard library's folder", _standard_library(), skipped=0)
    path = Path(text)
    if path.is_file():
        return _from_one_file(path.name, path.read_bytes())
    if not path.is_dir():
        raise errors.value("load_corpus", f"text={text!r}", "an existing file or folder", "check the path")
    documents, skipped = _folder(path)
    if not documents:
        raise errors.value("load_corpus", f"text={text!r}", "a folder with UTF-8 text files", "check the path")
    if len(documents) == 1:
        return _from_one_file(*next(iter(documents.items())))
    return _from_files("every UTF-8 file of the folder given, hidden ones left out", documents, skipped)


def held_out_segments(corpus: Corpus, recipe: Recipe) -> Int64[Tensor, "K N1"]:
    """`recipe.segments` evenly spaced stretches of held-out text that do not overlap.

    Each has `recipe.segment_length + 1` bytes, which makes `segment_length` input/target pairs: a multiple of every
    evaluated window. Several stretches instead of one long one, since one file is not what Python code looks like.
    """
    size = recipe.segment_length + 1
    needed = recipe.segments * size
    if len(corpus.held_out) < needed:
        raise errors.value(
            "held_out_segments",
            f"{len(corpus.held_out)} held-out bytes of {corpus.bytes}",
            f"at least {needed}: {recipe.segments} segments of {size}, which every length of {recipe.lengths} divides",
            "give more text, fewer or smaller multiples, or a shorter length",
        )
    spread = (len(corpus.held_out) - needed) / recipe.segments
    starts = [round(index * (size + spread)) for index in range(recipe.segments)]
    return torch.stack([corpus.held_out[start : start + size] for start in starts]).long()


def check_trainable(corpus: Corpus, recipe: Recipe) -> None:
    """Refuse a text that cannot fill one batch with different windows."""
    needed = recipe.batch_size * (recipe.length + 1)
    if len(corpus.train) < needed:
        raise errors.value(
            "check_trainable",
            f"{len(corpus.train)} training bytes of {corpus.bytes}",
            f"at least {needed}: {recipe.batch_size} windows of {recipe.length + 1}",
            "give more text",
        )


def _standard_library() -> dict[str, bytes]:
    folder = Path(sysconfig.get_path("stdlib"))
    # _sysconfigdata is written when Python is built: it differs between machines of the same version.
    paths = [path for path in folder.glob("*.py") if not path.name.startswith("_sysconfigdata")]
    if not paths:
        raise errors.value(
            "load_corpus", f"no *.py in {folder}", "a Python with its library as source", "give a text with --text"
        )
    return {path.name: path.read_bytes() for path in paths}


def _folder(folder: Path) -> tuple[dict[str, bytes], int]:
    documents: dict[str, bytes] = {}
    skipped = 0
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        content = path.read_bytes()
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            skipped += 1
            continue
        if content:
            documents[relative.as_posix()] = content
    return documents, skipped


def _from_files(rule: str, documents: dict[str, bytes], skipped: int) -> Corpus:
    """Hold out whole files, in the order of their paths' hashes, until they hold a tenth of the bytes."""
    paths = sorted(documents)
    total = sum(len(content) for content in documents.values())
    held_out: list[str] = []
    held_out_bytes = 0
    for path in sorted(paths, key=lambda path: hashlib.sha256(path.encode()).hexdigest()):
        if held_out_bytes >= HELD_OUT_SHARE * total or len(held_out) == len(paths) - 1:
            break
        held_out.append(path)
        held_out_bytes += len(documents[path])
    kept = set(held_out)
    return Corpus(
        rule=rule,
        files=len(paths),
        skipped=skipped,
        bytes=total,
        sha256=_digest(documents),
        held_out_files=tuple(sorted(held_out)),
        train=_tensor(b"".join(documents[path] for path in paths if path not in kept)),
        held_out=_tensor(b"".join(documents[path] for path in sorted(kept))),
    )


def _from_one_file(name: str, content: bytes) -> Corpus:
    cut = len(content) - round(HELD_OUT_SHARE * len(content))
    return Corpus(
        rule="one file, its last tenth held out",
        files=1,
        skipped=0,
        bytes=len(content),
        sha256=_digest({name: content}),
        held_out_files=(f"{name} from byte {cut}",),
        train=_tensor(content[:cut]),
        held_out=_tensor(content[cut:]),
    )


def _digest(documents: dict[str, bytes]) -> str:
    """A hash over paths and contents, each preceded by its size so that no two corpora spell the same bytes."""
    digest = hashlib.sha256()
    for path in sorted(documents):
        for part in (path.encode(), documents[path]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def _tensor(content: bytes) -> UInt8[Tensor, " N"]:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
