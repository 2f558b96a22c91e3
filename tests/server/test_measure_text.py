"""``brim measure`` of the shipped language model: both sides count the same, and nothing is unaccounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.isolation.text.special import patient_repository
from brim.measure.text.perf_stream import FILE_NAME as CHECKS_FILE
from brim.measure.text.point import FILE_NAME
from brim.paths import Project
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from brim.server.options import ServerOptions
from brim.service.load import find_service
from brim.service.samples import sample_rows
from tests.conftest import Brim
from tests.server.text_callers import MODEL, metric

SHORT = ("--prompts", "12", "--texts", "3")


@pytest.fixture(scope="module")
def endpoint(exported_text: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    project = exported_text
    service = find_service(project.services, MODEL)
    with (
        # Whether a shared prefix is found is a question of this test, and the cache is off as shipped.
        patient_repository(project.model_repository, MODEL, prefix_cache=True) as repository,
        EmbeddedServer(
            repository,
            [MODEL],
            cache=project.cache,
            log_file=tmp_path_factory.mktemp("measured") / "triton.log",
            canaries={MODEL: sample_rows(service)[0]},
            options=ServerOptions(exit_timeout_s=5),
        ) as server,
    ):
        yield server.endpoint


@pytest.fixture(autouse=True)
def root(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(checkout))


def at(endpoint: Endpoint) -> tuple[str, ...]:
    assert endpoint.metrics is not None
    ports = {"--grpc-port": endpoint.grpc, "--metrics-port": endpoint.metrics}
    return ("--url", endpoint.http, *(part for name, one in ports.items() for part in (name, one.rpartition(":")[2])))


def data(done: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = done
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["data"]
    return found


def test_a_closed_loop_and_perf_analyzer_and_a_second_time_nothing_is_sent(
    brim: Brim, endpoint: Endpoint, tmp_path: Path
) -> None:
    given = ("measure", MODEL, *at(endpoint), "--concurrency", "3", *SHORT, "--duration", "1", "--batch-share", "0.5")
    given = (*given, "--perf-analyzer", "--window-ms", "1500", "--out", str(tmp_path), "--json")
    found = data(brim(*given))
    assert [point["concurrency"] for point in found["points"]] == [3]
    for point in found["points"]:
        answered = point["answered"]
        assert point["offered"] == answered > 0 and point["generator"]["most_under_way"] == point["concurrency"]
        assert point["input_tokens"] == point["asked_tokens"] == 12 * answered, "the tokenizer counts as the words do"
        assert point["output_tokens"] == 3 * answered and point["settled"] is True
        assert point["server"]["ends"] == {"length": answered} and point["server"]["refusals"] == {}
        assert point["server"]["prefix_hit_tokens"] == 0, "no prompt is known already"
        parts = point["ttft_parts_us"]
        assert parts["client_count"] == parts["server_count"] == answered
        assert 0 < parts["server"] < parts["client"], "the server's time lies inside the caller's"
        assert 0 < parts["queue"] + parts["prefill"] <= parts["server"] * 1.001
        assert parts["turnaround"] > 0 and 0 < point["mean_batch"] <= point["concurrency"] and point["duty"] > 0
        assert point["ttft_us"]["50"] <= point["ttft_us"]["99"] <= point["p99_us"]
        assert sum(one["offered"] for one in point["classes"].values()) == point["offered"]
    assert found["points"] == [json.loads(one) for one in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [check["responses_per_request"] for check in found["perf_analyzer"]] == [3]
    for check in found["perf_analyzer"]:
        assert check["requests"] > 0 and check["ttft_us"]["50"] < check["e2e_us"]["50"]
    ended = metric(endpoint, "brim_llm_requests_total", end="length")
    assert data(brim(*given)) == found
    assert metric(endpoint, "brim_llm_requests_total", end="length") == ended
    assert len((tmp_path / CHECKS_FILE).read_text().splitlines()) == 1
    assert data(brim("report", tmp_path, "--json"))["sections"] == ["text"]
    assert "by perf_analyzer" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_burst_beyond_the_waiting_room_is_refused_and_both_sides_say_why(
    brim: Brim, endpoint: Endpoint, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"offset_us": 1000}\n' * 160, encoding="utf-8")
    given = ("measure", MODEL, *at(endpoint), "--trace", trace, "--duration", "1", *SHORT, "--out", tmp_path / "run")
    code, out, err = brim(*given)
    assert code == 0, err
    assert "time to first token, mean ms" in out and "trace 160/s" in out
    (line,) = (tmp_path / "run" / FILE_NAME).read_text(encoding="utf-8").splitlines()
    point = json.loads(line)
    assert point["offered"] == 160 == point["answered"] + point["refused"] and point["refused"] > 0
    assert point["refused_by"] == point["server"]["refusals"] and sum(point["refused_by"].values()) == point["refused"]
    assert point["server"]["ends"] == {"length": point["answered"], "refused": point["refused"]}
    assert point["refused_by"].get("room_full", 0) > 0 and f"{point['refused']} refused (refused: " in err
    assert point["goodput_ratio"] == point["in_slo"] / 160 and not point["classes"]
    assert point["mode"] == "rate" and point["slo_met"] in (False, None)


def test_a_shared_prefix_is_found_in_the_cache(brim: Brim, endpoint: Endpoint, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt_tokens": 72, "output_tokens": 1}\n', encoding="utf-8")
    given = ("measure", MODEL, *at(endpoint), "--concurrency", "1,2", "--pairs", pairs, "--shared-prefix", "64")
    first, second = data(brim(*given, "--duration", "0.5", "--out", tmp_path / "run", "--json"))["points"]
    assert second["input_tokens"] == second["asked_tokens"] == 72 * second["answered"] > 0
    assert first["server"]["prefix_hit_tokens"] == 64 * (first["answered"] - 1), "the first one fills it"
    assert second["server"]["prefix_hit_tokens"] == 64 * second["answered"]
