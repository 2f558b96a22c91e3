from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InputError
from brim.fleet.orders import ORDERS_FOLDER, Order, new_run, place_order, runs, taken_orders
from brim.fleet.replica import Seen, State, state_of
from brim.fleet.versions import odd_ones
from brim.gateway.admission import Admission
from brim.gateway.clusters import OTHERS, cluster_name
from brim.gateway.envoy_config import envoy_config
from brim.gateway.hosts import Host, hosts_in
from brim.gateway.limits import RequestLimits
from brim.gateway.replica_files import ReplicaFiles
from brim.gateway.replicas import Balance, Member, Picking, Replicas, assignment, count_file, file_of
from brim.gateway.routes import virtual_host
from brim.gateway.xds import Listen, Upstream

ONE, TWO = Upstream("127.0.0.1:1", "127.0.0.1:2"), Upstream("127.0.0.1:3", "127.0.0.1:4")
WELL = {
    "started": True, "gave_up": False, "stopping": False, "draining": False, "down": False, "silent": False,
    "unfit": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.SERVING),
        ({"started": False}, State.STARTING),
        ({"started": False, "gave_up": True}, State.GIVEN_UP),
        ({"down": True, "silent": True}, State.HEALING),
        ({"silent": True, "unfit": True}, State.SILENT),
        ({"unfit": True}, State.UNFIT),
        ({"draining": True, "down": True}, State.DRAINING),
        ({"draining": True, "stopping": True}, State.STOPPING),
    ],
)
def test_only_one_that_is_well_serves(changes: dict[str, bool], state: State) -> None:
    assert state_of(Seen(**{**WELL, **changes})) is state


def test_the_odd_one_is_named() -> None:
    one, two = {"m": ("1",), "n": ("1",)}, {"m": ("2",), "n": ("1",)}
    assert odd_ones({"r1": one, "r2": one, "r3": two}) == {"r3": "m has version 2 there and 1 elsewhere"}
    assert odd_ones({"r1": two, "r2": one, "r3": one}) == {"r1": "m has version 2 there and 1 elsewhere"}
    assert odd_ones({"r1": one, "r2": {"m": (), "n": ("1",)}}) == {"r2": "m is not ready there"}
    assert odd_ones({"r1": one}) == odd_ones({}) == {}


def test_somebody_serves_while_a_version_is_brought_in_replica_by_replica() -> None:
    versions = {f"r{number}": {"m": ("1",)} for number in range(4)}
    for name in versions:
        versions[name] = {"m": ("2",)}
        odd = odd_ones(versions)
        served = {versions[other]["m"] for other in versions if other not in odd}
        assert len(served) == 1, "never two versions at once"
    assert odd == {}


def test_orders_come_in_order_and_wrong_ones_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no fleet"):
        place_order(tmp_path, Order(drain="r1"))
    (tmp_path / ORDERS_FOLDER).mkdir()
    names = [place_order(tmp_path, Order(drain="r1")), place_order(tmp_path, Order(replicas=2, deadline_s=1.5))]
    for name, text in {
        "x1": "{",
        "x2": '{"drain": 3}',
        "x3": '{"boom": 1}',
        "x4": "[]",
        "x5": '{"replicas": 65}',
    }.items():
        (tmp_path / ORDERS_FOLDER / f"{name}.json").write_text(text)
    taken = taken_orders(tmp_path)
    assert taken[:2] == [(names[0], Order(drain="r1")), (names[1], Order(replicas=2, deadline_s=1.5))]
    assert [name for name, order in taken[2:] if isinstance(order, InputError)] == ["x1", "x2", "x3", "x4", "x5"]
    assert taken_orders(tmp_path) == []


def test_an_order_names_every_fault() -> None:
    with pytest.raises(InputError) as caught:
        Order(drain="r1", replicas=0, deadline_s=-1)
    for words in ("either", "replicas 0", "deadline_s -1"):
        assert words in caught.value.message


def test_folders_of_processes_that_have_ended_are_removed(tmp_path: Path) -> None:
    for name in ("999999999", str(os.getppid()), "junk"):
        (tmp_path / "replicas" / name).mkdir(parents=True)
    own = new_run(tmp_path)
    assert [path.name for path in runs(tmp_path)] == [str(os.getppid())]
    assert [path.name for path in (tmp_path / "replicas").iterdir()] == [str(os.getppid())]
    assert own.name == str(os.getpid())


def test_a_clusters_file_has_both_ports_of_each_replica() -> None:
    (resource,) = assignment("triton/m", [Member("r1", ONE), Member("r2", TWO, draining=True)])["resources"]
    found = [
        (
            host["endpoint"]["address"]["socket_address"]["port_value"],
            host["endpoint"]["health_check_config"]["port_value"],
            host["metadata"]["filter_metadata"]["envoy.lb"]["protocol"],
            host.get("health_status"),
        )
        for host in resource["endpoints"][0]["lb_endpoints"]
    ]
    assert found == [(1, 1, "http", None), (2, 1, "grpc", None), (3, 3, "http", "DRAINING"), (4, 3, "grpc", "DRAINING")]


def test_files_are_written_when_they_change_and_put_right_when_somebody_else_has(tmp_path: Path) -> None:
    files = ReplicaFiles(tmp_path / "hosts", ["m"])
    paths = [file_of(files.folder, name) for name in (OTHERS, cluster_name("m"))]
    assert [json.loads(path.read_text())["resources"][0]["cluster_name"] for path in paths] == ["triton", "triton/m"]
    assert count_file(files.folder).read_text() == "0\n"
    files.publish([Member("r1", ONE), Member("r2", TWO, draining=True)])
    assert count_file(files.folder).read_text() == "1\n"
    inodes = [path.stat().st_ino for path in paths]
    files.publish([Member("r1", ONE), Member("r2", TWO, draining=True)])
    assert files.put_right() == []
    assert [path.stat().st_ino for path in paths] == inodes
    right = paths[1].read_text()
    paths[1].write_text("{")
    paths[0].unlink()
    assert sorted(files.put_right()) == sorted(paths)
    assert paths[1].read_text() == right and files.put_right() == []
    assert sorted(files.folder.iterdir()) == sorted([*paths, count_file(files.folder)]), "nothing is left beside"


def test_what_is_under_way_is_summed_over_clusters() -> None:
    def host(port: int, active: int, status: str) -> dict[str, Any]:
        return {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "stats": [{"name": "rq_active", "type": "GAUGE", "value": str(active)}, {"name": "cx_active"}],
            "health_status": {"eds_health_status": status},
        }

    page = {
        "cluster_statuses": [
            {"host_statuses": [host(1, 2, "DRAINING"), host(2, 0, "DRAINING")]},
            {"host_statuses": [host(1, 3, "HEALTHY"), host(2, 1, "DRAINING")]},
            {"name": "empty"},
        ]
    }
    assert hosts_in(page) == {"127.0.0.1:1": Host(5, draining=False), "127.0.0.1:2": Host(1, draining=True)}


def routes(*, many: bool) -> dict[str, Any]:
    models = {"batched": Admission(), "text": Admission(pieces=True, tells=True)}
    found = {}
    for number, route in enumerate(virtual_host(models, many=many)["routes"]):
        if (to := route.get("route")) and "retry_policy" in to:
            match = route["match"]
            path = match.get("path") or match["safe_regex"]["regex"]
            found[f"{number} {to['cluster']} {path}"] = to["retry_policy"]
    return found


def test_nothing_is_sent_twice_but_what_only_computes() -> None:
    for name, policy in routes(many=True).items():
        again = "reset" in policy["retry_on"].split(",")
        assert again is (" triton/batched " in name or name.endswith("/ready")), name
        assert policy["num_retries"] == (1 if again else 2)
        assert policy["retry_host_predicate"]
    for policy in routes(many=False).values():
        assert policy["retry_on"] == "connect-failure,refused-stream" and "retry_host_predicate" not in policy


def cluster_of(replicas: Replicas) -> dict[str, Any]:
    listen = Listen("127.0.0.1", 1, 2, "127.0.0.1", 3)
    document = envoy_config(replicas, listen, RequestLimits(), {"m": Admission(in_flight=7)})
    return next(one for one in document["static_resources"]["clusters"] if one["name"] == "triton/m")


def test_a_picker_is_put_in_front_of_the_balancing(tmp_path: Path) -> None:
    around = {"typed_extension_config": {"name": "picker"}}
    picking = Picking([{"name": "filter"}], [{"name": "picker"}], lambda policy: {**around, "fallback": policy})
    plain = cluster_of(Replicas(tmp_path))["load_balancing_policy"]["policies"]
    (picked,) = cluster_of(Replicas(tmp_path, picking=picking))["load_balancing_policy"]["policies"]
    assert picked == {**around, "fallback": plain[0]}
    document = envoy_config(
        Replicas(tmp_path, picking=picking), Listen("127.0.0.1", 1, 2, "127.0.0.1", 3), RequestLimits()
    )
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert [one["name"] for one in manager["http_filters"]][-2:] == ["filter", "envoy.filters.http.router"]
    assert document["static_resources"]["clusters"][-1] == {"name": "picker"}


def test_overload_is_no_reason_to_eject(tmp_path: Path) -> None:
    cluster = cluster_of(Replicas(tmp_path, Balance.ROUND_ROBIN))
    (options,) = cluster["typed_extension_protocol_options"].values()
    (header,) = options["outlier_detection"]["error_matcher"]["http_response_headers_match"]["headers"]
    assert "503" not in header["string_match"]["safe_regex"]["regex"].split("|")
    assert cluster["outlier_detection"]["enforcing_consecutive_5xx"] == 0
    assert cluster["outlier_detection"]["enforcing_consecutive_gateway_failure"] == 0
