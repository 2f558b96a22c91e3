"""How long answered requests have waited, as PromQL: one arithmetic for scaling and for people.

A mean wait is the wait of the requests answered in the window over their number, model by model. Models that answer nobody have
no value, and take no part in any mean.
"""

from __future__ import annotations

from collections.abc import Iterable

from brim.engine.metrics import QUEUE_WAIT, Family
from brim.plan.series import FLEET_JOB, QUEUE_US, SUCCESS
from brim.units import US_PER_S


def vllm_name(family: Family) -> str:
    """The name of a metric of ours under which vLLM has made it known."""
    return next(name for name, _ in family.aliases if name.startswith("vllm:"))


def of_fleet(models: Iterable[str]) -> str:
    """Selects the series of these models on the servers' pages."""
    return f'{{job="{FLEET_JOB}", model=~"{"|".join(models)}"}}'


def answered(where: str, by: str, window: str) -> str:
    """Requests answered a second."""
    return f"sum by ({by}) (rate({SUCCESS}{where}[{window}]))"


def wait_of_tensors(where: str, by: str, window: str) -> str:
    """Microseconds from arrival to the batch."""
    waited = f"sum by ({by}) (rate({QUEUE_US}{where}[{window}]))"
    return f"{waited} / ({answered(where, by, window)} > 0)"


def wait_of_texts(where: str, by: str, window: str) -> str:
    """Microseconds from arrival to the seat, as Brim's own host tells."""
    waited, begun = (
        f"sum by ({by}) (rate({vllm_name(QUEUE_WAIT)}_{part}{where}[{window}]))" for part in ("sum", "count")
    )
    return f"{US_PER_S} * {waited} / ({begun} > 0)"
