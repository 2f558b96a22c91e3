"""The verdict on a long run, from samples that are made up; and the line that reads and checks answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from brim.errors import InputError
from brim.measure.accounting import Outcome, Reply
from brim.measure.callers import Row
from brim.measure.plan import Protocol
from brim.server.endpoint import Endpoint
from brim.soak.answers import RightAnswer
from brim.soak.line import HttpLine, line_to
from brim.soak.load import Steady, closed_loop_rate, steady_load
from brim.soak.run import MOST_SAMPLES, SoakPlan
from brim.soak.sample import Resources, Sample
from brim.soak.trend import slope
from brim.soak.verdict import Answer, Around, Verdict, judge
from tests.conftest import Brim

S = 1_000_000
MIB = 1 << 20
RATE = 1_000


def held(
    *,
    server: float = 100,
    stubs: float = 200,
    envoy: float = 50,
    shm: float = 4,
    fds: int = 60,
    connections: int = 0,
    others_s: float = 0,
) -> Resources:
    """Memory in MiB; processor time of other programs."""
    return Resources(
        rss={"tritonserver": round(server * MIB), "stubs": round(stubs * MIB), "envoy": round(envoy * MIB)},
        fds={"tritonserver": fds, "stubs": 5, "envoy": fds},
        connections=connections,
        upstream=10,
        shm_regions=2,
        shm_bytes=round(shm * MIB),
        busy_us=1_000 + round(others_s * S),
        own_us=1_000,
    )


def run(
    seconds: int = 100,
    *,
    answered: Callable[[int], int] = lambda second: RATE,
    sent: Callable[[int], int] = lambda second: RATE,
    resources: Callable[[int], Resources] = lambda second: held(),
) -> list[Sample]:
    return [
        Sample((second + 1) * S, S, sent(second), answered(second), 0, 0, 5, 10, resources(second))
        for second in range(seconds)
    ]


def verdict(samples: list[Sample], *, after: Resources | None = None, dropped: int = 0) -> Verdict:
    return judge(samples, rate_per_s=RATE, dropped=dropped, around=Around(held(), after or held()))


def test_a_slope_does_not_see_spikes_and_steps_that_come_back() -> None:
    values = [float(x) for x in range(100)]
    assert slope(range(100), values) == pytest.approx(1)
    values[10] = values[50] = 1e9
    assert slope(range(100), values) == pytest.approx(1, rel=0.05)
    assert slope(range(2_000), [3 * x + 1 for x in range(2_000)]) == pytest.approx(3)
    assert slope([1], [5]) == slope([], []) == 0


def test_a_steady_run_is_flat() -> None:
    found = verdict(run(600))
    assert (found.answer, found.reasons) == (Answer.FLAT, ())
    assert (found.window_us, found.first, found.last, found.ratio) == (60 * S, RATE, RATE, 1)
    document = found.as_json()
    assert document["rss_growth"] == document["shm_growth"] == document["bytes_per_request"] == 0
    assert verdict(run(50)).window_us == 5 * S


@pytest.mark.parametrize(
    "answered",
    [
        lambda second: RATE - second,
        lambda second: RATE if second < 30 else 900,
        lambda second: RATE if second < 91 else 0,
    ],
    ids=["slope", "step", "end"],
)
def test_throughput_that_falls_is_found(answered: Callable[[int], int]) -> None:
    found = verdict(run(answered=answered))
    assert found.answer is Answer.NOT_FLAT
    assert found.ratio is not None and found.ratio < 0.98
    assert "throughput fell" in found.reasons[0]


def test_what_is_under_way_at_the_end_of_a_window_is_no_fall() -> None:
    """Ten requests of a thousand a second over a window of one second."""
    samples = run(10, answered=lambda second: RATE if second == 0 else 976)
    assert verdict(samples).answer is Answer.FLAT
    # But not when the limit of requests under way was reached: those answers do not come.
    assert verdict(samples, dropped=1).answer is Answer.NOT_FLAT


def test_what_had_piled_up_before_the_first_window_is_no_measure() -> None:
    assert verdict(run(answered=lambda second: 1_100 if second < 10 else RATE)).answer is Answer.FLAT


def test_noise_is_no_verdict() -> None:
    """As low before, and back again: whatever it was, it passed."""
    found = verdict(run(answered=lambda second: 900 if second >= 90 or 40 <= second < 50 else RATE))
    assert found.answer is Answer.COULD_NOT_TELL
    assert "noisy" in found.reasons[0]
    often = verdict(run(answered=lambda second: RATE if second < 10 or 80 <= second < 90 else 900), dropped=3)
    assert often.answer is Answer.COULD_NOT_TELL
    never_back = verdict(run(answered=lambda second: RATE if second < 10 else 900 + second % 10))
    assert never_back.answer is Answer.NOT_FLAT


def test_a_fall_while_others_take_the_processors_is_no_verdict() -> None:
    slow = run(
        answered=lambda second: RATE if second < 90 else 800,
        resources=lambda second: held(others_s=0.5 * max(0, second - 85)),
    )
    found = verdict(slow)
    assert found.answer is Answer.COULD_NOT_TELL
    assert "other programs took 0.50 processors, 0.00 in the first" in found.reasons[0]
    assert 0 < found.others_cores < 0.1
    # As much all the time is no excuse.
    always = run(
        answered=lambda second: RATE if second < 90 else 800, resources=lambda second: held(others_s=0.5 * second)
    )
    assert verdict(always).answer is Answer.NOT_FLAT


def test_a_generator_that_sends_too_little_is_no_verdict() -> None:
    slow = run(answered=lambda second: 900 if second >= 90 else RATE, sent=lambda second: 900 if second >= 90 else RATE)
    found = verdict(slow)
    assert found.answer is Answer.COULD_NOT_TELL
    assert "the generator sent 900.0 of 1000.0" in found.reasons[0]
    # It sends less when nothing comes back: then the service is the one that fell.
    assert verdict(slow, dropped=1_000).answer is Answer.NOT_FLAT


def test_a_service_that_never_kept_up_is_no_verdict() -> None:
    found = verdict(run(answered=lambda second: 500), dropped=5)
    assert found.answer is Answer.COULD_NOT_TELL
    assert "did not keep up from the beginning: 500.0 answers to 1000.0" in found.reasons[0]


def test_no_answer_at_all_is_a_no() -> None:
    assert verdict(run(answered=lambda second: 0)).answer is Answer.NOT_FLAT


def test_a_short_run_is_no_verdict() -> None:
    found = verdict(run(9))
    assert found.answer is Answer.COULD_NOT_TELL
    assert "9 samples" in found.reasons[0]
    assert verdict([]).answer is Answer.COULD_NOT_TELL


@pytest.mark.parametrize(
    ("program", "resources"),
    [
        ("tritonserver", lambda second: held(server=100 + 0.2 * second)),
        ("stubs", lambda second: held(stubs=200 + 0.2 * second)),
        ("envoy", lambda second: held(envoy=50 + 0.2 * second)),
        ("shared memory", lambda second: held(shm=4 + 0.02 * second)),
    ],
)
def test_memory_that_grows_is_found(program: str, resources: Callable[[int], Resources]) -> None:
    found = verdict(run(resources=resources))
    assert found.answer is Answer.NOT_FLAT
    (reason,) = found.reasons
    assert program in reason
    document = found.as_json()
    assert (document["shm_growth"] if program == "shared memory" else document["rss_growth"]) > 0


def test_memory_that_grows_while_warming_up_or_for_a_moment_is_not() -> None:
    assert verdict(run(resources=lambda second: held(stubs=min(200, 10 * second)))).answer is Answer.FLAT
    assert verdict(run(resources=lambda second: held(stubs=500 if second == 95 else 200))).answer is Answer.FLAT


def test_bytes_a_request_are_told() -> None:
    found = verdict(run(resources=lambda second: held(stubs=200 + second)))
    assert found.bytes_per_request == pytest.approx(MIB / RATE, rel=0.05)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (held(connections=3), "3 connections of callers"),
        (held(fds=87), "tritonserver has 87 files open, 60 before"),
        (Resources(held().rss, held().fds, 0, 10, 3, 4 * MIB), "3 shared-memory regions, 2 before"),
    ],
)
def test_what_stays_open_is_found(after: Resources, words: str) -> None:
    found = verdict(run(), after=after)
    assert found.answer is Answer.NOT_FLAT
    assert words in " ".join(found.reasons)


def test_a_connection_a_request_under_way_may_stay_open() -> None:
    assert verdict(run(), after=held(fds=86)).answer is Answer.FLAT


def test_a_trouble_is_a_no_whatever_the_figures_say() -> None:
    found = judge(run(5), rate_per_s=RATE, dropped=0, around=None, troubles=["the gateway ended with status 1"])
    assert found.answer is Answer.NOT_FLAT
    assert found.reasons[0] == "the gateway ended with status 1"


def test_a_line_of_the_file_is_flat() -> None:
    line = json.loads(json.dumps(run(1)[0].as_json()))
    assert line["answered"] == RATE
    assert line["rss"]["envoy"] == 50 * MIB
    assert "resources" not in line


def test_what_cannot_be_carried_out_is_refused_at_once(brim: Brim) -> None:
    with pytest.raises(InputError, match=r"duration 0 s.*rate -1 a second.*load 3") as caught:
        SoakPlan(0, -1, 3)
    assert caught.value.hint
    for arguments, words in (
        ((), "neither a service nor --known-time"),
        (("image_classifier", "--known-time", "1,1"), "both a service and --known-time"),
        (("--known-time", "1.5,1"), "--known-time 1.5,1"),
        (("--known-time", "1000"), "--known-time 1000"),
        (("--known-time", "-1000,1"), "tau0_us -1000"),
        (("image_classifier", "--duration", "nan"), "duration nan"),
    ):
        done = brim("soak", *arguments)
        assert done.code == 2
        assert words in done.err


@pytest.mark.parametrize("seconds", [1, 600, 86_400, 86_401, 30 * 86_400])
def test_the_number_of_samples_is_bounded(seconds: int) -> None:
    plan = SoakPlan(seconds, 1)
    assert seconds * S // plan.every_us <= MOST_SAMPLES
    assert plan.every_us >= S


def test_an_answer_may_differ_in_its_last_bits_only() -> None:
    value = np.array([[1, 1000]], np.float32)
    right = RightAnswer.of({"Y": value, "T": np.array([[b"a"]], np.object_), "N": np.array([[7]], np.int32)})
    rest = right.raw[8:]
    assert right.is_matched_by(right.raw)
    assert right.is_matched_by((value * np.float32(1.00005)).tobytes() + rest)
    assert not right.is_matched_by((value * np.float32(1.001)).tobytes() + rest)
    assert not right.is_matched_by(np.full((1, 2), np.nan, np.float32).tobytes() + rest)
    assert not right.is_matched_by(right.raw[:-1])
    assert not right.is_matched_by(right.raw[:-4] + np.int32(8).tobytes())
    assert not right.is_matched_by(right.raw[:8] + rest.replace(b"a", b"b"))


ROW: Row = {"X": np.zeros((1, 2), np.float32)}
RIGHT = RightAnswer.of({"Y": np.array([[1, 2]], np.float32)})


def answered_with(answer: bytes, *, times: int = 1) -> tuple[list[Reply], int]:
    """What the line makes of an answer, asked for several times in turn; and the number of connections."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(answer)
                if b"content-length" not in answer.lower() or b"connection: close" in answer:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def ask() -> list[Reply]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = ":".join(map(str, server.sockets[0].getsockname()))
        line = line_to(Endpoint(address, address), Protocol.HTTP, "m", [ROW], [RIGHT])
        assert isinstance(line, HttpLine)
        try:
            return [await line.ask(number) for number in range(times)]
        finally:
            await line.close()
            server.close()

    return asyncio.run(ask()), connections


def whole(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def test_answers_are_read_whole_and_checked() -> None:
    header = b'{"outputs": []}'
    more = f"Inference-Header-Content-Length: {len(header)}\r\n"
    replies, connections = answered_with(whole(header + RIGHT.raw, more=more), times=3)
    assert [reply.outcome for reply in replies] == [Outcome.ANSWERED] * 3
    assert connections == 1
    (wrong,), _ = answered_with(whole(header + RIGHT.raw[::-1], more=more))
    assert wrong == (Outcome.FAILED, "wrong answer")
    (busy,), _ = answered_with(whole(b"busy", "429 Too Many Requests"))
    assert busy.outcome is Outcome.REFUSED
    closing, connections = answered_with(whole(RIGHT.raw, more="connection: close\r\n"), times=2)
    assert [reply.outcome for reply in closing] == [Outcome.ANSWERED] * 2
    assert connections == 2


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"]
)
def test_what_is_no_answer_is_a_failure(answer: bytes) -> None:
    (reply,), _ = answered_with(answer)
    assert reply.outcome is Outcome.FAILED


class Instant:
    """A service that answers at once, but for every third."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def ask(self, number: int) -> Reply:
        self.asked.append(number)
        await asyncio.sleep(0)
        return Reply(Outcome.REFUSED if number % 3 == 2 else Outcome.ANSWERED)

    async def close(self) -> None:
        pass


def test_every_request_is_in_one_sample() -> None:
    line, samples = Instant(), list[Sample]()
    plan = Steady(300, 2 * S // 5, every_us=S // 10)
    account = asyncio.run(steady_load(line, plan, read=held, on_sample=samples.append, is_told_to_stop=lambda: False))
    assert account.offered == len(line.asked) == 120
    assert len(samples) == 4
    assert [sample.at_us for sample in samples] == sorted(sample.at_us for sample in samples)
    assert sum(sample.span_us for sample in samples) == samples[-1].at_us
    # What was sent after the last sample's end is in none.
    assert sum(sample.sent for sample in samples) <= 120
    assert sum(sample.answered + sample.refused for sample in samples) <= account.offered
    assert all(sample.refused for sample in samples)


def test_a_load_that_is_told_to_stop_stops_before_the_next_request_is_due() -> None:
    line, samples = Instant(), list[Sample]()
    plan = Steady(0.001, 1_000 * S, every_us=S // 20)
    account = asyncio.run(
        steady_load(line, plan, read=held, on_sample=samples.append, is_told_to_stop=lambda: bool(samples))
    )
    assert len(samples) == 1
    assert account.offered <= 2


def test_what_goes_wrong_while_sampling_ends_the_load() -> None:
    def read() -> Resources:
        raise RuntimeError("no such process")

    plan = Steady(100, 1_000 * S, every_us=S // 20)
    with pytest.raises(RuntimeError, match="no such process"):
        asyncio.run(steady_load(Instant(), plan, read=read, on_sample=lambda _: None, is_told_to_stop=lambda: False))


def test_a_closed_loop_counts_answers_only() -> None:
    line = Instant()
    rate = asyncio.run(closed_loop_rate(line, 3, length_us=S // 5))
    answers = sum(number % 3 != 2 for number in line.asked)
    assert 0 < rate <= answers / 0.15 * 1.5


def test_the_picture_shows_the_run(tmp_path: Path) -> None:
    from brim.soak.plot import draw

    samples = run(20)
    drawn = draw(samples, verdict(samples), tmp_path / "soak.svg", title="known_time").read_bytes()
    for name in ("throughput", "rss.tritonserver", "rss.stubs", "rss.envoy", "shm", "fds.envoy", "in_flight"):
        assert f'id="{name}"'.encode() in drawn
