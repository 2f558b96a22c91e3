"""The exporter without its sources: from what they say to the page, whatever they say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brim.errors import PortInUse
from brim.exporter import serve as serving
from brim.exporter.gateway_said import GatewaySaid, limits, read_gateway
from brim.exporter.page import Page, Source
from brim.exporter.serve import Exporter, ExporterBeside
from brim.exporter.server_said import Launch, ServerSaid, loaded_versions, read_server, read_settings
from brim.exporter.sources import SourceDown, Sources
from brim.gateway.counters import STREAM_OUTCOMES
from brim.gateway.outcomes import BY_GRPC, BY_REASON, ELIGIBLE, RIGHT, Ended, ended, stream_ended
from brim.gateway.replies import HOST_ERRORS
from brim.measure.batch_stats import UnreadableStatistics


def line(size: int, executions: int, each_ns: int = 1_000_000) -> dict[str, Any]:
    def part(share: int) -> dict[str, int]:
        return {"count": executions, "ns": executions * each_ns * share}

    return {"batch_size": size, "compute_input": part(1), "compute_infer": part(8), "compute_output": part(1)}


def entry(name: str, version: str = "1", sizes: Mapping[int, int] | None = None) -> dict[str, Any]:
    sizes = sizes or {}
    return {
        "name": name,
        "version": version,
        "inference_count": sum(size * count for size, count in sizes.items()),
        "execution_count": sum(sizes.values()),
        "inference_stats": {},
        "batch_stats": [line(size, count) for size, count in sizes.items()],
    }


CONFIG = {
    "max_batch_size": 40,
    "dynamic_batching": {"preferred_batch_size": [10, 20, 40]},
    "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
}


def samples(page: Page) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a page; no two may have the same name and labels, or Prometheus drops the page's."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(page.text().decode()):
        for one in family.samples:
            key = one.name, frozenset(one.labels.items())
            assert key not in found, key
            found[key] = one.value
    return found


def at(found: Mapping[Any, float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def page_of(server: ServerSaid | None = None, gateway: GatewaySaid | None = None) -> Page:
    return Page(server, gateway, {Source.TRITON: server is not None}, 1234)


def test_executions_become_a_histogram_with_the_models_own_limit() -> None:
    said = read_server({"model_stats": [entry("m", sizes={1: 3, 10: 4, 33: 2, 40: 5})]}, {"m": CONFIG}, [])
    found = samples(page_of(said))
    who = {"model": "m", "version": "1"}
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "brim_batch_rows_bucket"}
    assert {"1": 3, "8": 3, "16": 7, "32": 7, "40": 14, "100": 14, "+Inf": 14}.items() <= buckets.items()
    assert list(buckets.values()) == sorted(buckets.values())
    assert at(found, "brim_batch_rows_count", **who) == 14
    assert at(found, "brim_batch_rows_sum", **who) == 3 + 40 + 66 + 200
    # Ten milliseconds each.
    assert at(found, "brim_busy_us_total", **who) == 140_000
    assert at(found, "brim_instances", **who) == 2
    assert at(found, "brim_max_batch_rows", **who) == 40
    launches = {reason: at(found, "brim_launches_total", **who, reason=reason.value) for reason in Launch}
    assert launches == {Launch.FULL: 5, Launch.PREFERRED: 4, Launch.OTHER: 5}


def test_a_model_that_was_never_called_has_zeros_and_no_mean() -> None:
    found = samples(page_of(read_server({"model_stats": [entry("idle")]}, {"idle": CONFIG}, [])))
    of_idle = {name: value for (name, labels), value in found.items() if ("model", "idle") in labels}
    assert {"brim_batch_rows_sum", "brim_batch_rows_count", "brim_busy_us_total"} <= of_idle.keys()
    assert not [name for name in of_idle if "mean" in name or "ratio" in name]
    assert sum(value for name, value in of_idle.items() if name not in ("brim_instances", "brim_max_batch_rows")) == 0


def test_versions_are_apart_and_what_has_the_same_name_is_one() -> None:
    document = {"model_stats": [entry("m", "1", {2: 1}), entry("m", "2", {2: 5}), entry("m", "1", {2: 2, 4: 1})]}
    found = samples(page_of(read_server(document, {"m": CONFIG}, [])))
    assert at(found, "brim_batch_rows_count", model="m", version="1") == 4
    assert at(found, "brim_batch_rows_sum", model="m", version="1") == 10
    assert at(found, "brim_batch_rows_count", model="m", version="2") == 5


def test_counters_that_began_anew_are_passed_on() -> None:
    before, after = (
        samples(page_of(read_server({"model_stats": [entry("m", sizes={4: count})]}, {"m": CONFIG}, [])))
        for count in (90, 2)
    )
    who = {"model": "m", "version": "1"}
    assert at(before, "brim_batch_rows_count", **who) == 90
    assert at(after, "brim_batch_rows_count", **who) == 2
    assert all(value >= 0 for value in after.values())


def test_a_model_that_went_meanwhile_is_left_out() -> None:
    said = read_server({"model_stats": [entry("m"), entry("gone")]}, {"m": CONFIG}, [])
    assert [model.name for model in said.models] == ["m"]


@pytest.mark.parametrize("count", [float("nan"), float("inf"), "many", None, {}])
def test_statistics_that_are_no_numbers_are_refused(count: Any) -> None:
    document = {"model_stats": [{"name": "m", "version": "1", "inference_count": count}]}
    with pytest.raises(UnreadableStatistics, match="another form"):
        read_server(document, {"m": CONFIG}, [])


def test_a_model_without_batching_executes_one_row() -> None:
    settings = read_settings({"max_batch_size": 0})
    assert (settings.max_rows, settings.preferred, settings.instances) == (1, frozenset(), 1)
    said = read_server({"model_stats": [entry("m", sizes={1: 7})]}, {"m": {"max_batch_size": "0"}}, [])
    assert said.models[0].launches[Launch.FULL] == 7


def test_who_was_told_to_go_is_not_missed() -> None:
    index = [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "b", "version": "2", "state": "READY"},
        {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "Internal: the stub has died"},
        {"name": "never", "version": "", "state": "", "reason": ""},
        {"name": "nor_this"},
    ]
    assert loaded_versions(index) == {("a", "1"): True, ("b", "2"): True, ("c", "1"): False}


PAGE = """# TYPE envoy_brim_requests counter
envoy_brim_requests{model="m",class="interactive",code="200",grpc_status="",reason="",flags="-"} 7
envoy_brim_requests{model="m",class="interactive",code="200",grpc_status="0",reason="",flags="-"} 5
envoy_brim_requests{model="m",class="interactive",code="429",grpc_status="",reason="queue_full",flags="UO"} 3
envoy_brim_requests{model="m",class="batch",code="200",grpc_status="8",reason="shed",flags="-"} 4
envoy_brim_requests{model="m",class="batch",code="0",grpc_status="",reason="",flags="DC"} 6
envoy_brim_requests{model="m",class="batch",code="504",grpc_status="",reason="deadline",flags="UMSDR"} NaN
envoy_brim_requests{model="-",class="-",code="404",grpc_status="",reason="not_offered",flags="-"} 9
envoy_brim_requests{model="a \\"quoted\\\\ one",class="",code="500",grpc_status="",reason="",flags="-"} 2
# TYPE envoy_brim_stream_requests counter
envoy_brim_stream_requests{model="m",class="interactive",outcome="admitted"} 100
envoy_brim_stream_requests{model="m",class="interactive",outcome="answered"} 90
envoy_brim_stream_requests{model="m",class="interactive",outcome="host_room_full"} 10
envoy_brim_stream_requests{model="m",class="interactive",outcome="queue_full"} 8
# TYPE envoy_cluster_upstream_rq_active gauge
envoy_cluster_upstream_rq_active{envoy_cluster_name="triton/m"} 12
envoy_cluster_upstream_rq_active{envoy_cluster_name="triton"} 3
envoy_cluster_upstream_rq_active{envoy_cluster_name="around"} 1
"""
CLUSTERS = {
    "cluster_statuses": [
        {"name": "triton/m", "circuit_breakers": {"thresholds": [{"max_requests": 400}, {"priority": "HIGH"}]}},
        {"name": "triton", "circuit_breakers": {"thresholds": [{"priority": "DEFAULT", "max_requests": 1000}]}},
        {"name": "around"},
    ]
}


def test_requests_are_added_up_by_how_they_ended() -> None:
    found = samples(page_of(gateway=read_gateway(PAGE, CLUSTERS)))

    def count(outcome: str, reason: str = "", model: str = "m", kind: str = "interactive") -> float:
        labels = {"model": model, "class": kind, "outcome": outcome, "reason": reason}
        return at(found, "brim_requests_total", **labels)

    assert count("right") == 7 + 5 + 90
    assert count("refused", "queue_full") == 3 + 8
    assert count("refused", "room_full") == 10
    assert count("refused", "shed", kind="batch") == 4
    assert count("cancelled", kind="batch") == 6
    assert count("own_error", "not_offered", model="", kind="") == 9
    assert count("failed", model='a "quoted\\ one', kind="") == 2
    assert not [key for key in found if ("reason", "deadline") in key[1]]
    in_flight = {key: value for key, value in found.items() if key[0].startswith("brim_gateway_in_flight")}
    assert in_flight == {
        ("brim_gateway_in_flight", frozenset({("model", "m")})): 12,
        ("brim_gateway_in_flight_limit", frozenset({("model", "m")})): 400,
    }


def test_without_the_admin_page_no_limit_is_made_up() -> None:
    assert read_gateway(PAGE).limits == {}
    assert limits(CLUSTERS) == {"m": 400}


def test_every_outcome_of_a_stream_is_known() -> None:
    assert {outcome for outcome in STREAM_OUTCOMES if stream_ended(outcome) is None} == {"admitted"}
    assert stream_ended("host_deadline") == (Ended.REFUSED, "deadline")
    assert stream_ended("host_expired") == (Ended.EXPIRED, "expired")
    assert stream_ended("failed") == (Ended.FAILED, "")
    assert stream_ended("left") == (Ended.CANCELLED, "")
    assert set(HOST_ERRORS) <= set(BY_REASON)


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """As Prometheus matches: whole values, and what is absent is empty."""
    for name, operator, value in re.findall(r'(\w+)(=~|!~|=|!=)"([^"]*)"', selector):
        matches = re.fullmatch(value, labels.get(name, "")) is not None
        assert operator in ("=~", "!~")
        if matches is (operator == "!~"):
            return False
    return True


def test_what_rules_select_is_what_the_exporter_counts() -> None:
    """Every combination of labels: right is right, and an objective is for all but own errors and those who left."""
    codes = (
        "",
        "-",
        "0",
        "101",
        "200",
        "204",
        "302",
        "400",
        "404",
        "408",
        "413",
        "415",
        "429",
        "499",
        "500",
        "503",
        "504",
    )
    statuses = ("", "-", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "11", "12", "13", "14", *BY_GRPC)
    reasons = ("", "-", "something_new", *BY_REASON)
    flags = ("", "-", "UO", "DC", "DR", "UT,DC", "UMSDR", "DPE", "UF,URX")
    ends = set()
    for code, grpc, reason, flag in product(codes, statuses, reasons, flags):
        labels = {"code": code, "grpc_status": grpc, "reason": reason, "flags": flag}
        how, why = ended(labels)
        ends.add(how)
        assert why == ("" if reason == "-" else reason)
        assert selects(RIGHT, labels) is (how is Ended.RIGHT), labels
        assert selects(ELIGIBLE, labels) is (how not in (Ended.OWN_ERROR, Ended.CANCELLED)), labels
    assert ends == set(Ended)


def test_every_source_is_told_of_and_one_that_is_down_leaves_its_own_out() -> None:
    page = Page(None, read_gateway(PAGE), {Source.TRITON: False, Source.GATEWAY: True}, 1234)
    found = samples(page)
    assert at(found, "brim_exporter_source_up", source="triton") == 0
    assert at(found, "brim_exporter_source_up", source="gateway") == 1
    assert at(found, "brim_exporter_scrape_us") == 1234
    names = {name for name, _ in found}
    assert "brim_requests_total" in names and not [name for name in names if name.startswith("brim_batch")]


def test_sources_are_asked_once_at_a_time_and_their_coming_and_going_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answers = [], [True, False, False, True]

    async def ask_server(*_: object) -> ServerSaid:
        asked.append(len(asked))
        up = answers[len(asked) - 1]
        await asyncio.sleep(0)
        if not up:
            raise SourceDown("x:1: nobody there")
        return ServerSaid()

    monkeypatch.setattr(serving, "ask_server", ask_server)
    said: list[str] = []

    async def run() -> list[bool]:
        async with Exporter(Sources("x:1"), said.append) as exporter:
            together = await asyncio.gather(*(exporter.page() for _ in range(5)))
            assert all(page is together[0] for page in together)
            return [together[0].up[Source.TRITON]] + [(await exporter.page()).up[Source.TRITON] for _ in range(3)]

    assert asyncio.run(run()) == answers
    assert asked == [0, 1, 2, 3]
    assert said == ["triton does not answer: x:1: nobody there", "triton answers again"]


def test_a_port_that_is_taken_is_told() -> None:
    with ExporterBeside(Sources("127.0.0.1:1")) as first:
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(PortInUse, match=f"port {port}"), ExporterBeside(Sources("127.0.0.1:1"), port=port):
            pass
