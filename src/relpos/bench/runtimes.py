"""Runtimes that compute an exported model on a CPU, where they are installed: ONNX Runtime and OpenVINO.

Both read one ONNX file, made by `torch.onnx.export` from the model of transformers for any batch and length. OpenVINO
reads models of torch as well, but not all that it reads from ONNX: BLOOM's fails.
`python -m relpos.bench.runtimes` with a runtime, that file, an input and a dtype measures memory in its own process.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from relpos.bench.memory import alone, extra

Inputs = dict[str, Tensor]
Compute = Callable[[Inputs], Tensor]
#: What makes the file.
EXPORTERS = ("onnx", "onnxscript")
#: OpenVINO's names of precisions.
_PRECISIONS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


@dataclass(frozen=True)
class Runtime:
    """`open(file, dtype)` gives the function to time; a string says why there is none."""

    name: str
    package: str
    open: Callable[[Path, str], Compute | str]

    def missing(self) -> str | None:
        """What is not installed and how to install it; None where everything is."""
        names = [name for name in (self.package, *EXPORTERS) if importlib.util.find_spec(name) is None]
        if not names:
            return None
        return f"not installed ({', '.join(names)} missing): pip install {self.package} {' '.join(EXPORTERS)}"


def prepared(model: nn.Module, example: Inputs, dtype: str, file: Path) -> dict[str, Compute | str]:
    """Each runtime's function of the inputs, or why it has none.

    Args:
        model: in float32, whatever the dtype.
        example: its inputs, of at least two rows and tokens.
        dtype: what the runtimes compute in.
        file: the ONNX file to make, where any runtime is installed.
    """
    found: dict[str, Compute | str] = {}
    failure = None
    for runtime in RUNTIMES:
        missing = runtime.missing()
        if missing is None and not file.exists() and failure is None:
            failure = export(model, example, file)
        found[runtime.name] = missing or failure or _opened(runtime, file, dtype)
    return found


def export(model: nn.Module, example: Inputs, file: Path) -> str | None:
    """Write a model as ONNX, batch and length left open; or say why that fails."""
    size = torch.export.Dim.DYNAMIC
    shapes = tuple({0: size, 1: size} for _ in example)
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                _First(model, tuple(example)),
                tuple(example.values()),
                dynamo=True,
                dynamic_shapes=(shapes,),
                input_names=list(example),
                verbose=False,
            )
            assert program is not None
            program.save(str(file), external_data=True)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"torch.onnx.export fails: {first_line(error)}"
    finally:
        logging.disable(quiet)
    return None


def extra_peak(name: str, file: Path, given: Inputs, dtype: str) -> int | str:
    """Bytes that one call takes beyond weights and input, or why nobody knows."""
    inputs = file.with_name("inputs.pt")
    torch.save(given, inputs)
    return alone("relpos.bench.runtimes", name, str(file), str(inputs), dtype)


def versions() -> dict[str, str]:
    """The versions of what is installed."""
    return {one.package: metadata.version(one.package) for one in RUNTIMES if one.missing() is None}


def first_line(error: BaseException) -> str:
    """What went wrong at the bottom of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


class _First(nn.Module):
    """A model as a function of its inputs in order; of its outputs, the first."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> Tensor:
        output = self.model(**dict(zip(self.names, given, strict=True)))[0]
        assert isinstance(output, Tensor)
        return output


def _opened(runtime: Runtime, file: Path, dtype: str) -> Compute | str:
    try:
        return runtime.open(file, dtype)
    except RuntimeError as error:
        return f"cannot read the exported model: {first_line(error)}"


def _onnx_runtime(file: Path, dtype: str) -> Compute | str:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    if dtype != "float32":
        return f"its operators on a CPU are not all there in {dtype}"
    failures = tuple(one for one in vars(state).values() if isinstance(one, type) and issubclass(one, Exception))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Otherwise its threads wait for the next call on the cores that somebody else is timed on.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except failures as error:
        raise RuntimeError(str(error)) from None

    def compute(given: Inputs) -> Tensor:
        try:
            return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in given.items()})[0])
        except failures as error:
            raise RuntimeError(str(error)) from None

    return compute


def _openvino(file: Path, dtype: str) -> Compute | str:
    import openvino

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    if dtype == "float32":  # where the processor has bfloat16, it is the default
        options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = openvino.Core().compile_model(str(file), "CPU", options)
    computes_in = _PRECISIONS[compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()]
    if computes_in != dtype:
        return f"on this processor it computes in {computes_in} for speed, not in {dtype}"
    return lambda given: torch.from_numpy(compiled({name: x.numpy() for name, x in given.items()})[0])


RUNTIMES = (
    Runtime("ONNX Runtime", "onnxruntime", _onnx_runtime),
    Runtime("OpenVINO", "openvino", _openvino),
)


def main() -> None:
    """One measurement of memory, printed in bytes."""
    name, file, inputs, dtype = sys.argv[1:]
    compute = next(runtime for runtime in RUNTIMES if runtime.name == name).open(Path(file), dtype)
    if isinstance(compute, str):
        raise SystemExit(compute)
    given = torch.load(inputs)
    compute({name: x[:, :64] for name, x in given.items()})
    sys.stdout.write(str(extra(lambda: compute(given))))


if __name__ == "__main__":
    main()
