"""``choice.json`` of ``brim tune`` for a language model as far as a report shows it; whatever else it holds is left alone."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from brim.tune.text.setting import Setting


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class TextSetting(_Part):
    """What tuning varies."""

    chunk_tokens: int
    max_sequences: int
    kv_blocks: int
    batch_kept_share: float

    def __str__(self) -> str:
        """In the words of ``brim tune``."""
        return str(Setting(**self.model_dump()))


class Figures(_Part):
    """Of one setting, simulated or measured."""

    goodput_per_s: float
    in_slo: float | None = Field(default=None, ge=0, le=1)
    ttft_p99_us: float | None = None
    tpot_p99_us: float | None = None
    tokens_per_s: float | None = None


class MeasuredTextSetting(_Part):
    """One setting that was measured on the engine."""

    setting: TextSetting
    predicted: Figures
    measured: Figures
    is_default: bool = False
    is_choice: bool = False
    spread: float | None = None


class TextChoice(_Part):
    """The file of a tuning that came to its end."""

    service: str
    conditions: dict[str, Any] = Field(default_factory=dict)
    slo: dict[str, float | None]
    traffic: dict[str, Any]
    measurements: list[MeasuredTextSetting] = Field(default_factory=list)
    choice: TextSetting | None = None
    slo_met: bool
    why: str

    @property
    def command(self) -> str:
        """What made the file, as far as it tells."""
        seed = self.conditions.get("seed")
        return f"brim tune {self.service}" + ("" if seed is None else f" --seed {seed}")
