from __future__ import annotations

import json

import pytest

from brim.paths import Project
from tests.conftest import Brim

TOKENS = (1, 8)
"""Of the shipped service's samples, which are sent in turn."""


def test_each_text_is_found_in_as_many_steps_as_it_has_tokens(
    exported_text: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(exported_text.root))
    done = brim("trace", "text_generation", "--requests", "8", "--concurrency", "4", "--request-id", "3", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)["data"]
    assert data["outcomes"] == {"right": 8}
    assert data["followed"] == 8
    assert data["in_order"]
    steps = [step for step in data["batches"] if step["own"]]
    prefix = data["request"]["request_id"].removesuffix("3")
    for number in range(8):
        assert sum(f"{prefix}{number}" in step["own"] for step in steps) == TOKENS[number % 2]
    # Four begin together, and two of them are longer than a step.
    assert max(step["requests"] for step in steps) > 1
    request = data["request"]
    assert [part["name"] for part in request["parts"]] == [
        "to_gateway",
        "gateway_in",
        "room",
        "prefill",
        "generate",
        "last_piece",
    ]
    assert sum(part["took_us"] for part in request["parts"]) == request["took_us"]
    assert [step["number"] for step in request["batches"]] == sorted(step["number"] for step in request["batches"])


def test_the_steps_of_a_server_that_runs_are_not_to_be_had(
    exported_text: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(exported_text.root))
    done = brim("trace", "text_generation", "--url", "http://127.0.0.1:1")
    assert done.code == 2
    assert "language model" in done.err
