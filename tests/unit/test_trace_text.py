from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.engine.step_log import LoggedStep
from brim.engine.step_time import StepShape
from brim.errors import CouldNotTell
from brim.gateway.access_log import Passage
from brim.measure.text.stream import Heard
from brim.trace.callers import Call
from brim.trace.chrome import chrome
from brim.trace.page import page
from brim.trace.text import _call, of_steps, read_steps, told_by

MS = 1_000_000
WALL_AHEAD_NS = 1_700_000_000_000_000_000


def logged(number: int, prefill: dict[str, int], decoded: list[str], first: list[str], ended: list[str]) -> str:
    """A line as the host writes it: step n begins at n x 10 ms and takes 8."""
    step = LoggedStep(
        number=number,
        began_us=number * 10_000,
        took_us=8_000,
        prefill=prefill,
        decoded=tuple(decoded),
        first=tuple(first),
        ended=tuple(ended),
        shape=StepShape(),
        used_blocks=0,
        promised_blocks=0,
    )
    return json.dumps(step.as_json()) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """p-0 is prefilled in two steps and makes three tokens; p-1 comes in between, and so does somebody without an id."""
    path = tmp_path / "m.steps.jsonl"
    path.write_text(
        logged(0, {"7 theirs": 3}, [], ["7 theirs"], [])
        + logged(1, {"8 p-0": 256}, ["7 theirs"], [], ["7 theirs"])
        + logged(2, {"8 p-0": 10, "9 p-1": 4}, [], ["8 p-0", "9 p-1"], ["9 p-1"])
        + logged(3, {"10": 4}, ["8 p-0"], ["10"], ["10"])
        + logged(4, {}, ["8 p-0"], [], ["8 p-0"])
        + logged(5, {"11 p-1": 4}, [], [], [])[:40]
    )
    return path


CALLS = [Call("p-0", 5 * MS, 50 * MS, 200, "", ""), Call("p-1", 12 * MS, 30 * MS, 200, "", "")]
PASSAGE = Passage("p-0", WALL_AHEAD_NS + 6 * MS, 1 * MS, 25 * MS, 60 * MS, 200, "", "")


def test_a_text_is_in_every_step_that_computed_it(log: Path) -> None:
    run = of_steps("m", "p-", CALLS, {"p-0": PASSAGE}, read_steps(log), WALL_AHEAD_NS)
    first, second = run.traced
    assert [batch.number for batch in first.batches] == [1, 2, 3, 4]
    assert [batch.number for batch in second.batches] == [2]
    assert [(part.name, part.took_us) for part in first.way.parts] == [
        ("to_gateway", 1_000),
        ("gateway_in", 1_000),
        ("room", 3_000),
        ("prefill", 18_000),
        ("generate", 20_000),
        ("last_piece", 2_000),
    ]
    assert sum(part.took_us for part in first.way.parts) == first.way.took_us == 45_000
    told = run.way_as_json(first)
    assert [(batch["own"], batch["others"]) for batch in told["batches"]] == [
        (["p-0"], 1),
        (["p-0", "p-1"], 0),
        (["p-0"], 1),
        (["p-0"], 0),
    ]
    assert run.as_json()["unit"] == "step"
    assert len(run.batches) == 4
    for text in (json.dumps(told), json.dumps(run.as_json()), json.dumps(chrome(run)), page(run, first)):
        assert "theirs" not in text


def test_a_line_that_is_not_whole_yet_is_left_out(log: Path, tmp_path: Path) -> None:
    assert [step.number for step in read_steps(log)] == [0, 1, 2, 3, 4]
    assert read_steps(tmp_path / "none") == []


def test_moments_are_in_order_or_said_not_to_be(log: Path) -> None:
    steps = read_steps(log)
    assert all(told.in_order for told in told_by(steps, "p-").values())
    backwards = [steps[4], steps[1]]
    assert not told_by(backwards, "p-")["p-0"].in_order


def test_texts_without_a_step_are_no_trace() -> None:
    with pytest.raises(CouldNotTell):
        of_steps("m", "p-", CALLS, {}, [], WALL_AHEAD_NS)


@pytest.mark.parametrize(
    ("error", "reason", "status", "outcome"),
    [
        ("", "stop", 200, "right"),
        ("room_full: 64 wait already", "", 429, "refused"),
        ("expired: its deadline", "", 504, "expired"),
        ("UNAVAILABLE: no connection", "", None, "failed"),
        ("", "", None, "failed"),
    ],
)
def test_what_a_stream_says_in_the_words_of_http(error: str, reason: str, status: int | None, outcome: str) -> None:
    call = _call("p-0", Heard(sent_us=1, ended_us=2, finish_reason=reason, error=error))
    assert (call.status, call.outcome) == (status, outcome)
    assert (call.sent_ns, call.answered_ns) == (1_000, 2_000)
