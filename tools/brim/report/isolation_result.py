"""``isolation.json`` as far as a report shows it; the page beside it (``brim.isolation.page``) shows the rest."""

from __future__ import annotations

import shlex

from pydantic import BaseModel, ConfigDict

from brim.isolation.judge import HURT, Verdict


class Check(BaseModel):
    """One check: ``brim.isolation.result.Result``."""

    model_config = ConfigDict(frozen=True)

    id: str
    ok: bool
    skipped: bool
    sent: int
    right: int
    own_error: int
    cancelled: int
    wrong: int
    neighbour_errors: int
    hung: int
    message: str
    mean_batch: float | None

    @property
    def hurt(self) -> int:
        """Requests that a neighbour, or no answer, has hurt."""
        return sum(getattr(self, one.value) for one in HURT)


class Isolation(BaseModel):
    """The whole file, with the options of its run."""

    model_config = ConfigDict(frozen=True)

    model: str
    ok: bool
    requests: int
    callers: int
    seed: int
    tolerance: float
    poison_share: float
    took_us: int
    checks: list[Check]

    @property
    def command(self) -> str:
        """What ran it, from its options; where its server was is not in the file."""
        given = {
            "--requests": self.requests,
            "--callers": self.callers,
            "--seed": self.seed,
            "--tolerance": self.tolerance,
            "--poison-share": self.poison_share,
        }
        words = [word for flag, value in given.items() for word in (flag, str(value))]
        return shlex.join(["brim", "isolate", self.model, *words])

    @property
    def counts(self) -> dict[str, int]:
        """Requests by verdict over all checks."""
        return {one.value: sum(getattr(check, one.value) for check in self.checks) for one in Verdict}
