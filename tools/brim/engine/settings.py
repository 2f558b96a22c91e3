"""Settings of a language model's host: what the model configuration's parameter ``brim`` holds, as a JSON object.

    {
      "context_tokens": 4096,      most tokens of a prompt and its text together
      "kv_blocks": 512,            blocks of the KV cache
      "max_sequences": 32,         most texts that are generated at once
      "chunk_tokens": 256,         most tokens of one step
      "max_waiting": 64,           most requests that wait for a place
      "batch_kept_share": 1,         part of seats and KV cache that the classes after the first keep
      "ttft_ms": 2000,             the first class waits no longer for a place; null for no bound
      "prefix_cache": true,        whether prompts that begin alike share blocks (``brim.engine.partial_blocks``)
      "precision": "f32",          what the engine computes in
      "threads": 0,                of the engine; 0 leaves it to the engine
      "gives_up_ms": 60000,        when a caller of a whole text leaves who says nothing else; null for never
      "classes": [{"name": "interactive", "priority": 1, "deadline_ms": null}]
    }

Unknown keys are refused, and all faults are told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from brim.adapter_parameter import read_parameter
from brim.engine.admission import Policy
from brim.engine.lifecycle import RequestClass
from brim.units import ms_to_us

SEATS_A_SPARE = 8
"""Where there are several classes, one seat in so many is left free for the first."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ClassSettings(_Part):
    """Callers that are treated alike. Of the classes, the one with the lowest priority number is served first."""

    name: str
    priority: int = Field(ge=1)
    deadline_ms: float | None = Field(default=None, gt=0)


class Settings(_Part):
    """Everything that the parameter may hold."""

    context_tokens: int = Field(default=4096, ge=2)
    kv_blocks: int = Field(default=512, ge=1)
    max_sequences: int = Field(default=32, ge=1)
    chunk_tokens: int = Field(default=256, ge=32)
    max_waiting: int = Field(default=64, ge=0)
    batch_kept_share: float = Field(default=1.0, gt=0, le=1)
    ttft_ms: float | None = Field(default=None, gt=0)
    prefix_cache: bool = True
    precision: Literal["f32", "bf16", "f16", "auto"] = "f32"
    threads: int = Field(default=0, ge=0, le=256)
    gives_up_ms: float | None = Field(default=None, gt=0)
    classes: tuple[ClassSettings, ...] = ()

    @property
    def policy(self) -> Policy:
        """What of it the scheduler decides by. Half of the waiting room is kept from the batch class."""
        return Policy(
            max_sequences=self.max_sequences,
            max_waiting=self.max_waiting,
            max_waiting_batch=self.max_waiting // 2,
            first_token_within_us=self._first_token_within_us(),
            batch_kept_share=self.batch_kept_share,
            spare_seats=self.max_sequences // SEATS_A_SPARE if len(self.classes) > 1 else 0,
        )

    def _first_token_within_us(self) -> dict[RequestClass, int]:
        """Of the first class, as the objective says; of a class that may wait, its deadline.

        Classes after the first are one to the scheduler: the longest of their deadlines, and no bound where one has none.
        """
        longest_us: dict[RequestClass, int] = {}
        if self.ttft_ms is not None:
            longest_us[RequestClass.INTERACTIVE] = ms_to_us(self.ttft_ms)
        deadlines_ms = [one.deadline_ms for one in self._ranked[1:]]
        known_ms = [one for one in deadlines_ms if one is not None]
        if known_ms and len(known_ms) == len(deadlines_ms):
            longest_us[RequestClass.BATCH] = ms_to_us(max(known_ms))
        return longest_us

    @property
    def _ranked(self) -> list[ClassSettings]:
        return sorted(self.classes, key=lambda one: one.priority)

    def class_of(self, priority: int, *, stream: bool = False) -> tuple[RequestClass, int | None]:
        """The class that a request's priority stands for, and how long its answer is of use, in microseconds.

        As in Triton's own queues, 1 is served first, and a number that no class has (0: none was given) counts as the
        first class. Who reads a stream does not give up while it goes on, and is seen to leave.
        """
        ranked = self._ranked
        chosen = next((one for one in ranked if one.priority == priority), ranked[0] if ranked else None)
        kind = RequestClass.INTERACTIVE if not ranked or chosen is ranked[0] else RequestClass.BATCH
        useful_ms = (chosen.deadline_ms if chosen else None) or (None if stream else self.gives_up_ms)
        return kind, None if useful_ms is None else ms_to_us(useful_ms)


def read_settings(model_config: Mapping[str, Any]) -> Settings:
    """The settings in a model configuration, as Triton hands it to the python backend.

    Raises:
        InputError: the parameter is no JSON object or breaks the schema; the text lists every fault.
    """
    return read_parameter(model_config, Settings)
