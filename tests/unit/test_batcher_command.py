"""``brim simulate`` as it is typed: its answer, and what is wrong with its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Brim

TIMES = ("--tau0-us", "5000", "--alpha-us", "100")
HEAD = 'name: "m"\nbackend: "python"\nmax_batch_size: 100\n'


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(batching: str, head: str = HEAD) -> Path:
        path = tmp_path / "config.pbtxt"
        path.write_text(head + batching, encoding="utf-8")
        return path

    return write


def data(done: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = done
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["command"], answer["ok"]) == ("simulate", True)
    return answer["data"]  # type: ignore[no-any-return]


PREFERRED = "preferred_batch_size: [32, 64]"


@pytest.mark.parametrize(
    ("batching", "arguments", "expected"),
    [
        (PREFERRED, (), [64, 64, 22]),
        (f"{PREFERRED} max_queue_delay_microseconds: 3000000", (), [65, 65, 20]),
        (f"{PREFERRED} max_queue_delay_microseconds: 3000000", ("--waited-us", "3000000"), [100, 50]),
        ("", (), [100, 50]),
    ],
)
def test_waiting_requests_list_their_batches(
    brim: Brim, config: Callable[[str], Path], batching: str, arguments: tuple[str, ...], expected: list[int]
) -> None:
    path = config(f"dynamic_batching {{ {batching} }}")
    answer = data(brim("simulate", "--config", path, *TIMES, "--waiting", "150", *arguments, "--json"))
    assert answer["batches"] == expected
    assert sum(answer["launches"].values()) == len(expected) == len(answer["reasons"])


@pytest.mark.parametrize(
    "load",
    [
        ("--rate", "500", "--arrival", "poisson"),
        ("--rate", "500", "--arrival", "constant"),
        ("--rate", "500", "--arrival", "bursty"),
        ("--concurrency", "20", "--think-us", "1000"),
    ],
)
def test_the_answer_of_a_load(brim: Brim, config: Callable[[str], Path], load: tuple[str, ...]) -> None:
    arguments = (
        "--config",
        config("dynamic_batching { }"),
        *TIMES,
        *load,
        "--requests",
        "2000",
        "--seed",
        "3",
        "--json",
    )
    answer = data(brim("simulate", *arguments))
    assert answer["offered"] == answer["answered"] == 2000
    assert {"full", "preferred", "delay", "drained", "shape"} <= answer["launches"].keys()
    assert 5_100 <= answer["p50_us"] <= answer["p90_us"] <= answer["p99_us"]
    assert answer["batches"] == sum(answer["launches"].values())
    assert answer["fill"] == answer["mean_batch"] / 100
    assert 0 < answer["duty"] <= 1
    assert (answer["refused"], answer["expired"]) == (0, 0)
    assert data(brim("simulate", *arguments)) == answer


def test_words_for_people(brim: Brim, config: Callable[[str], Path]) -> None:
    code, out, err = brim("simulate", "--config", config("dynamic_batching { }"), *TIMES, "--waiting", "150")
    assert code == 0
    assert "batches: 100 full, 50 drained" in out
    (speed,) = err.splitlines()
    found = re.fullmatch(r"([\d,]+) requests/s simulated on one core \(150 in ([\d.]+) s\)", speed)
    assert found and int(found[1].replace(",", "")) > 0
    code, out, err = brim("simulate", "--config", config(""), *TIMES, "--rate", "100")
    assert code == 0
    assert "every request is a batch" in err


def write_trace(path: Path, offsets_us: list[int]) -> Path:
    path.write_text("".join(json.dumps({"offset_us": at_us}) + "\n" for at_us in offsets_us), encoding="utf-8")
    return path


def test_a_trace_is_replayed(brim: Brim, config: Callable[[str], Path], tmp_path: Path) -> None:
    given = ("--config", config("dynamic_batching { }"), *TIMES, "--instances", "1", "--json")
    apart = write_trace(tmp_path / "apart.jsonl", [0, 10_000, 20_000])
    answer = data(brim("simulate", *given, "--trace", apart))
    assert (answer["offered"], answer["batches"], answer["p99_us"]) == (3, 3, 5_100)
    together = write_trace(tmp_path / "together.jsonl", [0, 1, *[1_000] * 5])
    answer = data(brim("simulate", *given, "--trace", together))
    assert (answer["offered"], answer["answered"]) == (7, 7) and answer["mean_batch"] > 1
    assert answer["mean_us"] <= answer["p99_us"]
    apart.write_text('{"offset_us": 5}\n{"offset_us": 4}\n{"at": 1}\n', encoding="utf-8")
    code, _, err = brim("simulate", *given[:-1], "--trace", apart)
    assert code == 2
    assert "line 2: offset_us 4 comes after 5" in err and "line 3: '{\"at\": 1}' has no offset_us" in err


@pytest.mark.parametrize(("ending", "head"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("PNG", b"\x89PNG")])
def test_a_picture(brim: Brim, config: Callable[[str], Path], ending: str, head: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    given = ("--config", config("dynamic_batching { }"), *TIMES, "--rate", "500", "--requests", "300", "--plot", path)
    code, _, err = brim("simulate", *given)
    assert code == 0 and f"picture: {path}" in err
    first = path.read_bytes()
    assert first.startswith(head)
    assert brim("simulate", *given)[0] == 0 and path.read_bytes() == first, "the same answer is the same picture"
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("run")] == [path.name]


def test_a_picture_of_requests_that_were_all_refused(brim: Brim, config: Callable[[str], Path], tmp_path: Path) -> None:
    bounded = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    given = ("--config", config(bounded), "--tau0-us", "9e8", "--alpha-us", "0", "--waiting", "5")
    assert brim("simulate", *given, "--plot", tmp_path / "run.svg")[0] == 0


def test_measured_times(brim: Brim, config: Callable[[str], Path], tmp_path: Path) -> None:
    tau = tmp_path / "tau.json"
    tau.write_text('{"points": [{"rows": 1, "time_us": 700}, {"rows": 100, "time_us": 900}]}', encoding="utf-8")
    answer = data(
        brim("simulate", "--config", config("dynamic_batching { }"), "--tau", tau, "--waiting", "100", "--json")
    )
    assert answer["p50_us"] == 900
    tau.write_text('{"points": [{"rows": 0, "time_us": 700}, {"rows": 100}]}', encoding="utf-8")
    code, _, err = brim("simulate", "--config", config("dynamic_batching { }"), "--tau", tau, "--waiting", "100")
    assert code == 2
    assert "points[0].rows is 0" in err and "points[1].time_us is missing" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TIMES,), "no load is given"),
        ((*TIMES, "--rate", "1", "--concurrency", "1"), "exclude each other"),
        ((*TIMES, "--rate", "0"), "the rate is 0"),
        ((*TIMES, "--rate", "-5"), "the rate is -5"),
        ((*TIMES, "--rate", "nan"), "the rate is nan"),
        ((*TIMES, "--rate", "9", "--arrival", "weekly"), "weekly"),
        ((*TIMES, "--rate", "9", "--requests", "0"), "0 requests"),
        ((*TIMES, "--rate", "9", "--requests", "99999999"), "99999999 requests"),
        ((*TIMES, "--concurrency", "0"), "0 callers"),
        ((*TIMES, "--concurrency", "5", "--arrival", "poisson"), "--arrival without --rate"),
        ((*TIMES, "--rate", "5", "--waited-us", "3"), "--waited-us without --waiting"),
        ((*TIMES, "--waiting", "-1"), "-1 requests"),
        ((*TIMES, "--waiting", "5", "--requests", "3"), "--requests beside --waiting"),
        ((*TIMES, "--waiting", "5", "--instances", "0"), "there are 0 instances"),
        ((*TIMES, "--waiting", "5", "--jitter", "-1"), "jitter is -1"),
        ((*TIMES, "--trace", "x.jsonl"), "x.jsonl: cannot be read"),
        ((*TIMES, "--trace", "x.jsonl", "--rate", "5"), "--rate and --trace exclude each other"),
        ((*TIMES, "--trace", "x.jsonl", "--requests", "5"), "--requests beside --trace"),
        ((*TIMES, "--rate", "5", "--plot", "run.gif"), "--plot run.gif"),
        ((*TIMES, "--rate", "5", "--plot", "run"), "--plot run"),
        (("--waiting", "5"), "how long a batch takes"),
        (("--waiting", "5", "--tau0-us", "5"), "how long a batch takes"),
        (("--waiting", "5", "--tau", "x.json", "--tau0-us", "5"), "exclude each other"),
        (("--waiting", "5", "--tau", "x.json"), "x.json"),
        (("--waiting", "5", "--tau0-us", "-5", "--alpha-us", "1"), "tau0_us is -5"),
    ],
)
def test_wrong_arguments(brim: Brim, config: Callable[[str], Path], arguments: tuple[str, ...], words: str) -> None:
    code, out, err = brim("simulate", "--config", config("dynamic_batching { }"), *arguments)
    assert (code, out) == (2, "")
    assert words in err and err.count("error: ") == 1 and "\nhint: " in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: [", "error"),
        ("max_batch_size: 0 dynamic_batching { }", "needs max_batch_size of 1 or more"),
        ('platform: "ensemble" ensemble_scheduling { }', "is an ensemble"),
        ("max_batch_size: 4 sequence_batching { }", "is a sequence model"),
    ],
)
def test_configurations_that_cannot_be_simulated(
    brim: Brim, config: Callable[..., Path], text: str, words: str
) -> None:
    code, _, err = brim("simulate", "--config", config(text, head=""), *TIMES, "--waiting", "5")
    assert code == 2
    assert words in err and "\nhint: " in err
    code, _, err = brim("simulate", "--config", config("").with_name("none.pbtxt"), *TIMES, "--waiting", "5")
    assert code == 2
    assert "none.pbtxt" in err
