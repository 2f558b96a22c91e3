"""The suite against models that hurt their callers on purpose, each in one way: it must fail and name the right check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.isolation.suite import Options, Result, run_suite
from brim.paths import Project
from brim.server.embedded import EmbeddedServer, ServerOptions

ANSWER_TIMEOUT_S = 15.0
SHORT_TIMEOUT_S = 2.0
"""Where a caller is known to hang, and the others of its check need no more than milliseconds."""
PATIENCE_S = 120
OPTIONS = Options(requests=600, callers=100, answer_timeout_s=ANSWER_TIMEOUT_S)
ROWS = [{"X": row[np.newaxis]} for row in np.random.default_rng(3).uniform(-1, 1, (60, 4)).astype(np.float32)]

CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 100
input [ {{ name: "X" data_type: TYPE_FP32 dims: [4] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [4] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""
# The model sleeps, so that whoever is sent meanwhile shares the next batch.
MODEL = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils

EVERY = 150


def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ascontiguousarray(array))])


def refuse(text):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))


class TritonPythonModel:
    def initialize(self, args):
        self.seen = 0
        self.mark = 0

    def due(self, count):
        "True once in every EVERY requests that come in company."
        if count < 2:
            return False
        self.seen += count
        if self.seen // EVERY == self.mark:
            return False
        self.mark = self.seen // EVERY
        return True

    def execute(self, requests):
        time.sleep(0.004)
        arrays = [pb_utils.get_input_tensor_by_name(one, "X").as_numpy() for one in requests]
        return self.run(requests, arrays)

    def run(self, requests, arrays):
        return [answer(x * 2 + 1) if np.isfinite(x).all() else refuse("values that are not finite") for x in arrays]
"""
FAULTS = {
    "rows_swapped": """
        found = [answer(x * 2 + 1) for x in arrays]
        if self.due(len(found)):
            found[0], found[1] = found[1], found[0]
        return found
""",
    "answer_twice": """
        found = [answer(x * 2 + 1) for x in arrays]
        if self.due(len(found)):
            found[1] = found[0]
        return found
""",
    "neighbour_added": """
        found = [x * 2 + 1 for x in arrays]
        if self.due(len(found)):
            found[0] = found[0] + 0.01 * arrays[1].sum(dtype=np.float32)
        return [answer(y) for y in found]
""",
    "batch_norm": """
        scale = np.float32(1) / np.concatenate(arrays).max()
        return [answer(x * scale) for x in arrays]
""",
    "quotes_neighbour": """
        all_of_them = np.concatenate(arrays).tolist()
        return [
            answer(x * 2 + 1) if np.isfinite(x).all() else refuse(f"not finite: {all_of_them}") for x in arrays
        ]
""",
    "fails_whole": """
        if not np.isfinite(np.concatenate(arrays)).all():
            raise ValueError("values that are not finite")
        return [answer(x * 2 + 1) for x in arrays]
""",
    "one_row_each": """
        rows = np.concatenate(arrays) * 2 + 1
        return [answer(rows[number : number + 1]) for number in range(len(requests))]
""",
    "gone_fails_all": """
        if any(one.is_cancelled() for one in requests):
            raise ValueError("a caller has gone")
        return [answer(x * 2 + 1) for x in arrays]
""",
    "never_answers": """
        if not self.due(len(arrays)):
            return [answer(x * 2 + 1) for x in arrays]
        for one, x in list(zip(requests, arrays))[1:]:
            one.get_response_sender().send(answer(x * 2 + 1), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.kept = requests[0].get_response_sender()
        return [None for _ in requests]
""",
}
NAMED = {
    "rows_swapped": "identity",
    "answer_twice": "identity",
    "neighbour_added": "identity",
    "batch_norm": "batch_invariance",
    "quotes_neighbour": "own_errors_only",
    "fails_whole": "poison_neighbours",
    "one_row_each": "row_counts",
    "gone_fails_all": "caller_gone",
    "never_answers": "identity",
}
"""Planted fault -> the check that must name it."""
COLUMN = {
    "rows_swapped": "wrong",
    "answer_twice": "wrong",
    "neighbour_added": "wrong",
    "batch_norm": "wrong",
    "quotes_neighbour": "wrong",
    "fails_whole": "neighbour_errors",
    "one_row_each": "wrong",
    "gone_fails_all": "neighbour_errors",
    "never_answers": "hung",
}
"""Planted fault -> the count in which it must show there."""


@pytest.fixture(scope="module")
def server(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("isolation")
    for name, body in {"clean": "", **FAULTS}.items():
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name), encoding="utf-8")
        text = MODEL + f"\n    def run(self, requests, arrays):{body}" if body else MODEL
        (version / "model.py").write_text(text, encoding="utf-8")
    with EmbeddedServer(
        folder / "models",
        ["clean", *FAULTS],
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


def test_a_clean_model_passes_every_check_but_the_one_that_triton_itself_fails(server: EmbeddedServer) -> None:
    """A request of zero rows makes a full batch of the python backend too large, whatever the model is."""
    results = by_id(run_suite(server.endpoint, "clean", OPTIONS))
    assert {name: result.message for name, result in results.items() if not result.ok and name != FRAMING} == {}
    assert len(results) == 9 and not any(result.skipped for result in results.values())
    assert results["identity"].right == results["identity"].sent == OPTIONS.requests
    assert results["poison_neighbours"].own_error > 0
    assert results["malformed_neighbours"].own_error > 0
    assert results["own_errors_only"].own_error > 0
    assert results["caller_gone"].cancelled > 0
    assert all(result.mean_batch > 5 for result in results.values() if result.id != "two_models" and result.mean_batch)
    framing = results[FRAMING]
    assert framing.neighbour_errors > 0 and framing.wrong == 0 and framing.hung == 0
    assert "max allowed is 100" in framing.message


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "never_answers"])
def test_a_planted_fault_is_named(server: EmbeddedServer, fault: str) -> None:
    first = ("identity", "batch_invariance", "poison_neighbours", "own_errors_only")
    options = replace(OPTIONS, checks=(*first, NAMED[fault]), repeat="brim isolate again")
    results = by_id(run_suite(server.endpoint, fault, options, rows=ROWS))
    assert_named(results, fault)


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
    assert json.loads((tmp_path / "out" / "isolation.json").read_text(encoding="utf-8"))["ok"] is True
    suite = ElementTree.parse(tmp_path / "out" / "isolation.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")

    broken = isolate(server, "--model", "fails_whole", *small, "--check", "poison_neighbours", "--seed", "5")
    assert broken.returncode == 1
    assert "FAIL" in broken.stdout
    assert "isolation is broken: poison_neighbours" in broken.stderr
    assert "--model fails_whole" in broken.stderr and "--seed 5" in broken.stderr
    assert "--check poison_neighbours" in broken.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "no_such_model"),
        ("--model", "clean", "--check", "no_such_check"),
        (),
    ],
)
def test_wrong_input_is_exit_2(server: EmbeddedServer, arguments: tuple[str, ...]) -> None:
    done = isolate(server, *arguments)
    assert done.returncode == 2
    assert "error:" in done.stderr and "hint:" in done.stderr and done.stdout == ""
