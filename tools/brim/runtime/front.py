"""A model on a native backend, behind a front in the python backend.

Native backends fail every row of a batch for one bad row, and quote its value to all of them. The front takes the
requests under the service's name, does with a batch what ``brim.runtime.batch`` does with any, and runs rows by asking
the model behind it over BLS (a request from inside the server, no network). What that model says goes to the log only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from brim.errors import ModelFileError
from brim.runtime.contract import Array
from brim.runtime.isolate import Unavailable
from brim.runtime.record import GraphRecord
from brim.runtime.settings import NativeSettings


def outage_text(model: str) -> re.Pattern[str]:
    """The whole texts by which BLS says that a model answers nobody. Both come as INTERNAL, as every failed run does.

    Sources: python_backend ``request_executor.cc``, Infer, and ``stub_launcher.cc``; read on a real server 24.10. Only a
    whole text counts: a native backend quotes values of callers, who could write such words into them.
    """
    name = re.escape(model)
    not_ready = rf"Failed for execute the inference request\. Model '{name}' is not ready\."
    return re.compile(
        rf"Model {name} - Error when running inference: {not_ready}|Stub process '{name}_\d+_\d+' is not healthy\."
    )


class PythonBackend(Protocol):
    """The part of ``triton_python_backend_utils`` that asks another model."""

    Tensor: Any
    InferenceRequest: Any
    PreferredMemory: Any
    TritonError: Any
    TRITONSERVER_MEMORY_CPU: Any


class NativeAnswered(Exception):
    """The model behind the front answered with an error; its text may quote any row of the batch: for the log only."""


class NativeModel:
    """The model behind the front, seen as ``brim.runtime.session.OnnxSession`` is: its tensors, and rows through it.

    It is not asked before the first batch: Triton loads models in any order, and allows BLS only inside ``execute``.
    """

    def __init__(self, settings: NativeSettings, graph: GraphRecord, backend: PythonBackend, *, remedy: str) -> None:
        """Point at the model that ``settings`` names.

        Args:
            settings: its name and that of its row mask.
            graph: what it was exported with.
            backend: ``triton_python_backend_utils``.
            remedy: the hint when the export and the configuration disagree.

        Raises:
            ModelFileError: the export made another row mask, or none.
        """
        if settings.valid is not None and settings.valid != graph.valid:
            raise ModelFileError(
                f'the configuration expects the row mask "{settings.valid}" from {settings.model}, the export made '
                + (f'"{graph.valid}"' if graph.valid else "none"),
                hint=remedy,
            )
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.provider = f"model {settings.model}"
        self._name = settings.model
        self._backend = backend
        error = backend.TritonError
        self._outage_codes = {error.UNAVAILABLE, error.NOT_FOUND}
        self._outage_text = outage_text(settings.model)

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Rows through the model: ``{graph name: [rows, ...]}`` in and out, the named outputs only, in main memory.

        Raises:
            Unavailable: the model is not loaded, or its process has died: other rows would fare no better.
            NativeAnswered: it failed on these rows.
        """
        backend = self._backend
        request = backend.InferenceRequest(
            model_name=self._name,
            requested_output_names=list(outputs),
            inputs=[backend.Tensor(name, array) for name, array in inputs.items()],
            preferred_memory=backend.PreferredMemory(backend.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = request.exec()
        if response.has_error():
            raise self._fault(response.error())
        # Copies: python_backend ``pb_tensor.cc`` makes the array without a base, so it outlives the response's memory.
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def _fault(self, error: Any) -> Exception:
        text = error.message()
        answered = NativeAnswered(f"{self._name} answered with code {error.code()}: {text}")
        if error.code() not in self._outage_codes and not self._outage_text.fullmatch(text.strip()):
            return answered
        outage = Unavailable(f"the model {self._name}, which runs the batches, is not available")
        outage.__cause__ = answered
        return outage
