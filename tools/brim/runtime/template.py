"""The ``model.py`` of every model that the python backend hosts: the same text whatever the model."""

MODEL_PY = '''"""Triton's python backend around this folder's model.onnx. What it does with a batch: brim.runtime.adapter."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from brim.runtime.adapter import OnnxModel


class TritonPythonModel:
    """One instance. Triton calls these three methods."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model, or say what is missing and how to make it."""
        self._model = OnnxModel(args, pb_utils)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in order."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Log what was done."""
        self._model.close()
'''
