"""``brim top`` and ``brim report --live`` against real servers and the real gateway: what they count is what was sent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tritonclient import http as triton_http

from brim.cli.commands import live_places
from brim.gateway.admission import admissions
from brim.gateway.envoy import Gateway
from brim.gateway.limits import request_limits
from brim.live.history import History
from brim.live.look import Looker
from brim.live.places import Places, ServerPlace, given_places, noted_places
from brim.live.seen import Objectives, Seen, SeenGateway
from brim.measure import batch_stats
from brim.paths import Project
from brim.server.canary import infer_inputs
from brim.server.embedded import EmbeddedServer
from brim.service.load import find_services
from tests.conftest import Brim
from tests.server.doubler import make_project

MODEL = "image_classifier"
IMAGE = {"IMAGE": np.zeros((1, 1, 8, 8), np.float32)}
PATIENCE_S = 60


@pytest.fixture(scope="module")
def gateway(shipped: EmbeddedServer, exported: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    services = find_services(exported.services, [MODEL, "text_embedding"])
    log = tmp_path_factory.mktemp("gateway") / "envoy.log"
    with Gateway(
        shipped.endpoint, log_file=log, limits=request_limits(services), admitted=admissions(services)
    ) as running:
        yield running


def send(address: str, model: str, inputs: dict[str, np.ndarray], times: int) -> None:
    with triton_http.InferenceServerClient(address) as client:
        for _ in range(times):
            client.infer(model, infer_inputs(inputs))


def timed(gateway: Gateway, model: str, count: int) -> None:
    """Wait until Envoy's histogram has so many answers: it adds them up every second."""
    deadline = time.monotonic() + PATIENCE_S
    with Looker(lambda: Places((), gateway.admin)) as looker:
        history = History()
        while True:
            seen = looker.look()
            assert isinstance(seen.gateway, SeenGateway), seen.gateway
            history.add(seen)
            upto = [line for line in seen.gateway.page if f'model="{model}"' in line and 'le="+Inf"' in line]
            if sum(int(line.rpartition(" ")[2]) for line in upto) >= count:
                return
            assert time.monotonic() < deadline, upto
            time.sleep(0.1)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """What a command does between its two looks is this."""
    monkeypatch.setattr(live_places, "time", SimpleNamespace(sleep=lambda seconds: act()))


def test_what_top_counts_is_what_was_sent(
    brim: Brim, shipped: EmbeddedServer, gateway: Gateway, exported: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        send(gateway.endpoint.http, MODEL, IMAGE, 20)
        send(gateway.endpoint.http, MODEL, {"IMAGE": np.zeros((7, 1, 8, 8), np.float32)}, 3)
        with (
            triton_http.InferenceServerClient(gateway.endpoint.http) as client,
            pytest.raises(Exception, match="IMAGE"),
        ):
            client.infer(MODEL, infer_inputs({"IMAGE": np.zeros((1, 1, 8, 7), np.float32)}))
        timed(gateway, MODEL, 24)

    meanwhile(monkeypatch, act)
    monkeypatch.setenv("BRIM_ROOT", str(exported.root))
    # Its metrics page and the gateway in front are noted.
    done = brim("top", "--server", shipped.endpoint.http, "--gateway-admin", gateway.admin, "--once", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)["data"]
    assert [one["up"] for one in data["servers"]] == [True] and data["gateway"]["up"] is True
    models = {one["model"]: one for one in data["models"]}
    mine = models[MODEL]
    right = mine["gateway"]["outcomes"]["right"]
    assert right == 23 and mine["gateway"]["outcomes"]["own_error"] == 1
    assert mine["inferences"] == 20 + 3 * 7 and mine["batch_sizes"] == {"1": 20, "7": 3}
    assert mine["executions"] == 23 and mine["mean_batch"] == pytest.approx(41 / 23)
    assert mine["fill"] == pytest.approx(0.41 / 23) and mine["duty"] > 0
    assert mine["queue_us"] >= 0 and mine["waiting"] == 0
    assert mine["gateway"]["in_flight"] == 0
    assert mine["latency"]["source"] == "gateway" and mine["latency"]["answers"] == 23
    assert mine["latency"]["p99_us"] is None or mine["latency"]["p50_us"] <= mine["latency"]["p99_us"]
    # A caller's own error does not count against the service, and the objective is one of the histogram's bounds.
    assert mine["goodput"]["source"] == "gateway" and 0 <= mine["goodput"]["low"] == mine["goodput"]["high"] <= 1
    never = models["text_embedding"]
    assert (never["inferences"], never["mean_batch"], never["latency"], never["goodput"]) == (0, None, None, None)


def test_a_report_of_a_running_server(
    brim: Brim, shipped: EmbeddedServer, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(monkeypatch, lambda: send(shipped.endpoint.http, MODEL, IMAGE, 5))
    url = f"http://{shipped.endpoint.http}"
    done = brim("report", "--live", url, "--gateway-admin", gateway.metrics, "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    models = {one["model"]: one for one in json.loads(done.out)["data"]["models"]}
    assert models[MODEL]["inferences"] == 5 and models[MODEL]["gateway"]["outcomes"]["right"] == 0
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"Batch sizes of {MODEL}: 5 batches" in html and shipped.endpoint.http in html


def test_running_servers_leave_notes_of_where_they_answer(shipped: EmbeddedServer, gateway: Gateway) -> None:
    mine = noted_places(shipped.repository)[os.getpid()]
    place = ServerPlace(shipped.endpoint.http, shipped.endpoint.http, shipped.endpoint.metrics)
    assert place in mine.servers and mine.gateway is not None
    assert given_places([shipped.endpoint.http]).servers == (place,)


def test_a_server_that_goes_and_comes_back_and_a_second_one_beside_it(tmp_path: Path) -> None:
    """Real restarts: counters begin anew, and no figure is negative or lost from there on."""
    project = make_project(tmp_path)
    made = [
        EmbeddedServer(project.model_repository, ["doubler"], cache=project.cache, log_file=tmp_path / f"{name}.log")
        for name in ("one", "other")
    ]
    rows = {"X": np.ones((2, 4), np.float32)}
    history = History({"doubler": Objectives(99, 50_000)})
    with made[0] as one, made[1] as other:
        servers = tuple(
            ServerPlace(name, server.endpoint.http, server.endpoint.metrics)
            for name, server in (("one", one), ("other", other))
        )
        with Looker(lambda: Places(servers)) as looker:

            def look() -> Seen:
                return looker.look()

            history.add(look())
            send(one.endpoint.http, "doubler", rows, 9)
            send(other.endpoint.http, "doubler", rows, 1)
            view = history.add(look())
            assert view.models["doubler"].inferences == 20
            assert [part.inferences for part in view.by_server["doubler"]] == [18, 2]
            one.drop()
            view = history.add(look())
            assert [bool(source.trouble) for source in view.servers] == [True, False]
            assert [part.server for part in view.by_server["doubler"]] == ["other"]
            one.restart()
            send(one.endpoint.http, "doubler", rows, 3)
            view = history.add(look())
            back = view.by_server["doubler"][0]
            # All that it has done since its start, warm-up and canary among it; of what it had done before nothing is subtracted.
            with one.endpoint.http_client() as client:
                (since,) = batch_stats.snapshot(client, "doubler").versions.values()
            assert back.server == "one" and back.restarted and back.batch_sizes[2] == 3
            assert (back.inferences, back.executions) == (since.inferences, since.executions)
            assert [source.trouble for source in view.servers] == ["", ""] and view.servers[0].restarted
            assert back.rate_per_s is not None and back.rate_per_s > 0 and (back.duty or 0) >= 0
