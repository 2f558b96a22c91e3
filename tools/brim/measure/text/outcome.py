"""What became of a request, from what its caller heard."""

from __future__ import annotations

from brim.engine.lifecycle import Reason
from brim.measure.accounting import Outcome, Reply
from brim.measure.openloop_run import ANSWERED, EXPIRED_TEXT, grpc_reply
from brim.measure.text.stream import LEFT, Heard

DEADLINE_TEXT = "deadline has passed"
"""The scheduler's words for a request whose deadline passed after it had begun."""
OWN_LIMIT = "DEADLINE_EXCEEDED"
"""The status of a call that took longer than the caller's own bound: Triton itself never answers with it."""


def reply_of(heard: Heard) -> Reply:
    """The outcome, and the text of an error."""
    if heard.complete:
        return ANSWERED
    text = heard.error or "the text ended without a finish reason"
    if heard.error == LEFT:
        return Reply(Outcome.CANCELLED)
    if reason_of(heard) is not None:
        return Reply(Outcome.REFUSED, text)
    code, _, details = text.partition(": ")
    if code == OWN_LIMIT:
        return Reply(Outcome.TIMED_OUT, text)
    if DEADLINE_TEXT in text or EXPIRED_TEXT in text:
        return Reply(Outcome.EXPIRED, text)
    return grpc_reply(code, details)


def reason_of(heard: Heard) -> Reason | None:
    """Why the scheduler refused it; None where it did not, or another engine gives no reason."""
    name = heard.error.partition(":")[0]
    return Reason(name) if name in Reason.__members__.values() else None
