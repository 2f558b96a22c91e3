"""Whether the objective was met, by class of callers; or that nobody can tell, because the generator set the figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from brim.measure.histogram import nearest_rank
from brim.measure.openloop_limits import Evidence, limits_seen
from brim.units import us_to_ms
from brim_loadtest.tally import ClassTally, Tally


class Verdict(StrEnum):
    """The answer of a load test."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "could not tell"

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return {Verdict.MET: 0, Verdict.MISSED: 1, Verdict.UNKNOWN: 3}[self]


@dataclass(frozen=True, slots=True)
class ClassVerdict:
    """Of one class: ``in_slo`` of the ``judged`` requests were answered in time, where ``needed`` had to be."""

    met: bool | None
    in_slo: int
    needed: int
    judged: int

    def as_json(self) -> dict[str, Any]:
        """``met`` is null where it could not be told."""
        return {"met": self.met, "judged": self.judged, "judged_in_slo": self.in_slo, "needed": self.needed}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of the whole run.

    Attributes:
        verdict: the answer.
        message: why, in a sentence or two.
        limits: in what ways the generator set the figures.
        classes: by the name of the class.
    """

    verdict: Verdict
    message: str
    limits: tuple[str, ...]
    classes: dict[str, ClassVerdict]


def judge_class(tally: ClassTally) -> ClassVerdict:
    """Whether enough of a class's requests were answered in time.

    What was refused, expired, failed or left without an answer is not in time. Callers that came in order to leave are
    not judged, nor is what was under way when the run was stopped.
    """
    if not tally.judged:
        return ClassVerdict(None, 0, 0, 0)
    needed = nearest_rank(tally.caller.objective.percentile, tally.judged)
    return ClassVerdict(tally.judged_in_slo >= needed, tally.judged_in_slo, needed, tally.judged)


def judge(
    tally: Tally,
    evidence: Evidence,
    in_flight_limit: int,
    *,
    stopped: bool = False,
    lost: int = 0,
    server_alive: bool = True,
) -> Judgement:
    """The verdict on a run.

    Args:
        tally: of all workers.
        evidence: what was seen of the generator.
        in_flight_limit: most requests that might be under way, in all workers together.
        stopped: whether the run was stopped before its end.
        lost: workers that ended without a tally.
        server_alive: whether the server still answered at the end.
    """
    classes = {one.caller.label: judge_class(one) for one in tally.classes}
    unjudged = {name: replace(one, met=None) for name, one in classes.items()}
    seen = (text for one in tally.classes for text in limits_seen(one.account, evidence, in_flight_limit))
    limits = list(dict.fromkeys(seen))
    if stopped:
        return Judgement(Verdict.UNKNOWN, "the run was stopped before its end", tuple(limits), unjudged)
    if lost:
        limits.append(f"{lost} of its processes ended before the end of the run, and took along what they had counted")
    if limits:
        return Judgement(Verdict.UNKNOWN, f"the generator is the limit: {'; '.join(limits)}", tuple(limits), unjudged)
    if all(one.met is None for one in classes.values()):
        return Judgement(Verdict.UNKNOWN, "no request was due in this run that could be judged", (), classes)
    if not server_alive:
        return Judgement(Verdict.MISSED, "the server did not answer any more at the end", (), classes)
    message = "; ".join(
        _sentence(one, classes[one.caller.label]) for one in tally.classes if classes[one.caller.label].judged
    )
    missed = any(one.met is False for one in classes.values())
    return Judgement(Verdict.MISSED if missed else Verdict.MET, message, (), classes)


def _sentence(tally: ClassTally, found: ClassVerdict) -> str:
    objective = tally.caller.objective
    return (
        f"{tally.caller.label}: {found.in_slo} of {found.judged} requests were answered within "
        f"{us_to_ms(objective.latency_us):g} ms of the time at which they were due, p{objective.percentile:g} needs {found.needed}"
    )
