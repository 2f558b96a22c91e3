"""The picker's answers to Envoy's messages, its page, its command, and the configuration that asks it."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from tritonclient.grpc import service_pb2

from brim.gateway.admission import Admission
from brim.gateway.picking import FILTER, asking
from brim.gateway.routes import virtual_host
from brim.router.decisions import line_of
from brim.router.metrics_page import ALL
from brim.router.own_page import own_page
from brim.router.picker import Picker
from brim.router.pools import Pools
from brim.router.protocol import DESTINATION
from brim.router.replica_file import Server
from brim.router.view import LEAST_IMPORTANT, Replica, Settings
from brim.router.watch import Looks, Watch, clock_us
from tests.conftest import ROOT, Brim

SERVERS = tuple(Server(name, f"10.0.0.{place}:80", f"10.0.0.{place}:81") for place, name in enumerate("abc", start=1))
LONG = "Once upon a time " * 80


def picker_of(servers: Sequence[Server] = SERVERS, **classes: int) -> tuple[Picker, Pools, Watch]:
    pools = Pools(Settings(stale_us=1 << 62))
    watch = Watch(pools, Looks(servers=tuple(servers)), lambda text: None)
    for server in servers:
        now_us = clock_us()
        pools.scrape(
            {
                "story": Replica(server.name, 0.0, 0.0, 1.0, scraped_us=now_us),
                "sorter": Replica(server.name, 0.0, scraped_us=now_us),
            }
        )
    return Picker(pools, watch, classes=classes), pools, watch


def headers(path: str, *, body: str | None = None, ends: bool = False, **more: str) -> ext_proc.ProcessingRequest:
    said = {":path": path, **{name.replace("_", "-"): value for name, value in more.items()}}
    values = [HeaderValue(key=name, raw_value=value.encode()) for name, value in said.items()]
    request = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=ends)
    )
    if body is not None:
        request.protocol_config.request_body_mode = ProcessingMode.BodySendMode.Value(body)
    return request


def body(text: bytes, *, ends: bool = True) -> ext_proc.ProcessingRequest:
    return ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=text, end_of_stream=ends))


def asked(picker: Picker, *messages: ext_proc.ProcessingRequest, during: Any = None) -> list[Any]:
    """The answers to the messages of one call; ``during`` is called before it ends."""

    async def sent() -> AsyncIterator[Any]:
        for message in messages:
            yield message
        if during is not None:
            during()

    async def collect() -> list[Any]:
        return [answer async for answer in picker.process(sent(), None)]

    return asyncio.run(collect())


def named(answer: Any) -> list[str]:
    """The endpoints of an answer; empty without."""
    kind = answer.WhichOneof("response")
    options = getattr(answer, kind).response.header_mutation.set_headers
    if not options:
        return []
    (option,) = options
    assert option.header.key == DESTINATION
    value = option.header.raw_value.decode()
    assert answer.dynamic_metadata["envoy.lb"][DESTINATION] == value
    return value.split(",")


def json_prompt(text: str) -> bytes:
    return json.dumps({"text_input": text}).encode()


def grpc_prompt(text: str) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="story")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    encoded = message.SerializeToString()
    return struct.pack(">BI", 0, len(encoded)) + encoded


def test_without_a_body_the_headers_are_enough() -> None:
    picker, pools, _ = picker_of()
    seen = []
    path = "/v2/models/sorter/versions/1/infer?x=1"
    (answer,) = asked(
        picker,
        headers(path, body="NONE"),
        during=lambda: seen.append([pools.router("sorter").in_flight(name) for name in "abc"]),
    )
    first, second = named(answer)
    assert first != second and {first, second} < {server.http for server in SERVERS}
    # In flight as long as the call lasts.
    assert sorted(seen[0]) == [0, 0, 1]
    assert [pools.router("sorter").in_flight(name) for name in "abc"] == [0, 0, 0]


def test_a_prompt_is_waited_for() -> None:
    picker, pools, _ = picker_of()
    path = "/v2/models/story/generate_stream"
    answers = [asked(picker, headers(path, body="BUFFERED"), body(json_prompt(LONG + end))) for end in "xyz"]
    assert all(named(first) == [] and first.WhichOneof("response") == "request_headers" for first, _ in answers)
    assert len({named(second)[0] for _, second in answers}) == 1
    assert sum(pools.router("story").prefix_blocks(name) for name in "abc") > 0


def test_grpc_goes_to_the_port_for_grpc_and_the_gateway_says_for_which_model() -> None:
    picker, _, _ = picker_of()
    path = "/inference.GRPCInferenceService/ModelInfer"
    kind = {"content_type": "application/grpc+proto", "x_brim_model": "story"}
    asks = [headers(path, body="BUFFERED", **kind), body(grpc_prompt(LONG))]
    homes = {named(asked(picker, *asks)[1])[0] for _ in range(3)}
    assert len(homes) == 1 and homes < {server.grpc for server in SERVERS}
    # The same prompt over HTTP is the same prompt.
    both = [headers("/v2/models/story/generate", body="BUFFERED"), body(json_prompt(LONG))]
    (home,) = homes
    assert named(asked(picker, *both)[1])[0] == home.replace(":81", ":80")
    assert {pool for pool, _, _ in picker.picked} == {"story"}


def test_a_body_that_is_streamed_both_ways_is_passed_on_as_it_came() -> None:
    picker, _, _ = picker_of()
    whole = json_prompt(LONG)
    pieces = [whole[:100], whole[100:900], whole[900:], b""]
    answers = asked(
        picker,
        headers("/v2/models/story/generate", body="FULL_DUPLEX_STREAMED"),
        *(body(piece, ends=place == 3) for place, piece in enumerate(pieces)),
    )
    assert [answer.WhichOneof("response") for answer in answers] == ["request_headers", *["request_body"] * 4]
    assert named(answers[0])
    streamed = [answer.request_body.response.body_mutation.streamed_response for answer in answers[1:]]
    assert b"".join(one.body for one in streamed) == whole
    assert [one.end_of_stream for one in streamed] == [False, False, False, True]


def test_of_a_grpc_stream_the_first_message_is_enough() -> None:
    picker, _, _ = picker_of()
    first, second = grpc_prompt(LONG), grpc_prompt("Another")
    kind = {"content_type": "application/grpc", "x_brim_model": "story"}
    answers = asked(
        picker,
        headers("/inference.GRPCInferenceService/ModelStreamInfer", body="FULL_DUPLEX_STREAMED", **kind),
        body(first[:3], ends=False),
        body(first[3:], ends=False),
        body(second, ends=False),
        ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers()),
    )
    kinds = [answer.WhichOneof("response") for answer in answers]
    assert kinds == ["request_headers", *["request_body"] * 3, "request_trailers"]
    assert len(picker.picked) == 1 and len(named(answers[0])) == 2


def test_everything_else_is_answered_and_left_as_it_is() -> None:
    picker, _, _ = picker_of()
    answers = asked(
        picker,
        headers("/v2/models/sorter/infer", ends=True),
        ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders()),
        ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=b"x")),
        ext_proc.ProcessingRequest(response_trailers=ext_proc.HttpTrailers()),
    )
    kinds = [answer.WhichOneof("response") for answer in answers]
    assert kinds == ["request_headers", "response_headers", "response_body", "response_trailers"]
    assert [named(answer) for answer in answers[1:3]] == [[], []]


def test_where_nobody_takes_requests_nobody_is_named() -> None:
    picker, pools, _ = picker_of()
    pools.set_unfit({ALL: "abc"})
    (answer,) = asked(picker, headers("/v2/models/sorter/infer", body="NONE"))
    assert named(answer) == [] and picker.unplaced == 1
    pools.set_unfit({ALL: "ab"})
    (answer,) = asked(picker, headers("/v2/models/sorter/infer", body="NONE"))
    assert named(answer) == [SERVERS[2].http]


def test_the_class_of_a_caller_is_its_priority() -> None:
    picker, _, _ = picker_of(interactive=1, batch=2)
    priorities = []
    for said in ({"x-brim-class": "batch"}, {"x-brim-class": "interactive"}, {"x-brim-class": "other"}, {}):
        placed, _ = picker.place({":path": "/v2/models/story/generate", **said}, json_prompt(LONG))
        assert placed is not None
        priorities.append(placed.decision.request.priority)
    assert priorities == [2, 1, LEAST_IMPORTANT, LEAST_IMPORTANT]


def test_the_page_is_one_that_prometheus_reads() -> None:
    picker, pools, watch = picker_of([Server('odd"\\name', "10.0.0.1:80", "10.0.0.1:81")])
    asked(picker, headers("/v2/models/sorter/infer", body="NONE"))
    page = own_page(picker, pools, watch)
    assert 'brim_picker_picks_total{model="sorter",replica="odd\\"\\\\name",reason="least"} 1\n' in page
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    for line in page.splitlines():
        assert line.startswith("# ") or (
            line.split("{")[0].split(" ")[0] in names and float(line.rsplit(" ", 1)[1]) >= 0
        )
    # A replica that has gone leaves no series behind.
    pools.set_replicas(["other"])
    assert "odd" not in own_page(picker, pools, watch)


def test_only_routes_of_inferences_are_asked_about() -> None:
    models = {"story": Admission(pieces=True, tells=True), "sorter": Admission()}
    host = asking(virtual_host(models), models, ["story"])
    plain = virtual_host(models)["routes"]
    modes = []
    for route, before in zip(host["routes"], plain, strict=True):
        config = route.get("typed_per_filter_config", {}).get(FILTER)
        assert {key: value for key, value in route.items() if key != "typed_per_filter_config"} == {
            key: value for key, value in before.items() if key != "typed_per_filter_config"
        }
        if config is not None:
            modes.append(config["config"]["overrides"]["processing_mode"]["request_body_mode"])
            assert route["route"]["cluster"] in ("triton/story", "triton/sorter", "triton")
    # gRPC of both, the stream, pieces and one text of the language model, and what is inferred over HTTP of both.
    assert sorted(modes) == ["BUFFERED"] * 4 + ["NONE"] * 3
    assert asking(virtual_host(models), [], []) == virtual_host(models)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "there is no replica"),
        (["--replica", "a"], "--replica a: expected NAME=HTTP,GRPC"),
        (["--replica", "a=x:1"], "--replica a=x:1"),
        (["--replica", "a=x:1,x:2,x:3,x:4"], "--replica a="),
        (["--replica", "a=x:1,x:0"], "--replica a="),
        (["--replica", "a=x:1,x:2", "--replica", "a=y:1,y:2"], "two have one name"),
        (
            ["--replica", "a=x:1,x:2", "--policy", "m=best"],
            "--policy m=best: expected MODEL=POLICY, one of round_robin",
        ),
        (["--replica", "a=x:1,x:2", "--class", "batch=low"], "--class batch=low"),
        (["--replica", "a=x:1,x:2", "--gateway-admin", "9901"], "--gateway-admin 9901: expected host:port"),
        (["--eds", "/nowhere/eds.json"], "/nowhere/eds.json cannot be read"),
    ],
)
def test_wrong_flags_are_named(brim: Brim, flags: list[str], words: str) -> None:
    done = brim("picker", *flags)
    assert done.code == 2
    assert words in done.err


def test_decisions_are_written_and_made_again(brim: Brim, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    command = [sys.executable, "-m", "brim", "picker", "--json", "--replica", "a=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"]
    with subprocess.Popen([*command, "--decisions", str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as page:
            assert b"brim_picker_replicas 1" in page.read()
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    picker, pools, _ = picker_of()
    with path.open("w", encoding="utf-8") as file:
        for _ in range(3):
            placed, _ = picker.place({":path": "/v2/models/sorter/infer"}, b"")
            assert placed is not None
            file.write(f"{line_of(placed.decision, pools.settings)}\n")
    done = brim("picker", "--replay", path, "--json")
    assert (done.code, json.loads(done.out)["data"]) == (0, {"decisions": 3, "differing": []})
    lines = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[0])
    record["candidates"][[one["replica"]["name"] for one in record["candidates"]].index(record["picked"])]["own"] = 9
    path.write_text("\n".join([json.dumps(record), *lines[1:]]), encoding="utf-8")
    done = brim("picker", "--replay", path)
    assert done.code == 1 and "1 differ" in done.out
