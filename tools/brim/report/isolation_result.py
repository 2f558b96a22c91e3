"""``isolation.json``: the options of a run, and the results of its checks as the suite made them."""

from __future__ import annotations

import shlex

from pydantic import BaseModel, ConfigDict

from brim.isolation.result import Result


class Isolation(BaseModel):
    """What a report shows of the file; the page beside it (``brim.isolation.page``) shows the rest."""

    model_config = ConfigDict(frozen=True)

    model: str
    ok: bool
    requests: int
    callers: int
    seed: int
    tolerance: float
    poison_share: float
    took_us: int
    checks: list[Result]

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
