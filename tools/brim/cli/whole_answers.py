"""Commands that send tensors and read one answer each, which a language model does not give."""

from __future__ import annotations

from brim.errors import InputError
from brim.service.schema import Service


def require_whole_answers(service: Service, command: str) -> None:
    """See that the service answers a request once, with all of it.

    Args:
        service: what the command is for.
        command: how it is called, such as ``brim load``.

    Raises:
        InputError: it is a language model.
    """
    if service.generation is not None:
        raise InputError(
            f"{service.name} is a language model, whose texts come in pieces: `{command}` counts answers that come whole, "
            f"and says nothing of the time to a first token",
            hint=f"`brim measure {service.name}` sends texts of many lengths at a rate or from callers, and judges its SLO",
        )
