"""The suite against a language model that hurts its callers on purpose, in one way at a time: the right check must fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brim.errors import CouldNotTell, InputError
from brim.isolation.judge import Verdict
from brim.isolation.result import Options, Result
from brim.isolation.text import checks, seats, suite
from brim.isolation.text.bench import TextBench
from brim.isolation.text.checks import CHECKS
from brim.isolation.text.suite import run_text_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions

MODEL = "faulty_text"
PATIENCE_S = 120
OPTIONS = Options(requests=48, callers=16, answer_timeout_s=30.0, repeat="brim isolate again")


class Faulty:
    """The model on a server, and the switch that says how it hurts."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.switch = server.repository / MODEL / "1" / "fault"
        self.pool = suite.reference_pool(TextBench(server.endpoint, MODEL, OPTIONS))

    def check(self, name: str, fault: str = "", options: Options = OPTIONS) -> Result:
        """The fault is planted when texts alone are known."""
        self.switch.unlink(missing_ok=True)

        def plant(progress: str) -> None:
            if progress.startswith(f"{name}:"):
                self.switch.write_text(fault, encoding="utf-8")

        try:
            (result,) = run_text_suite(
                self.server.endpoint,
                MODEL,
                replace(options, checks=(name,)),
                own=self.server,
                on_progress=plant,
            )
        finally:
            self.switch.unlink(missing_ok=True)
        return result


@pytest.fixture(scope="module")
def faulty(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("text")
    version = folder / "models" / MODEL / "1"
    version.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("faulty_text.py"), version / "model.py")
    config = (checkout / "model_repository" / "text_generation" / "config.pbtxt").read_text(encoding="utf-8")
    # A token of this model is a byte, so its prompts are longer.
    config = config.replace('"text_generation"', f'"{MODEL}"').replace("4096", "16384")
    (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    with EmbeddedServer(
        folder / "models",
        [MODEL],
        cache=Project(checkout).cache,
        log_file=folder / "server.log",
        options=ServerOptions(exit_timeout_s=1),
    ) as server:
        yield Faulty(server)


def test_a_faultless_model_passes_every_check(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its steps take a millisecond, and a busy machine may look away for longer than a few of them.
    monkeypatch.setattr(checks, "FREED_S", 30.0)
    monkeypatch.setattr(seats, "LENGTHS", tuple(range(60, 481, 60)))
    monkeypatch.setattr(seats, "MOST_STEPS", 40)
    results = run_text_suite(faulty.server.endpoint, MODEL, OPTIONS, own=faulty.server)
    assert [result.message for result in results if not result.ok] == []
    assert [result.id for result in results] == [check.id for check in CHECKS]
    assert [result.id for result in results if result.skipped] == []
    by_id = {result.id: result for result in results}
    assert by_id["identity"].right == by_id["identity"].sent == OPTIONS.requests
    assert by_id["refused_neighbours"].own_error > 20
    assert by_id["caller_gone"].cancelled > 0
    assert by_id["slow_readers"].cancelled + by_id["slow_readers"].right == by_id["slow_readers"].sent
    assert by_id["streams"].figures["characters_of_several_bytes"] > 0
    assert by_id["small_cache"].figures["preemptions"] > 0


NAMED = {
    "mixes_callers": ("identity", "wrong"),
    "two_ends": ("identity", "wrong"),
    "splits_characters": ("streams", "a character is split between two pieces"),
    "leaks_stop": ("stop_strings", "wrong"),
    "refusal_hurts": ("refused_neighbours", "neighbour_errors"),
    "keeps_blocks": ("caller_gone", "KV blocks are still held or promised"),
    "leaver_speaks": ("caller_gone", "wrong"),
    "long_disturbs": ("long_prompts", "wrong"),
    "quotes_prompts": ("secrets", "wrong"),
    "error_quotes": ("secrets", "wrong"),
    "prefix_mixes": ("shared_prefix", "wrong"),
    "confuses_ids": ("same_request_ids", "wrong"),
    "waits_for_readers": ("slow_readers", "hung"),
    "ends_together": ("order", "texts ended in the order"),
    "static": ("free_seat", "tokens of the long text after a seat was free"),
    "preemption_changes": ("small_cache", "wrong"),
}
"""Fault -> the check that must fail, and the count that is not 0 then, or what it says."""


TRIES = 4


@pytest.mark.parametrize("fault", list(NAMED))
def test_a_planted_fault_is_named(faulty: Faulty, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same calls alone, again and again, would take longer than all the rest.
    monkeypatch.setattr(suite, "reference_pool", lambda bench: faulty.pool)
    check, told = NAMED[fault]
    options = replace(OPTIONS, answer_timeout_s=1.0) if told == "hung" else OPTIONS
    # Some faults need two callers at the same moment, which on a busy machine there may not be in every run.
    for _ in range(TRIES):
        result = faulty.check(check, fault, options)
        if not result.ok:
            break
    assert not result.ok
    assert getattr(result, told) > 0 if told in list(Verdict) else told in result.message
    assert f"brim isolate again --check {check}" in result.message


def test_a_text_that_moves_by_itself_cannot_be_judged(faulty: Faulty) -> None:
    faulty.switch.write_text("mixes_callers", encoding="utf-8")
    try:
        with pytest.raises(CouldNotTell, match="the same call differently twice, alone"):
            run_text_suite(faulty.server.endpoint, MODEL, replace(OPTIONS, checks=("identity",)))
    finally:
        faulty.switch.unlink()


def test_checks_that_need_a_server_of_their_own_are_skipped_on_somebody_elses(faulty: Faulty) -> None:
    options = replace(OPTIONS, checks=("free_seat", "small_cache"))
    results = run_text_suite(faulty.server.endpoint, MODEL, options)
    assert all(result.ok and result.skipped and "not the suite's own" in result.message for result in results)
    with pytest.raises(InputError, match="no check of a language model is called batch_invariance"):
        run_text_suite(faulty.server.endpoint, MODEL, replace(OPTIONS, checks=("batch_invariance",)))


def isolate(server: EmbeddedServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    port = server.endpoint.grpc.rpartition(":")[2]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "brim",
            "isolate",
            "--url",
            server.endpoint.http,
            "--grpc-port",
            port,
            "--model",
            MODEL,
            *arguments,
        ],
        env={key: value for key, value in os.environ.items() if key != "BRIM_ROOT"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_command_knows_a_language_model_by_its_configuration(faulty: Faulty, tmp_path: Path) -> None:
    small = ("--requests", "24", "--callers", "8", "--json")
    done = isolate(faulty.server, *small, "--check", "identity", "--check", "same_request_ids", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    envelope = json.loads(done.stdout)
    first, second = envelope["data"]["checks"]
    assert (envelope["ok"], first["id"], second["id"]) == (True, "identity", "same_request_ids")
    assert first["sent"] == first["right"] == 24
    assert "every caller gets its own answer" in (tmp_path / "isolation.html").read_text(encoding="utf-8")

    faulty.switch.write_text("error_quotes", encoding="utf-8")
    try:
        broken = isolate(faulty.server, *small, "--check", "secrets")
    finally:
        faulty.switch.unlink()
    assert broken.returncode == 1
    (check,) = json.loads(broken.stdout)["data"]["checks"]
    assert "which stands in another caller's prompt" in check["message"]
    assert f"--model {MODEL}" in check["message"] and "--requests 24" in check["message"]
