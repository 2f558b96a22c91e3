"""How long a step may take, from the steps before it."""

from __future__ import annotations

import pytest

from brim.engine.patience import RECENT_STEPS, Patience


@pytest.mark.parametrize(
    ("took_ms", "step_tokens", "limit_s"),
    [
        ([], 256, 35.6),
        ([20] * 10, 256, 35.6),
        ([20, 5_000, 20], 256, 100),
        ([20, 60_000], 256, 300),
        ([], 65_536, 300),
        ([5_000] + [20] * RECENT_STEPS, 256, 35.6),
    ],
)
def test_the_limit_follows_the_longest_recent_step_within_its_bounds(
    took_ms: list[int], step_tokens: int, limit_s: float
) -> None:
    patience = Patience()
    for took in took_ms:
        patience.saw(took * 1_000)
    assert patience.limit_s(step_tokens) == pytest.approx(limit_s)
