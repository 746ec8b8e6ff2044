"""Files that are whole or absent: write beside the target, force to disk, then rename over it.

`os.replace` is atomic within one file system, and a rename is only durable once the folder that holds it is on disk
as well. A process killed at any point leaves the old file, the new file, or a stray `.tmp` that nobody reads.
"""

import json
import os
from pathlib import Path
from typing import Any

from relpos import errors


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, atomically and durably."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, atomically and durably."""
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by `data` as JSON. NaN and infinity are refused: they are not JSON, and never a result."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote; a damaged file is refused by name."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ValueError:
    """The refusal of a file of a run folder that this version did not write so."""
    return errors.value(
        "relpos study", f"{path}, damaged ({error})", "a file as this version writes it", f"remove {path}."
    )


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's list of names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
