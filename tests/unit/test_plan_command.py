"""``brim plan`` as it is typed: its answer, its files, and what is wrong with its arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Brim

TIMES = ("--tau0-us", "5000", "--alpha-us", "100")
SHAPE = ("--shape", "flash-crowd", "--rate", "2000", "--peak", "12000", "--duration", "600")


def answer(done: tuple[int, str, str], code: int = 0) -> dict[str, Any]:
    found, out, err = done
    assert found == code, err
    said = json.loads(out)
    assert (said["command"], said["ok"]) == ("plan", code == 0)
    return said["data"]  # type: ignore[no-any-return]


def test_policies_are_compared_in_one_answer(brim: Brim) -> None:
    found = answer(brim("plan", "image_classifier", *TIMES, *SHAPE, "--startup-s", "10", "--json"))
    policies = found["policies"]
    assert {(one["routing"], one["scaling"]) for one in policies} == {
        (routing, scaling) for routing in ("round_robin", "queue_depth") for scaling in ("queue", "utilisation")
    }
    assert len({one["spares"] for one in policies}) == 2 and len(policies) == 8
    for one in policies:
        assert 0 <= one["slo_attainment"] <= 1 and one["replica_seconds"] > 0
        ended = one["answered"] + one["refused"] + one["refused_gateway"] + one["lost"] + one["in_flight"]
        assert abs(ended - one["offered"]) <= 5, "each of them is rounded"
        assert len(one["over_time"]["at_s"]) == len(one["over_time"]["paid"]) <= 240
    assert len(found["sentences"]) == 4 and found["limits"]["replica_per_s"] > 0
    assert found["conditions"]["simulated"] == "fluid"


def test_the_same_seed_gives_the_same_answer(brim: Brim) -> None:
    given = ("plan", "image_classifier", *TIMES, *SHAPE, "--scaling", "queue", "--routing", "round_robin", "--json")
    first, again, other = (answer(brim(*given, "--seed", seed)) for seed in ("1", "1", "2"))
    assert first == again != other


def test_a_folder_and_a_picture(brim: Brim, tmp_path: Path) -> None:
    given = ("plan", "image_classifier", *TIMES, *SHAPE, "--spares", "2", "--out", tmp_path / "run")
    code, out, err = brim(*given, "--plot", tmp_path / "plan.png")
    assert code == 0, err
    assert "replica-hours" in out and "One GPU carries" in out and "scrape" in out
    assert len(json.loads((tmp_path / "run" / "plan.json").read_text())["policies"]) == 4
    assert "replicas.3" in (tmp_path / "run" / "plan.svg").read_text()
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"


def test_a_trace_of_ones_own_request_by_request(brim: Brim, tmp_path: Path) -> None:
    trace = tmp_path / "evening.json"
    trace.write_text('{"points": [{"at_s": 0, "rate_per_s": 500}, {"at_s": 10, "rate_per_s": 900}]}')
    found = answer(brim("plan", "image_classifier", *TIMES, "--trace", trace, "--scaling", "fixed", "--json"))
    assert found["conditions"]["simulated"] == "events" and found["traffic"]["name"] == "evening"
    fluid = answer(
        brim("plan", "image_classifier", *TIMES, "--trace", trace, "--scaling", "fixed", "--fluid", "--json")
    )
    assert fluid["policies"][0]["offered"] == found["policies"][0]["offered"]


def test_no_policy_that_meets_the_objective_is_the_answer_no(brim: Brim) -> None:
    found = answer(brim("plan", "image_classifier", *TIMES, *SHAPE, "--max-replicas", "1", "--json"), code=1)
    assert not any(one["slo_met"] for one in found["policies"])
    slow = answer(brim("plan", "image_classifier", "--tau0-us", "90000", "--alpha-us", "1", *SHAPE, "--json"), code=1)
    assert slow["limits"]["replica_per_s"] == 0 and "carries nothing" in slow["sentences"][0]


def test_a_language_model_is_planned_from_its_step_time(brim: Brim, tmp_path: Path) -> None:
    step_time = tmp_path / "step.json"
    step_time.write_text('{"base_us": 9000, "sequence_us": 300, "context_us": 0.9, "prefill_us": 90, "pair_us": 0.02}')
    found = answer(
        brim(
            "plan", "text_generation", "--step-time", step_time, "--shape", "steady", "--rate", "8", "--duration", "300",
            "--prompts", "100", "--texts", "40", "--routing", "prefix_aware", "--spares", "1", "--json",
        )
    )  # fmt: skip
    assert found["limits"]["replica_per_s"] > 1
    assert "first token" in found["objective"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no_such_service", *TIMES, *SHAPE), "no service"),
        (("image_classifier", *TIMES), "what traffic"),
        (("image_classifier", *SHAPE), "how long a batch takes"),
        (("image_classifier", *TIMES, *SHAPE, "--routing", "by_colour"), "by_colour"),
        (("image_classifier", *TIMES, *SHAPE, "--epoch-s", "100"), "--epoch-s"),
        (("image_classifier", *TIMES, *SHAPE, "--step-time", "x.json"), "--step-time"),
        (("image_classifier", *TIMES, *SHAPE, "--events"), "--events"),
        (("image_classifier", *TIMES, *SHAPE, "--plot", "plan.pdf"), "plan.pdf"),
        (("image_classifier", *TIMES, "--trace", "none.json"), "none.json"),
        (("image_classifier", *TIMES, "--trace", "none.json", "--shape", "steady"), "exclude"),
        (("image_classifier", *TIMES, "--trace", "none.json", "--rate", "5"), "--rate"),
        (("image_classifier", *TIMES, *SHAPE, "--min-replicas", "5", "--max-replicas", "2"), "min_replicas"),
        (("text_generation", *SHAPE), "how long a step takes"),
        (("text_generation", *SHAPE, *TIMES), "--tau0-us"),
    ],
)
def test_what_is_wrong_is_said(brim: Brim, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = brim("plan", *arguments)
    assert code == 2 and not out
    assert re.search(re.escape(said), err) and "hint:" in err
