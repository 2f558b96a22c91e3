"""Verdicts: one for each request, by what it gets alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.isolation.judge import Tally, Verdict, deviation, judge
from brim.isolation.request import Came, Expected, Request
from brim.measure.plan import Protocol

TOLERANCE = 1e-4
RIGHT = {"Y": np.array([[1.0, 2.0]], np.float32)}


def request(expected: Expected | None = None, marker: str = "") -> Request:
    return Request("m", Protocol.HTTP, expected=expected, marker=marker)


ANSWERED = request(Expected(RIGHT))
REFUSED = request(Expected(None, "400"))


@pytest.mark.parametrize(
    ("sent", "came", "verdict", "words"),
    [
        (ANSWERED, Came(outputs=RIGHT, echoed="1"), Verdict.RIGHT, ""),
        (ANSWERED, Came(outputs=RIGHT), Verdict.RIGHT, ""),
        (ANSWERED, Came(outputs=RIGHT, echoed="2"), Verdict.WRONG, "carries the id '2'"),
        (ANSWERED, Came(outputs={"Y": RIGHT["Y"] + 0.1}), Verdict.WRONG, "off by"),
        (ANSWERED, Came(outputs={"Y": RIGHT["Y"][:, :1]}), Verdict.WRONG, "alone it is float32 [1, 2]"),
        (ANSWERED, Came(outputs={}), Verdict.WRONG, "output Y is missing"),
        (ANSWERED, Came(), Verdict.WRONG, "without outputs"),
        (ANSWERED, Came(error="no", status="500"), Verdict.NEIGHBOUR_ERRORS, "[500] no"),
        (ANSWERED, Came(hung=True), Verdict.HUNG, "no answer"),
        (ANSWERED, Came(left=True), Verdict.CANCELLED, ""),
        (REFUSED, Came(error="no", status="400"), Verdict.OWN_ERROR, ""),
        (REFUSED, Came(error="no", status="500"), Verdict.NEIGHBOUR_ERRORS, "alone refused with 400"),
        (REFUSED, Came(outputs=RIGHT), Verdict.WRONG, "alone it is refused with 400"),
        (request(), Came(outputs=RIGHT), Verdict.RIGHT, ""),
        (request(), Came(error="no", status="400"), Verdict.OWN_ERROR, ""),
        (request(marker="7700001"), Came(error="7700001 is bad", status="400"), Verdict.OWN_ERROR, ""),
        (request(marker="7700001"), Came(error="7700002.0 is bad", status="400"), Verdict.WRONG, "7700002"),
        (request(marker="7700001"), Came(error="incident a7712345b1c2", status="500"), Verdict.OWN_ERROR, ""),
        (request(marker="7700001"), Came(error='File "/a/b.py"', status="500"), Verdict.WRONG, "insides"),
    ],
)
def test_verdicts(sent: Request, came: Came, verdict: Verdict, words: str) -> None:
    judgement = judge(sent, came, "1", TOLERANCE)
    assert judgement.verdict is verdict
    assert words in judgement.fault and bool(words) == bool(judgement.fault)


def array(*values: float, kind: Any = np.float32) -> dict[str, np.ndarray[Any, Any]]:
    return {"Y": np.array([values], kind)}


@pytest.mark.parametrize(
    ("got", "expected", "off"),
    [
        (array(1, np.nan), array(1, np.nan), 0.0),
        (array(np.inf, -np.inf), array(np.inf, -np.inf), 0.0),
        (array(np.nan, 1), array(1, 1), np.inf),
        (array(np.inf, 1), array(-np.inf, 1), np.inf),
        (array(1, 1), array(np.nan, 1), np.inf),
        (array(3, 1), array(1, 1), 1.0),
        (array(60000, 0, kind=np.float16), array(-60000, 0, kind=np.float16), 119936 / 59969),
        (array(1, 2, kind=np.int64), array(1, 2, kind=np.int64), 0.0),
        (array(1, 3, kind=np.int64), array(1, 2, kind=np.int64), np.inf),
        (array(1, 2, kind=np.float64), array(1, 2), np.inf),
    ],
)
def test_deviation(got: Any, expected: Any, off: float) -> None:
    distance, fault = deviation(got, expected)
    assert distance == pytest.approx(off, rel=1e-6)
    assert bool(fault) == (off == np.inf)


@given(
    st.lists(
        st.builds(
            Came,
            outputs=st.sampled_from([None, RIGHT, {"Y": RIGHT["Y"] * 2}, {}]),
            error=st.sampled_from(["", "no"]),
            status=st.sampled_from(["400", "500"]),
            echoed=st.sampled_from([None, "1", "2"]),
            hung=st.booleans(),
            left=st.booleans(),
        ),
        max_size=30,
    ),
    st.sampled_from([ANSWERED, REFUSED, request()]),
)
def test_every_request_gets_exactly_one_verdict_and_every_hurt_has_a_reason(cames: list[Came], sent: Request) -> None:
    tally = Tally()
    for came in cames:
        judgement = judge(sent, came, "1", TOLERANCE)
        assert bool(judgement.fault) == (judgement.verdict in (Verdict.WRONG, Verdict.NEIGHBOUR_ERRORS, Verdict.HUNG))
        tally.add(judgement, "here")
    assert tally.sent == len(cames) == sum(tally.counts[verdict] for verdict in Verdict)
    assert (tally.hurt > 0) == bool(tally.faults)
