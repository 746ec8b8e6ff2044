"""Collect the trained tables of a study: `python docs/study/make_tables.py RUN_FOLDER` writes tables.safetensors.

Of each scheme that learns, the first layer's tables of the first seed, as tensors `scheme.table`; the constructor's
arguments stand in the file's metadata. The committed file is from
`relpos study --schemes t5,shaw_bias,deberta,shaw,huang,learned`.
"""

import inspect
import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from relpos.study.config import SIZES
from relpos.study.presets import build_scheme


def main(run: Path) -> None:
    """Write the file beside this script."""
    tensors, settings = {}, {}
    for trial in sorted(run.glob("trials/*-seed0")):
        config = json.loads((trial / "config.json").read_text())
        name, recipe, size = config["scheme"], config["recipe"], SIZES[config["recipe"]["size"]]
        latest = (trial / "checkpoints/latest").read_text().strip()
        state = load_file(trial / "checkpoints" / latest / "state.safetensors")
        scheme = build_scheme(name, width=size.width, heads=size.heads, length=recipe["length"])
        places = ("model.blocks.0.attention.scheme.", "model.absolute.")
        for table, _ in scheme.named_parameters():
            tensors[f"{name}.{table}"] = next(state[place + table] for place in places if place + table in state)
        taken = inspect.signature(type(scheme)).parameters
        settings[name] = json.dumps({key: getattr(scheme, key) for key in taken if hasattr(scheme, key)})
    save_file(tensors, Path(__file__).with_name("tables.safetensors"), metadata=settings)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
