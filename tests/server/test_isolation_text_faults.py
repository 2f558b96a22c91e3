"""The suite against a language model that hurts its callers on purpose, in one way at a time: the right check must fail."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brim.isolation.result import Options, Result
from brim.isolation.text.checks import CHECKS
from brim.isolation.text.suite import run_text_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions

MODEL = "faulty_text"
PATIENCE_S = 120
OPTIONS = Options(requests=60, callers=16, answer_timeout_s=30.0, repeat="brim isolate again")


class Faulty:
    """The model on a server, and the switch that says how it hurts."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.switch = server.repository / MODEL / "1" / "fault"

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
    (version.parent / "config.pbtxt").write_text(config.replace('"text_generation"', f'"{MODEL}"'), encoding="utf-8")
    with EmbeddedServer(
        folder / "models",
        [MODEL],
        cache=Project(checkout).cache,
        log_file=folder / "server.log",
        options=ServerOptions(exit_timeout_s=1),
    ) as server:
        yield Faulty(server)


def test_a_faultless_model_passes_every_check(faulty: Faulty) -> None:
    results = run_text_suite(faulty.server.endpoint, MODEL, OPTIONS, own=faulty.server)
    assert {result.id: result.message for result in results if not result.ok} == {}
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
    "splits_characters": ("streams", "wrong"),
    "leaks_stop": ("stop_strings", "wrong"),
    "refusal_hurts": ("refused_neighbours", "neighbour_errors"),
    "keeps_blocks": ("caller_gone", ""),
    "leaver_speaks": ("caller_gone", "wrong"),
    "long_disturbs": ("long_prompts", "wrong"),
    "quotes_prompts": ("secrets", "wrong"),
    "error_quotes": ("secrets", "wrong"),
    "prefix_mixes": ("shared_prefix", "wrong"),
    "confuses_ids": ("same_request_ids", "wrong"),
    "waits_for_readers": ("slow_readers", "hung"),
    "ends_together": ("order", ""),
    "static": ("free_seat", ""),
    "preemption_changes": ("small_cache", "wrong"),
}


@pytest.mark.parametrize("fault", list(NAMED))
def test_a_planted_fault_is_named(faulty: Faulty, fault: str) -> None:
    check, column = NAMED[fault]
    options = replace(OPTIONS, answer_timeout_s=3.0) if column == "hung" else OPTIONS
    result = faulty.check(check, fault, options)
    assert not result.ok
    assert not column or getattr(result, column) > 0, result.message
    assert f"brim isolate again --check {check}" in result.message
