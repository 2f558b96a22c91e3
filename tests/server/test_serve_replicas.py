"""``brim serve --replicas`` and ``brim replicas``: real processes, one model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http

from brim.server.canary import infer_inputs
from tests.server.doubler import make_project
from tests.server.test_serve import prefixes_of, run, serving, trace_of, until_gone


def test_replicas_are_shown_drained_and_added_and_leave_no_trace(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    nobody = run(project, "replicas")
    assert nobody.returncode == 2 and "no server with replicas runs here" in nobody.stderr
    with serving(project, "--replicas", "2") as (child, ready):
        replicas = ready["replicas"]
        assert isinstance(replicas, list)
        assert [(one["name"], one["state"]) for one in replicas] == [("r1", "serving"), ("r2", "serving")]
        assert {name: replicas[0][name] for name in ("http", "grpc", "metrics", "pid")} == {
            name: ready[name] for name in ("http", "grpc", "metrics", "pid")
        }
        assert len({one[name] for one in replicas for name in ("http", "grpc", "metrics")}) == 6
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        drained = run(project, "replicas", "--drain", "r1", "--json")
        assert drained.returncode == 0, drained.stderr
        (left,) = json.loads(drained.stdout)["data"]["replicas"]
        assert left["name"] == "r2" and left["pid"] == replicas[1]["pid"]
        for module in (triton_http, triton_grpc):
            client = module.InferenceServerClient(ready["gateway"])
            np.testing.assert_array_equal(client.infer("doubler", infer_inputs({"X": x}, module)).as_numpy("Y"), 2 * x)
            client.close()
        refused = run(project, "replicas", "--drain", "r2")
        assert refused.returncode == 2 and "r2 is the only one that takes requests" in refused.stderr
        scaled = run(project, "replicas", "--scale", "2")
        assert scaled.returncode == 0, scaled.stderr
        assert [line.split()[:2] for line in scaled.stdout.splitlines()[1:]] == [["r2", "serving"], ["r3", "serving"]]
        assert trace_of(prefixes_of(child.pid)) != [], "the check below would prove nothing"
    assert child.returncode == 0
    assert until_gone(prefixes_of(child.pid)) == []
    assert list((project.cache / "replicas").iterdir()) == []


def test_what_does_not_go_with_replicas_is_named_at_once(tmp_path: Path) -> None:
    answer = run(make_project(tmp_path), "serve", "--replicas", "2", "--no-gateway", "--no-supervise")
    assert answer.returncode == 2
    assert "--replicas with --no-gateway, --no-supervise" in answer.stderr
