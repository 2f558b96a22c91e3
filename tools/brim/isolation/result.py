"""How the suite is told to run, and what it hands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from brim.isolation.evidence import Evidence
from brim.isolation.judge import HURT, Verdict


@dataclass(frozen=True, slots=True)
class Options:
    """How to run.

    Attributes:
        requests: rows of the checks that send most; the others send a part of it.
        seed: every random choice follows from it and from the check's id.
        callers: how many at once.
        answer_timeout_s: longest wait for one answer.
        tolerance: how far a floating-point answer may be from the one alone (``brim.isolation.judge.deviation``).
        poison_share: share of bad requests where there are few of them.
        checks: ids to run; all when empty.
        may_reload: whether the model may be loaded anew on a server that is not the suite's own.
        fuzz_only: fuzzed requests to repeat, as ``brim.isolation.fuzz.Window`` is written; all when empty.
        repeat: command that repeats the run, without ``--check``; a failure's message ends with it.
    """

    requests: int = 2_000
    seed: int = 0
    callers: int = 120
    answer_timeout_s: float = 30.0
    tolerance: float = 1e-4
    poison_share: float = 0.01
    checks: tuple[str, ...] = ()
    may_reload: bool = False
    fuzz_only: str = ""
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What one check found. ``sent`` is the sum of the six counts after it.

    Attributes:
        id: the check.
        ok: nobody was hurt, and the server answers afterwards.
        sent: requests with a verdict, the ones asked alone to learn what they get included.
        right: own answer.
        own_error: own error, where it gets that alone, too.
        cancelled: the caller went away itself.
        wrong: another answer than alone, or an error that speaks of others.
        neighbour_errors: an error that it does not get alone.
        hung: no answer in time.
        message: what went wrong and the command that repeats it; or why there was nothing to check; or what was found.
        mean_batch: rows in a batch while all of them were sent; None where the server does not tell.
        skipped: whether there was nothing to check.
        largest_deviation: of all right answers from those alone.
        faults: the first few, in words.
        took_us: the whole check.
        exchanges: a bounded sample of the requests, with what came and who was beside them.
        figures: what else the check measured, by name.
    """

    id: str
    ok: bool
    sent: int
    right: int
    own_error: int
    cancelled: int
    wrong: int
    neighbour_errors: int
    hung: int
    message: str
    mean_batch: float | None
    skipped: bool
    largest_deviation: float
    faults: tuple[str, ...]
    took_us: int
    exchanges: tuple[Evidence, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def hurt(self) -> int:
        """Requests that a neighbour, or no answer, has hurt."""
        return sum(getattr(self, one.value) for one in HURT)

    def as_json(self) -> dict[str, object]:
        """The result as a JSON object."""
        return {**asdict(self), "exchanges": [one.as_json() for one in self.exchanges]}


def totals(results: Sequence[Result]) -> dict[str, int]:
    """The counts over all checks: ``sent`` and the six verdicts that it is the sum of."""
    names = ("sent", *(verdict.value for verdict in Verdict))
    return {name: sum(getattr(result, name) for result in results) for name in names}
