"""An ONNX Runtime session: the model's own names and types, and rows through it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from brim.errors import ModelFileError
from brim.runtime.contract import Array, dtype_of

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_DTYPES = {
    "bool": "BOOL",
    "float": "FP32",
    "double": "FP64",
    "float16": "FP16",
    "string": "BYTES",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class Device:
    """Where a session runs. ``threads`` is for operators on the CPU, at least 1."""

    gpu: int | None
    threads: int


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of the graph. ``shape`` includes the batch axis; ``None`` is a symbolic size."""

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OnnxSession:
    """A loaded model."""

    def __init__(
        self, path: Path, device: Device, *, remedy: str, warn: Callable[[str], None] = logging.warning
    ) -> None:
        """Load ``path``.

        Args:
            path: the ``.onnx`` file.
            device: where to run. A GPU is used when this ONNX Runtime has the CUDA provider, else the CPU, with a warning.
            remedy: the hint when the file is missing or broken.
            warn: where the warning goes.

        Raises:
            ModelFileError: the file is missing, empty, or not a model that this ONNX Runtime loads.
        """
        if not path.is_file():
            raise ModelFileError(f"{path} is missing", hint=remedy)
        if not path.stat().st_size:
            raise ModelFileError(f"{path} is empty", hint=remedy)
        options = ort.SessionOptions()
        options.intra_op_num_threads = device.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # A spinning worker takes the core that the server's own threads need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # A pattern is kept for every shape seen; with rows and lengths both varying there are thousands.
        options.enable_mem_pattern = False
        try:
            self._session = ort.InferenceSession(str(path), options, providers=self._providers(device, warn))
        except Exception as error:
            raise ModelFileError(
                f"{path} does not load in ONNX Runtime {ort.__version__}: {error}", hint=remedy
            ) from error
        self._gpu = device.gpu or 0
        self.inputs = {tensor.name: _graph_tensor(tensor) for tensor in self._session.get_inputs()}
        self.outputs = {tensor.name: _graph_tensor(tensor) for tensor in self._session.get_outputs()}
        self._strings = [name for name, tensor in self.inputs.items() if tensor.dtype == np.dtype(np.object_)]

    @staticmethod
    def _providers(device: Device, warn: Callable[[str], None]) -> list[Any]:
        if device.gpu is None:
            return [CPU_PROVIDER]
        if CUDA_PROVIDER not in ort.get_available_providers():
            warn(
                f"GPU {device.gpu} was asked for, but this ONNX Runtime {ort.__version__} has no {CUDA_PROVIDER}; "
                "running on the CPU (install onnxruntime-gpu in place of onnxruntime)"
            )
            return [CPU_PROVIDER]
        # CUDA's libraries may have come as Python packages, where the loader does not look. What is not there is printed.
        with contextlib.redirect_stdout(sys.stderr):
            ort.preload_dlls()
        return [(CUDA_PROVIDER, {"device_id": device.gpu}), CPU_PROVIDER]

    @property
    def provider(self) -> str:
        """The execution provider that was taken first."""
        first: str = self._session.get_providers()[0]
        return first

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Rows through the graph: ``{graph name: [rows, ...]}`` in and out, the named outputs only.

        BYTES inputs are UTF-8 and become ONNX strings. Whatever ONNX Runtime raises passes through.
        """
        feeds = dict(inputs)
        for name in self._strings:
            feeds[name] = _as_text(feeds[name])
        return dict(zip(outputs, self._session.run(outputs, feeds), strict=True))

    def on_device(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> Callable[[], None]:
        """The same rows again and again, with every tensor on the device before the run and after it: no copy between.

        Args:
            outputs: graph names.
            inputs: ``{graph name: [rows, ...]}``; no text, which no device holds.

        Returns:
            Runs the graph once, and comes back when the device has finished: ONNX Runtime waits for its stream at the end of
            a run, and once more for the outputs' own copies.
        """
        place = ("cuda", self._gpu) if self.provider == CUDA_PROVIDER else ("cpu", 0)
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, *place))
        for name in outputs:
            binding.bind_output(name, *place)
        binding.synchronize_inputs()

        def run() -> None:
            self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run


def _as_text(array: Array) -> Array:
    text = np.empty(array.shape, dtype=np.object_)
    for place, value in np.ndenumerate(array):
        text[place] = value.decode("utf-8") if isinstance(value, bytes) else value
    return text


def _graph_tensor(argument: Any) -> GraphTensor:
    element = argument.type.removeprefix("tensor(").removesuffix(")")
    known = _DTYPES.get(element)
    shape = tuple(size if isinstance(size, int) else None for size in argument.shape)
    return GraphTensor(argument.name, dtype_of(known) if known else None, shape)
