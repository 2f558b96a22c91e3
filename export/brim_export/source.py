"""Where a model comes from: a factory that builds it in torch, or an ONNX file that is taken as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from brim.errors import InputError

_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class TorchSource:
    """``package.module:function``; what the function gives is told in ``brim_export.torch_source``."""

    factory: str

    def __post_init__(self) -> None:
        """Refuse a name of another form.

        Raises:
            InputError: ``factory`` is not ``package.module:function``.
        """
        if not _FACTORY.fullmatch(self.factory):
            raise InputError(
                f"torch factory {self.factory!r} is not of the form package.module:function",
                hint="for example: --torch brim_export.models.image_classifier:factory",
            )

    @property
    def module(self) -> str:
        """The module to import."""
        return self.factory.partition(":")[0]

    @property
    def function(self) -> str:
        """The function to call in it."""
        return self.factory.partition(":")[2]


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """An ONNX file, with external data files beside or below it if it has any."""

    path: Path


Source = TorchSource | OnnxSource
