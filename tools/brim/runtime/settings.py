"""The adapter's settings: what the model configuration's parameter ``brim`` holds, as a JSON object.

Every key is optional, and so is the parameter. Unknown keys are refused, all faults are reported at once.

    {
      "adapter": "package.module:Class",       makes the inputs of a request; see ``brim.runtime.preparation``
      "guard": {                               limits by Triton input name
        "IMAGE": {
          "finite": true,                      refuse NaN and infinities; default true
          "minimum": 0, "maximum": 16,         both allowed; default: the export's index range, else no limit
          "longest_bytes": 100000,             longest BYTES element; default no limit
          "largest_size": 512                  most elements along any variable axis; default: the export's limit of
                                               that axis, else no limit
        }
      },
      "inputs": {"IMAGE": "image"},            Triton name -> graph name; default: the same name, or the only one
      "outputs": {"EMBEDDING": "sentence_embedding"},
      "model_file": "model.onnx",              in the version folder
      "native": {                              run batches on another model of the same server (``brim.runtime.front``)
        "model": "NAME-native",                its name
        "valid": "valid"                       its output that tells which rows it could take; default: it has none
      },
      "threads": 2,                            ONNX Runtime intra-op threads; default (0): the cores, shared by the instances
      "longest_tokens": 512,                   text: where it is cut, special tokens included, unless the model ends earlier
      "padding": {                             cost of a run; default by the kind of instance (``brim.runtime.padding``)
        "fixed_us": 3000, "per_token_us": 250, "per_pair_us": 0, "max_tokens": 256
      },
      "pads": {"input_ids": 0},                graph input -> padding value: its first row axis varies and is padded
      "check_cancelled": true                  ask Triton before a run whether callers have left; default: when a row
                                               takes so long that asking pays (``brim.runtime.adapter``)
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from brim.adapter_parameter import read_parameter


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GuardSettings(_Part):
    """Limits on one input."""

    finite: bool = True
    minimum: float | None = None
    maximum: float | None = None
    longest_bytes: int | None = Field(default=None, ge=1)
    largest_size: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _order(self) -> GuardSettings:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum ({self.minimum:g}) is above maximum ({self.maximum:g})")
        return self


class PaddingSettings(_Part):
    """Cost of a run of padded rows."""

    fixed_us: float = Field(ge=0)
    per_token_us: float = Field(gt=0)
    per_pair_us: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=0, ge=0)


class NativeSettings(_Part):
    """The model behind a front."""

    model: str = Field(pattern=r"^[^/\\\x00-\x1f\x7f]+$")
    valid: str | None = Field(default=None, min_length=1)


class Settings(_Part):
    """Everything that the parameter may hold."""

    adapter: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    guard: dict[str, GuardSettings] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    outputs: dict[str, str] = Field(default_factory=dict)
    model_file: str = Field(default="model.onnx", pattern=r"^[^/\\]+$")
    native: NativeSettings | None = None
    threads: int = Field(default=0, ge=0, le=256)
    longest_tokens: int = Field(default=512, ge=2)
    padding: PaddingSettings | None = None
    pads: dict[str, float] = Field(default_factory=dict)
    check_cancelled: bool | None = None


def read_settings(model_config: Mapping[str, Any]) -> Settings:
    """The settings in a model configuration, as Triton hands it to the python backend.

    Raises:
        InputError: the parameter is no JSON object or breaks the schema; the text lists every fault.
    """
    return read_parameter(model_config, Settings)
