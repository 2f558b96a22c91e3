"""``brim top`` and ``brim report --live`` as they are typed, from recordings; and what does not go together."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from brim.cli.commands import live_places
from brim.live.history import History
from brim.live.look import Looker
from brim.live.places import Places
from brim.live.seen import Objectives, Recording, Seen, write_recording
from brim.report.live import live_report
from brim.report.page import page
from tests.conftest import Brim
from tests.unit.live_example import duration_lines, ended_line, look, server, text_page, totals
from tests.unit.test_report_page import HOSTILE, Reader

PATIENCE_S = 60
SLO = {"net": Objectives(99, 50_000)}
LOOKS = (
    look(0, [], r1=server(0, totals()), r2=server(0, totals())),
    look(
        5,
        [ended_line(90), ended_line(10, code="429", reason="queue_full"), *duration_lines({10: 81, 100: 90})],
        r1=server(5, totals(sizes={10: 4})),
        r2=server(5, totals(sizes={50: 1})),
    ),
)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    file = tmp_path / "looks.json"
    write_recording(file, Recording(SLO, LOOKS))
    return file


def test_once_is_a_table(brim: Brim, recording: Path) -> None:
    done = brim("top", "--replay", recording, "--once")
    assert done.code == 0
    head, net, *replicas = done.out.splitlines()
    assert head.split()[:2] == ["model", "rate/s"] and net.split()[:4] == ["net", "18", "90-100%", "<=10"]
    assert [line.split()[:2] for line in replicas] == [["r1", "8"], ["r2", "10"]]
    assert net.endswith("4x10 1x50") and "over 5.0 s" in done.err


def test_once_as_json_is_what_it_shows(brim: Brim, recording: Path) -> None:
    done = brim("top", "--replay", recording, "--once", "--json")
    answer = json.loads(done.out)
    assert done.code == 0 and answer["command"] == "top" and answer["ok"] is True
    data = answer["data"]
    assert data["looks"] == 2 and data["stretch_us"] == 5_000_000
    (net,) = data["models"]
    assert net["batch_sizes"] == {"10": 4, "50": 1} and net["rate_per_s"] == 18.0
    assert net["latency"] == {"source": "gateway", "answers": 90, "p50_us": 10_000, "p99_us": 100_000}
    assert net["goodput"] == {"source": "gateway", "low": 0.9, "high": 1.0}
    assert net["gateway"]["outcomes"]["refused"] == 10
    assert [one["server"] for one in net["servers"]] == ["r1", "r2"]
    assert data["servers"][0] == {"name": "r1", "up": True, "trouble": "", "restarted": False}


def test_nobody_who_answers_is_no_answer(brim: Brim, tmp_path: Path) -> None:
    file = tmp_path / "looks.json"
    silent = tuple(look(at, r1="no statistics: connection refused") for at in (0, 5))
    write_recording(file, Recording({}, silent))
    done = brim("top", "--replay", file, "--once", "--json")
    answer = json.loads(done.out)
    assert done.code == 3 and answer["ok"] is False and "connection refused" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--json"], "--json without --once"),
        (["--once", "--json", "--record", "f.json"], "--json with --record"),
        (["--replay", "f.json", "--server", "h:1", "--once"], "--replay with an address"),
        (["--replay", "f.json", "--record", "g.json"], "--replay with --record"),
        (["--picture", "f.png"], "its name ends in .svg"),
        (["--once", "--interval-s", "0.1"], "0.5"),
        (["--once", "--looks", "1"], "2"),
        (["--once", "--server", "nothing"], "expected host:port"),
        (["--once", "--metrics", "h:1"], "--metrics without an address"),
        (["--once", "--gateway-admin", "http://h:1"], "--gateway-admin http://h:1: expected host:port"),
        (["--once", "--server", "h:1", "--pid", "1"], "--pid with an address"),
        ([], "this is no terminal"),
    ],
)
def test_what_does_not_go_together_is_refused(brim: Brim, arguments: list[str], words: str) -> None:
    done = brim("top", *arguments)
    said = done.out + done.err
    assert done.code == 2 and words in said and "hint" in said


def test_a_recording_is_made_of_looks(
    brim: Brim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    """And has what the services of the checkout promise."""
    remaining = iter(LOOKS)

    def next_look(self: Looker) -> Seen:
        return next(remaining)

    slept: list[float] = []
    monkeypatch.setattr(Looker, "look", next_look)
    monkeypatch.setattr(live_places.time, "sleep", slept.append)
    monkeypatch.setattr(live_places, "places", lambda *_: Places(()))
    monkeypatch.setattr("brim.cli.commands.top.places", lambda *_: lambda: Places(()))
    monkeypatch.setenv("BRIM_ROOT", str(checkout))
    file = tmp_path / "new.json"
    done = brim("top", "--record", file, "--looks", "2", "--interval-s", "7")
    assert done.code == 0 and done.out.split() == [str(file)] and slept == [7.0]
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert len(kept["looks"]) == 2 and kept["objectives"]["image_classifier"]["latency_us"] == 50_000
    assert kept["objectives"]["text_generation"]["ttft_us"] == 2_000_000


def test_a_report_of_what_runs(brim: Brim, recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    done = brim("report", "--live", recording, "--out", out, "--json")
    answer = json.loads(done.out)
    assert done.code == 0
    assert answer["data"]["files"] == [str(out / "report.html"), str(out / "report.md")]
    assert answer["data"]["sections"] == ["models", "model1"]
    assert answer["data"]["models"][0]["rate_per_s"] == 18.0
    html = (out / "report.html").read_text(encoding="utf-8")
    found = Reader(html)
    assert found.rows[1][:5] == ["net", "18", "90-100%", "<=10", "<=100"]
    assert "script" not in {tag for tag, _ in found.tags} and "http-equiv" not in html
    assert "net: 18/s, 90-100% in the SLO." in found.text
    assert "p99 within 50 ms" in found.text
    assert "4x" not in found.text and "Batch sizes" in found.text and "By replica" in found.text
    assert "| net | 18 |" in (out / "report.md").read_text(encoding="utf-8").replace("\\", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either RUN or --live"),
        (["run", "--live", "h:1"], "give either RUN or --live"),
        (["--live", "h:1", "--slo-ms", "5"], "with --live"),
        (["--live", "h:1", "--duration-s", "5"], "--duration-s without --refresh-s"),
        (["--live", "f.json", "--refresh-s", "5"], "with a recording"),
        (["--live", "f.json", "--gateway-admin", "h:1"], "with a recording"),
        (["--live", "h:1", "--refresh-s", "5", "--json"], "are of one look"),
        (["run", "--refresh-s", "5"], "are of --live"),
        (["run", "--picture", "f.svg"], "its name ends in .png"),
    ],
)
def test_what_does_not_go_with_a_report_is_refused(brim: Brim, arguments: list[str], words: str) -> None:
    done = brim("report", *arguments)
    said = done.out + done.err
    assert done.code == 2 and words in said and "hint" in said


def test_a_page_that_is_written_again_and_again_reloads_itself(
    brim: Brim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three looks, a second apart as somebody's clock has it: two pages, and the end."""
    looks = [*LOOKS, look(6, [], r1=server(6, totals(sizes={10: 9})), r2="no statistics: timed out")]
    remaining, clock = iter(looks), [100.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(Looker, "look", lambda self: next(remaining))
    module = "brim.cli.commands.report_live"
    monkeypatch.setattr(
        f"{module}.time", type("Clock", (), {"sleep": staticmethod(sleep), "monotonic": lambda: clock[0]})
    )
    monkeypatch.setattr(f"{module}.places", lambda *_: lambda: Places(()))
    monkeypatch.setattr(f"{module}.promised", lambda: SLO)
    done = brim("report", "--live", "h:1", "--refresh-s", "3", "--duration-s", "6", "--out", tmp_path)
    assert done.code == 0, done.err
    assert done.out.split() == [str(tmp_path / "report.html")] and next(remaining, None) is None
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="3">' in html
    assert "r2 does not answer: no statistics: timed out" in Reader(html).text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md"]


def test_a_page_of_hostile_names_is_safe() -> None:
    history = History({HOSTILE: Objectives(99, 50_000)})
    for at in (0, 5):
        told = [f'nv_inference_pending_request_count{{model="net"}} {at}', *text_page(model="net")]
        entry = totals(HOSTILE, sizes={3: at + 1}, version=HOSTILE)
        view = history.add(Seen(at * 1_000_000, {HOSTILE: server(at, entry, page=told), "gone": HOSTILE}, HOSTILE))
    built = live_report(view, {HOSTILE: Objectives(99, 50_000)}, command=HOSTILE, taken_at=HOSTILE, refresh_s=None)
    found = Reader(page(built))
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "img"})
    assert page(built) == page(built)


def test_an_empty_server_is_a_page_too() -> None:
    view = History().add(Seen(time.monotonic_ns() // 1_000, {"r1": server(0)}, None))
    built = live_report(view, {}, command="brim report", taken_at="")
    assert built.verdict == "No model is loaded." and built.sections[0].figures == ()
    Reader(page(built))


def test_in_a_terminal_it_is_a_view_until_q(recording: Path) -> None:
    """The command itself, on a terminal of its own."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    command = [sys.executable, "-m", "brim", "top", "--replay", str(recording), "--interval-s", "0.5"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    try:
        shown = b""
        deadline = time.monotonic() + PATIENCE_S
        # The second look has been taken by then.
        while b"90-100%" not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 65_536)
        os.write(ours, b"q")
        while child.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            if select.select([ours], [], [], 0.1)[0]:
                with suppress(OSError):
                    os.read(ours, 65_536)
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert child.returncode == 0, shown
