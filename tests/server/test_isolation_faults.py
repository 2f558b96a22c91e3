"""The suite against models that hurt their callers on purpose, each in one way: it must fail and name the right check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.isolation import bench, hostile, killed, reload, throughput
from brim.isolation.checks import CHECKS
from brim.isolation.evidence import Company
from brim.isolation.result import Options, Result
from brim.isolation.suite import run_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.server.supervise import Supervisor
from tests.conftest import Brim
from tests.server.adapter_models import add_lookup
from tests.server.isolation_models import COLUMN, FAULTS, NAMED, TEXTS, write_models

ANSWER_TIMEOUT_S = 15.0
SHORT_TIMEOUT_S = 2.0
"""Where a caller is known to hang, and the others of its check need no more than milliseconds."""
PATIENCE_S = 120
OPTIONS = Options(requests=600, callers=100, answer_timeout_s=ANSWER_TIMEOUT_S)
ROWS = [{"X": row[np.newaxis]} for row in np.random.default_rng(3).uniform(-1, 1, (60, 4)).astype(np.float32)]


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("isolation")
    names = write_models(folder / "models")
    add_lookup(folder / "models")
    with EmbeddedServer(
        folder / "models",
        [*names, "lookup"],
        cache=Project(checkout).cache,
        log_file=folder / "server.log",
        # A request that is never answered would hold up the end of the server.
        options=ServerOptions(exit_timeout_s=1),
    ) as running:
        yield running


def by_id(results: list[Result]) -> dict[str, Result]:
    for result in results:
        counted = (
            result.right + result.own_error + result.cancelled + result.wrong + result.neighbour_errors + result.hung
        )
        assert result.sent == counted
    return {result.id: result for result in results}


FRAMING = "framing_neighbours"
OWN_ONLY = ("deterministic_batches", "reload_under_load", "backend_killed")


def test_a_clean_model_passes_every_check_but_the_one_that_triton_itself_fails(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of zero rows makes a full batch of the python backend too large, whatever the model is."""
    monkeypatch.setattr(throughput, "SEGMENT_S", 0.1)
    monkeypatch.setattr(hostile, "BODIES", 0.5)
    results = by_id(run_suite(server.endpoint, "clean", OPTIONS))
    assert {name: result.message for name, result in results.items() if not result.ok and name != FRAMING} == {}
    assert list(results) == [check.id for check in CHECKS]
    skipped = {result.id for result in results.values() if result.skipped}
    assert skipped == {"unequal_lengths", "whole_batch_failure", *OWN_ONLY}
    assert results["identity"].right == results["identity"].sent == OPTIONS.requests
    assert results["poison_neighbours"].own_error > 0
    assert results["malformed_neighbours"].own_error > 0
    assert results["own_errors_only"].own_error > 0
    assert results["caller_gone"].cancelled > 0
    assert all(result.mean_batch > 5 for result in results.values() if result.id != "two_models" and result.mean_batch)
    framing = results[FRAMING]
    assert framing.neighbour_errors > 0 and framing.wrong == 0 and framing.hung == 0
    assert "max allowed is 100" in framing.message


OF_THEIR_OWN = ("never_answers", "swapped_rarely", "full_batch_swapped", "poison_stops_all", *TEXTS)


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in OF_THEIR_OWN])
def test_a_planted_fault_is_named(server: EmbeddedServer, fault: str) -> None:
    # Few of the broken messages have a parameter, and each must meet somebody in a batch.
    requests = 6_000 if fault == "parameter_fails_all" else OPTIONS.requests
    options = replace(OPTIONS, requests=requests, checks=(NAMED[fault],), repeat="brim isolate again")
    results = by_id(run_suite(server.endpoint, fault, options, rows=ROWS, own=server))
    assert_named(results, fault)


def test_rows_swapped_once_in_ten_thousand_are_found(server: EmbeddedServer) -> None:
    options = replace(OPTIONS, requests=64_000, checks=("row_counts",), repeat="brim isolate again")
    results = by_id(run_suite(server.endpoint, "swapped_rarely", options, rows=ROWS))
    assert_named(results, "swapped_rarely")
    assert results["row_counts"].wrong < 10


def test_padding_that_counts_shows_beside_longer_rows_only(server: EmbeddedServer) -> None:
    rows = [{"X": np.array([[f"{number:06d}".encode()]], dtype=np.object_)} for number in range(60)]
    options = replace(OPTIONS, checks=("identity", "unequal_lengths"), repeat="brim isolate again")
    results = by_id(run_suite(server.endpoint, "padding_counts", options, rows=rows))
    assert results["identity"].ok
    assert_named(results, "padding_counts")


@pytest.mark.parametrize("fault", ["mixes_models", "parameter_fails_all", "worse_each_load", "full_batch_swapped"])
def test_a_fault_shows_in_no_check_that_does_not_provoke_it(server: EmbeddedServer, fault: str) -> None:
    # So few callers never fill a batch by chance.
    options = replace(OPTIONS, callers=30, requests=300, checks=("identity", "row_counts", "poison_neighbours"))
    results = by_id(run_suite(server.endpoint, fault, options, rows=ROWS))
    checks = ("identity",) if fault == "full_batch_swapped" else tuple(results)
    assert {name: results[name].message for name in checks if not results[name].ok} == {}


def test_a_run_that_raises_fails_poison_and_whole_batch_and_an_adapter_that_isolates_passes(
    server: EmbeddedServer,
) -> None:
    checks = ("poison_neighbours", "whole_batch_failure")
    bare = by_id(run_suite(server.endpoint, "fails_whole", replace(OPTIONS, checks=checks), rows=ROWS))
    assert all(not result.ok and result.neighbour_errors > 0 for result in bare.values())
    rows = [{"IDS": np.array([[number]], np.int64)} for number in range(5)]
    isolated = by_id(run_suite(server.endpoint, "lookup", replace(OPTIONS, checks=checks), rows=rows))
    assert {name: result.message for name, result in isolated.items() if not result.ok} == {}
    assert all(result.own_error > 0 and not result.skipped for result in isolated.values())


def test_batches_are_what_was_planned_and_their_members_are_evidence(server: EmbeddedServer) -> None:
    options = replace(OPTIONS, checks=("deterministic_batches",), repeat="brim isolate again")
    (good,) = run_suite(server.endpoint, "clean", options, rows=ROWS, own=server)
    assert good.ok and good.own_error > 0, good.message
    (bad,) = run_suite(server.endpoint, "full_batch_swapped", options, rows=ROWS, own=server)
    assert_named({bad.id: bad}, "full_batch_swapped")
    hurt = [one for one in bad.exchanges if one.verdict == "wrong"]
    assert {one.neighbour_count for one in hurt if "one_poison" in one.request_id} == {99}
    assert {one.company for one in hurt} == {Company.BATCH}


def test_somebody_elses_model_is_loaded_anew_only_when_that_is_allowed(server: EmbeddedServer) -> None:
    options = replace(OPTIONS, requests=200, checks=("reload_under_load",))
    (refused,) = run_suite(server.endpoint, "clean", options, rows=ROWS)
    assert refused.skipped and "--allow-reload" in refused.message
    (done,) = run_suite(server.endpoint, "clean", replace(options, may_reload=True), rows=ROWS)
    assert done.ok and done.right == done.sent > 0, done.message
    with closing(server.endpoint.http_client()) as client:
        assert reload.MARK not in client.get_model_config("clean").get("parameters", {})


def test_poison_that_stops_everybody_is_seen_in_the_throughput(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "SEGMENT_S", 0.1)
    options = replace(
        OPTIONS, requests=200, callers=50, checks=("poison_throughput",), poison_share=0.05, repeat="brim isolate again"
    )
    (result,) = run_suite(server.endpoint, "poison_stops_all", options, rows=ROWS)
    assert not result.ok and "--check poison_throughput" in result.message
    assert result.figures["poison_throughput_ratio"] < throughput.LEAST_RATIO
    assert result.sent == result.right + result.own_error


def test_readiness_that_lies_and_a_model_that_stays_away_are_named(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare tritonserver keeps saying that it is ready when the backend's process is dead, and nobody heals it here."""
    monkeypatch.setattr(killed, "GIVE_UP_S", 2.5)
    monkeypatch.setattr(killed, "LIE_S", 0.5)
    monkeypatch.setattr(bench, "HEALED_TIMEOUT_S", 0.1)
    write_models(tmp_path / "models")
    with EmbeddedServer(
        tmp_path / "models",
        ["clean"],
        cache=Project(checkout).cache,
        log_file=tmp_path / "server.log",
        options=ServerOptions(exit_timeout_s=1),
    ) as alone:
        options = replace(OPTIONS, checks=("backend_killed",), answer_timeout_s=4.0, repeat="brim isolate again")
        # It never begins, so it heals nothing.
        idle = Supervisor(alone)
        (result,) = run_suite(alone.endpoint, "clean", options, rows=ROWS, own=alone, supervisor=idle)
    assert not result.ok
    assert "readiness said yes" in result.message and "the model answered again not within" in result.message
    assert "--check backend_killed" in result.message


def test_a_server_that_dies_fails_the_check_that_ran_and_the_next_ones_are_run(checkout: Path, tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    with (
        EmbeddedServer(
            tmp_path / "models",
            ["clean"],
            cache=Project(checkout).cache,
            log_file=tmp_path / "server.log",
            options=ServerOptions(exit_timeout_s=1),
        ) as mortal,
        Supervisor(mortal) as supervisor,
    ):
        counted = 0

        def kill_once(more: int) -> None:
            nonlocal counted
            counted += more
            if counted == OPTIONS.requests // 2:
                os.kill(mortal.pid, signal.SIGKILL)

        options = replace(OPTIONS, checks=("identity", "row_counts"))
        died, after = run_suite(
            mortal.endpoint, "clean", options, rows=ROWS, own=mortal, supervisor=supervisor, on_count=kill_once
        )
    assert not died.ok and "the server died and was started again" in died.message
    assert died.sent == OPTIONS.requests and died.neighbour_errors > 0
    assert after.ok and after.right == after.sent > 0, after.message


def test_callers_that_hang_are_counted_and_end_the_check_in_time(server: EmbeddedServer) -> None:
    options = replace(OPTIONS, checks=("identity",), answer_timeout_s=SHORT_TIMEOUT_S, repeat="brim isolate again")
    results = by_id(run_suite(server.endpoint, "never_answers", options, rows=ROWS))
    assert_named(results, "never_answers")
    assert results["identity"].sent == OPTIONS.requests


def assert_named(results: dict[str, Result], fault: str) -> None:
    named = results[NAMED[fault]]
    assert not named.ok
    assert getattr(named, COLUMN[fault]) > 0
    assert f"brim isolate again --check {named.id}" in named.message


def test_a_fault_that_needs_poison_shows_only_there(server: EmbeddedServer) -> None:
    checks = ("identity", "batch_invariance", "row_counts")
    for fault in ("quotes_neighbour", "fails_whole"):
        results = run_suite(server.endpoint, fault, replace(OPTIONS, checks=checks), rows=ROWS)
        assert [result.ok for result in results] == [True] * len(checks)


def test_a_swapped_answer_names_the_row_that_it_belongs_to(server: EmbeddedServer) -> None:
    (result,) = run_suite(server.endpoint, "rows_swapped", replace(OPTIONS, checks=("identity",)), rows=ROWS)
    assert "what came is the answer to row" in result.message


def isolate(server: EmbeddedServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    port = server.endpoint.grpc.rpartition(":")[2]
    return subprocess.run(
        [sys.executable, "-m", "brim", "isolate", "--url", server.endpoint.http, "--grpc-port", port, *arguments],
        env={key: value for key, value in os.environ.items() if key != "BRIM_ROOT"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_command_passes_writes_and_fails(server: EmbeddedServer, tmp_path: Path) -> None:
    small = ("--requests", "200", "--callers", "50")
    done = isolate(
        server, "--model", "clean", *small, "--check", "identity", "--check", "row_counts", "--json",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    envelope = json.loads(line)
    assert envelope["ok"] is True and envelope["command"] == "isolate"
    assert [check["id"] for check in envelope["data"]["checks"]] == ["identity", "row_counts"]
    assert {
        "id", "ok", "sent", "right", "own_error", "cancelled", "wrong", "neighbour_errors", "hung", "message"
    } <= set(envelope["data"]["checks"][0])  # fmt: skip
    counts = envelope["data"]["totals"]
    assert (
        counts["sent"]
        == sum(counts.values()) - counts["sent"]
        == sum(one["sent"] for one in envelope["data"]["checks"])
    )
    assert envelope["data"]["poison_throughput_ratio"] is None
    document = json.loads((tmp_path / "out" / "isolation.json").read_text(encoding="utf-8"))
    assert document["ok"] is True and document["totals"] == counts
    assert all(0 < len(check["exchanges"]) <= 20 for check in document["checks"])
    assert "clean" in (tmp_path / "out" / "isolation.html").read_text(encoding="utf-8")
    suite = ElementTree.parse(tmp_path / "out" / "isolation.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")

    more = ("--seed", "5", "--poison-share", "0.02")
    broken = isolate(server, "--model", "fails_whole", *small, "--check", "poison_neighbours", *more)
    assert broken.returncode == 1
    assert "FAIL" in broken.stdout
    assert "isolation is broken: poison_neighbours" in broken.stderr
    assert "--model fails_whole" in broken.stderr and "--seed 5 --callers 50 --poison-share 0.02" in broken.stderr
    assert "--check poison_neighbours" in broken.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "no_such_model"),
        ("--model", "clean", "--check", "no_such_check"),
        ("--model", "clean", "--fuzz-only", "nonsense"),
        (),
    ],
)
def test_wrong_input_is_exit_2(
    server: EmbeddedServer, brim: Brim, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRIM_ROOT", raising=False)
    monkeypatch.chdir("/")
    port = server.endpoint.grpc.rpartition(":")[2]
    done = brim("isolate", "--url", server.endpoint.http, "--grpc-port", port, *arguments)
    assert done.code == 2
    assert "error:" in done.err and "hint:" in done.err and done.out == ""
