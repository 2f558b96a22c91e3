"""``brim bench routing --real`` on real servers, gateway and picker, with an engine that needs no weights: what is counted."""

from __future__ import annotations

from pathlib import Path

import psutil

from brim.bench.routing import PREFIXES, Traffic
from brim.bench.routing_place import POLICIES, Case
from brim.bench.routing_real import Effort, routing_real
from brim.paths import Project
from brim.service.load import load_service
from tests.server import story_model

TRAFFIC = Traffic(requests=40, rate_per_s=25, shared_tokens=160, own_tokens=8, output_tokens=3)
"""Tokens of the storyteller are bytes, five to a word: some sixty blocks a prompt."""
ROUNDS = 2


def test_every_policy_gets_the_same_and_is_counted_by_the_engines(checkout: Path, tmp_path: Path) -> None:
    project = story_model.make_project(tmp_path, step_s=0.002)
    # The servers are unpacked once, in the checkout's cache.
    project.cache.symlink_to(Project(checkout).cache_folder())
    service = load_service(project.services / f"{story_model.MODEL}.yaml")
    case = Case(replicas=2, kv_blocks=PREFIXES * 30, context_tokens=4_096)
    said: list[str] = []
    found = routing_real(
        project, service, case, Effort(ROUNDS, TRAFFIC), folder=tmp_path / "run", on_progress=said.append
    )
    assert {name: len(values) for name, values in found.figures.items()} == dict.fromkeys(found.figures, ROUNDS)
    for policy in POLICIES:
        of = {name.removeprefix(f"{policy}_"): values for name, values in found.figures.items() if policy in name}
        assert of["failed"] == [0, 0]
        assert all(0 < p50 <= p99 for p50, p99 in zip(of["ttft_p50_ms"], of["ttft_p99_ms"], strict=True))
        assert all(1 <= value <= case.replicas for value in [*of["imbalance"], *of["over_even"]])
        assert all(0 <= value < 1 for value in of["hit_ratio"])
    # Half of the beginnings fit into a replica's cache. Who sends them where they are finds nearly all of them there.
    hits = {policy: sum(found.figures[f"{policy}_hit_ratio"]) for policy in POLICIES}
    assert hits["prefix_aware"] > 1.1 * max(hits["least_request"], hits["round_robin"])
    assert {one.target.ratio: one.values for one in found.ratios}["requests without a complete text"] == (0, 0)
    assert len(found.as_json()["findings"]) == len(POLICIES)  # type: ignore[arg-type]
    mine = psutil.Process().children(recursive=True)
    assert not [one for one in mine if one.name() in ("tritonserver", "envoy")]
