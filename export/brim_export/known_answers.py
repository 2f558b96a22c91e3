"""Requests whose right answers are known without the server: what the self-check and the tests hold answers against.

A factory's module may offer ``known_answers(count, seed) -> (requests, answers)``, both lists of rows by the *service's*
tensor names, each tensor with the batch dimension 1 in front.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import ModelFileError
from brim.service.samples import Row
from brim.service.schema import Service
from brim_export.precision import parity_allowed
from brim_export.source import TorchSource

HOOK = "known_answers"


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Requests, the answer to each, and how far an answer may be off."""

    requests: list[Row]
    answers: list[Row]
    tolerance: float


def known_answers(service: Service, count: int, *, seed: int = 0) -> KnownAnswers | None:
    """``count`` requests with their answers, or None where the model's source offers none.

    Raises:
        InputError: the factory's module cannot be imported.
        ModelFileError: the module's hook gives something else than it should.
    """
    if service.model.torch is None:
        return None
    from brim_export.torch_source import import_factory_module

    source = TorchSource(service.model.torch)
    hook = getattr(import_factory_module(source), HOOK, None)
    if hook is None:
        return None
    requests, answers = hook(count, seed)
    if len(requests) != count or len(answers) != count:
        raise ModelFileError(
            f"{source.module}.{HOOK}({count}, {seed}) gave {len(requests)} requests and {len(answers)} answers",
            hint=f"it must give {count} of each",
        )
    tolerance = parity_allowed(service.model.precision, service.model.tolerance)
    return KnownAnswers(list(requests), list(answers), tolerance)
