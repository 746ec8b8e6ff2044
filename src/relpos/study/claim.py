"""A folder belongs to one configuration: written into a new folder, compared in an old one."""

from pathlib import Path
from typing import Any

from relpos import errors, files
from relpos.study.config import differences


def claim(folder: Path, ours: dict[str, Any], *, what: str) -> None:
    """Make `folder` and write `ours` into its `config.json`, or refuse a folder with another one, naming what differs.

    `what` is the folder's content in the message: "run" or "trial".
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    if not path.exists():
        files.write_json(path, ours)
        return
    found = differences(ours, files.read_json(path))
    if found:
        raise errors.value(
            "relpos study",
            f"{folder}, a {what} of another configuration ({'; '.join(found)})",
            "a new folder, or the same configuration to go on with it",
            "give another --out, or remove the folder.",
        )
