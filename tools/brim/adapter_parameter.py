"""The parameter ``brim`` of a model configuration: a JSON object of settings for the python backend's adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from brim.errors import InputError

PARAMETER = "brim"
"""Name of the parameter in ``config.pbtxt``."""
Schema = TypeVar("Schema", bound=BaseModel)


def read_parameter(model_config: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """The settings in a model configuration, as Triton hands it to the python backend.

    Args:
        model_config: Triton's words; without the parameter every setting has its default.
        schema: what the object may hold.

    Raises:
        InputError: the parameter is no JSON object or breaks the schema; the text lists every fault.
    """
    name = model_config.get("name", "?")
    text = model_config.get("parameters", {}).get(PARAMETER, {}).get("string_value", "{}")
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'the value'}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        )
        raise InputError(
            f'model {name}: the configuration\'s parameter "{PARAMETER}" is wrong: {faults}',
            hint=f"run `brim config {name} --write` again, or see the keys in {schema.__module__}",
        ) from error
