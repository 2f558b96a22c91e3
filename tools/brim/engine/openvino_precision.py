"""What the engine may compute in. Apart from the engine, so that whoever only names one need not load it."""

from __future__ import annotations

from typing import Literal

Precision = Literal["f32", "bf16", "f16", "auto"]
"""Of the arithmetic and of the KV cache; ``auto`` follows the processor."""
