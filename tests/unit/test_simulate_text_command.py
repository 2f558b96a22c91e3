"""``brim simulate`` of a language model as it is typed: its answer, its what-ifs, and what is wrong with its arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Brim

LOAD = ("--rate", "3", "--requests", "60", "--prompts", "lognormal:100,0.8", "--texts", "lognormal:40,0.8")


@pytest.fixture
def step_time(tmp_path: Path) -> Path:
    path = tmp_path / "step.json"
    path.write_text('{"base_us": 9000, "sequence_us": 1000, "context_us": 0.9, "prefill_us": 900, "pair_us": 0.02}')
    return path


def data(done: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = done
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    assert answer["command"] == "simulate" and answer["ok"]
    found: dict[str, Any] = answer["data"]
    return found


def test_a_service_brings_its_settings_its_traffic_and_its_objective(brim: Brim, step_time: Path) -> None:
    found = data(brim("simulate", "text_generation", "--step-time", step_time, "--requests", "40", "--json"))
    assert found["offered"] == 40 == found["stop"] + found["length"] + found["refused"]
    assert found["slo"] == {"ttft_us": 2_000_000, "tpot_us": 200_000}
    assert found["setting"]["max_sequences"] == 32 and found["setting"]["chunk_tokens"] == 256
    assert 0 <= found["in_slo"] <= 1 and found["goodput_per_s"] > 0
    for name in ("ttft", "tpot", "e2e"):
        assert found[f"{name}_p50_us"] <= found[f"{name}_p90_us"] <= found[f"{name}_p99_us"]


def test_the_same_seed_gives_the_same_answer(brim: Brim, step_time: Path) -> None:
    given = ("simulate", "--step-time", step_time, *LOAD, "--jitter", "0.1", "--json")
    first, again, other = (data(brim(*given, "--seed", seed)) for seed in ("1", "1", "2"))
    assert first == again != other
    assert first["goodput_per_s"] is None, "without an objective there is none"


def test_both_ways_of_batching_stand_in_one_table(brim: Brim, step_time: Path) -> None:
    given = ("simulate", "--step-time", step_time, *LOAD, "--static", "--ttft-ms", "500")
    found = data(brim(*given, "--json"))
    assert found["static"]["tokens"] == found["tokens"]
    assert found["ratio"]["ttft_p50_us"] == found["ttft_p50_us"] / found["static"]["ttft_p50_us"] < 1
    assert found["in_slo"] > found["static"]["in_slo"]
    code, out, _ = brim(*given)
    assert code == 0
    assert "every step" in out and "whole requests" in out and "ratio" in out


def test_what_ifs_are_what_is_simulated(brim: Brim, step_time: Path) -> None:
    given = ("simulate", "--step-time", step_time, *LOAD, "--json")
    few = data(brim(*given, "--max-sequences", "2"))
    assert few["setting"]["max_sequences"] == 2 and few["mean_sequences"] <= 2
    tight = data(brim(*given, "--kv-blocks", "20"))
    assert tight["most_blocks"] <= 20
    fine = data(brim(*given, "--chunk-tokens", "64"))
    assert fine["step_max_us"] < data(brim(*given))["step_max_us"]


def test_callers_and_recorded_arrivals(brim: Brim, step_time: Path, tmp_path: Path) -> None:
    closed = data(brim("simulate", "--step-time", step_time, "--concurrency", "3", *LOAD[2:], "--json"))
    assert closed["offered"] == 60 and closed["mean_sequences"] <= 3
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"offset_us": 5}\n{"offset_us": 900000}\n', encoding="utf-8")
    found = data(
        brim("simulate", "--step-time", step_time, "--trace", trace, "--texts", "1", "--prompts", "8", "--json")
    )
    assert found["offered"] == 2
    assert found["ttft_p50_us"] == found["ttft_p99_us"] == 9_000 + 8 * 900 + round(0.02 * 32)


@pytest.mark.parametrize(("ending", "head"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_a_picture(brim: Brim, step_time: Path, tmp_path: Path, ending: str, head: bytes) -> None:
    path = tmp_path / f"run.{ending}"
    given = ("simulate", "--step-time", step_time, *LOAD, "--static", "--tpot-ms", "50", "--plot", path)
    code, _, err = brim(*given)
    assert code == 0 and f"picture: {path}" in err
    first = path.read_bytes()
    assert first.startswith(head)
    assert brim(*given)[0] == 0 and path.read_bytes() == first, "the same answer is the same picture"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "1"), "how long a step takes"),
        (("--step-time", "STEP"), "no load is given"),
        (("--step-time", "STEP", "--rate", "1", "--concurrency", "1"), "exclude each other"),
        (("--step-time", "STEP", "--concurrency", "0"), "0 callers"),
        (("--step-time", "STEP", "--concurrency", "1", "--static"), "--static beside --concurrency"),
        (("--step-time", "STEP", "--rate", "0"), "the rate is 0"),
        (("--step-time", "STEP", "--rate", "1", "--requests", "0"), "0 requests"),
        (("--step-time", "STEP", "--concurrency", "1", "--requests", "0"), "0 requests"),
        (("--step-time", "STEP", "--rate", "1", "--prompts", "long"), "--prompts long"),
        (("--step-time", "STEP", "--rate", "1", "--texts", "0"), "--texts 0"),
        (("--step-time", "STEP", "--rate", "1", "--batch-share", "2"), "2.0 of them batch"),
        (("--step-time", "STEP", "--rate", "1", "--chunk-tokens", "32", "--kv-blocks", "0"), "--kv-blocks"),
        (("--step-time", "STEP", "--rate", "1", "--max-sequences", "0"), "--max-sequences"),
        (("--step-time", "STEP", "--rate", "1", "--max-sequences", "300"), "a step needs a token for each"),
        (("--step-time", "STEP", "--rate", "1", "--ttft-ms", "0"), "--ttft-ms"),
        (("--step-time", "STEP", "--rate", "1", "--tpot-ms", "nan"), "--tpot-ms"),
        (("--step-time", "STEP", "--rate", "1", "--jitter", "-1"), "jitter is -1"),
        (("--step-time", "STEP", "--rate", "1", "--tau0-us", "5"), "--tau0-us beside a language model"),
        (("--step-time", "STEP", "--rate", "1", "--waiting", "5"), "--waiting beside a language model"),
        (("--step-time", "STEP", "--rate", "1", "--plot", "run.gif"), "--plot run.gif"),
        (("--step-time", "nothing.json", "--rate", "1"), "nothing.json"),
        (("text_embedding", "--step-time", "STEP"), "text_embedding is no language model"),
        (("nope", "--step-time", "STEP"), "no service 'nope'"),
        (("--config", "c.pbtxt", "--step-time", "STEP", "--waiting", "5"), "--step-time beside --config"),
        (("text_generation", "--config", "c.pbtxt", "--waiting", "5"), "a service beside --config"),
        (("--config", "c.pbtxt", "--waiting", "5", "--static"), "--static beside --config"),
    ],
)
def test_wrong_arguments(brim: Brim, step_time: Path, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = brim("simulate", *(str(step_time) if word == "STEP" else word for word in arguments))
    assert (code, out) == (2, "")
    assert words in err and err.count("error: ") == 1 and "\nhint: " in err
