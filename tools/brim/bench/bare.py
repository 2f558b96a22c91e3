"""What the adapter is held against: a python-backend model that runs the same graph and checks nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from string import Template

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from brim.errors import ModelFileError
from brim.service.schema import Service

TIMED = "# timed: "
BARE_MODEL = '''"""Join the inputs, run once, deal out the rows. One bad request fails all of the batch, as in plain code."""

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = ort.SessionOptions()
        options.intra_op_num_threads = $threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_pattern = False
        path = args["model_repository"] + "/" + args["model_version"] + "/model.onnx"
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # timed: from brim.bench.stages import StageClock
        # timed: self._clock, self._folder = StageClock(), args["model_repository"]

    def execute(self, requests):
        # timed: self._clock.count(len(requests))
        # timed: self._clock.enter("read tensors")
        arrays = [pb_utils.get_input_tensor_by_name(request, "$input").as_numpy() for request in requests]
        # timed: self._clock.next("guard form, stack")
        batch = np.concatenate(arrays)
        # timed: self._clock.next("run")
        (result,) = self._session.run(["$graph_output"], {"$graph_input": batch})
        # timed: self._clock.next("pack responses")
        responses, first = [], 0
        for array in arrays:
            rows = pb_utils.Tensor("$output", result[first : first + len(array)])
            responses.append(pb_utils.InferenceResponse([rows]))
            first += len(array)
        # timed: self._clock.leave()
        return responses

    # timed: def finalize(self): self._clock.save(self._folder)
'''
"""Session options are those of ``brim.runtime.session``. Lines after ``TIMED`` are code in ``timed`` only."""

TIMED_ADAPTER = '''"""The shipped adapter, its stages timed."""

from pathlib import Path

import triton_python_backend_utils as pb_utils

from brim.bench.stages import ADAPTER_STAGES, StageClock
from brim.runtime.adapter import OnnxModel


class TritonPythonModel:
    def initialize(self, args):
        self._clock = StageClock()
        self._clock.wrap(ADAPTER_STAGES)
        self._folder = Path(args["model_repository"])
        self._model = OnnxModel(args, pb_utils)

    def execute(self, requests):
        self._clock.count(len(requests))
        return self._model.execute(requests)

    def finalize(self):
        self._clock.save(self._folder)
'''
"""``model.py`` of the shipped adapter with its stages timed."""


def bare_model(service: Service, graph_input: str, graph_output: str, *, threads: int, timed: bool = False) -> str:
    """``model.py`` of the bare model for a service with one input and one output.

    Args:
        service: gives the names that callers use.
        graph_input: name of the graph's input.
        graph_output: name of the graph's output.
        threads: of ONNX Runtime.
        timed: time the stages, and write them into the model's folder when it is unloaded.
    """
    (taken,), (given,) = service.inputs, service.outputs
    names = {"input": taken.name, "output": given.name, "graph_input": graph_input, "graph_output": graph_output}
    text = Template(BARE_MODEL).substitute(names, threads=threads)
    return text.replace(TIMED, "") if timed else text


def read_config(path: Path) -> pb.ModelConfig:
    """A model configuration in text format.

    Raises:
        ModelFileError: the file is missing or is none.
    """
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise ModelFileError(f"{path}: {error}", hint="`brim config --write` generates it") from error


def add_variant(repository: Path, source: Path, name: str, model: str | None) -> Path:
    """Copy a model under another name; the new model's folder.

    The configuration stays the same but for the name and the warm-up, which would count as work.

    Args:
        repository: where the copy goes.
        source: the model's folder.
        name: of the copy.
        model: text of its ``model.py``; the same as the source's when None.
    """
    folder = repository / name
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", "configs"))
    config = read_config(source / "config.pbtxt")
    config.name = name
    del config.model_warmup[:]
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), encoding="utf-8")
    if model is not None:
        for version in _versions(folder):
            (version / "model.py").write_text(model, encoding="utf-8")
    return folder


def _versions(folder: Path) -> Sequence[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
