"""The ``model.py`` of every language model that the python backend hosts: the same text whatever the model."""

MODEL_PY = '''"""Triton's python backend around this folder's language model. What it does with a request: brim.engine.adapter."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from brim.engine.adapter import TextModel


class TritonPythonModel:
    """The one instance. Triton calls these three methods."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model, or say what is missing and how to make it."""
        self._model = TextModel(args, pb_utils)

    def execute(self, requests: list[Any]) -> None:
        """Take the requests; answers go through their response senders."""
        self._model.execute(requests)

    def is_ready(self) -> bool:
        """Whether there is an engine. Releases of Triton that ask for it (not 24.10) report the model's readiness by this."""
        return self._model.is_ready()

    def finalize(self) -> None:
        """End what runs."""
        self._model.close()
'''
