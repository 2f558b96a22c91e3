"""What a router knows: of prompts, pages, files and Envoy's health, and what it makes of those that are broken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from brim.engine.kv_cache import block_hashes
from brim.errors import InputError
from brim.router.decisions import DecisionLog, line_of, replay
from brim.router.gateway_health import sick_hosts, unfit_replicas
from brim.router.in_flight import Counted, InFlight
from brim.router.metrics_page import ALL, read_page
from brim.router.pools import Pools
from brim.router.prefix_index import PrefixIndexes
from brim.router.prompt import MOST_BYTES, prompt_of_grpc, prompt_of_json, request_of
from brim.router.replica_file import Server, read_replicas, servers_of
from brim.router.router import Router
from brim.router.view import Replica, Request, Settings

BLOCKS = tuple(block_hashes(list(range(160)), 16))


def test_a_prefix_is_found_where_it_was_sent_as_far_as_it_goes() -> None:
    indexes = PrefixIndexes(16)
    indexes.touch("a", BLOCKS)
    other = block_hashes([*range(80), *range(1_000, 1_080)], 16)
    assert (indexes.match("a", BLOCKS), indexes.match("a", other), indexes.match("b", BLOCKS)) == (10, 5, 0)


def test_the_least_recently_used_blocks_go_first_and_no_more_are_kept_than_the_replica_has() -> None:
    indexes = PrefixIndexes(16)
    indexes.scrape(Replica("a", kv_blocks=6, kv_block_tokens=32, scraped_us=0))
    for first in range(0, 40, 4):
        indexes.touch("a", range(first, first + 4))
        indexes.touch("a", (0, 1))
    assert indexes.blocks("a") == 12
    assert indexes.match("a", (0, 1)) == 2
    assert indexes.match("a", (36, 37, 38, 39)) == 4
    assert indexes.match("a", (4, 5)) == 0


@pytest.mark.parametrize(
    ("before", "after", "anew"),
    [
        (Replica("a", incarnation="12"), Replica("a", incarnation="13"), True),
        (Replica("a", incarnation="12"), Replica("a", incarnation="12"), False),
        (Replica("a", incarnation="12"), Replica("a"), False),
        (Replica("a"), Replica("a", incarnation="12"), False),
        (Replica("a", counted=50.0), Replica("a", counted=49.0), True),
        (Replica("a", counted=50.0), Replica("a", counted=50.0), False),
        (Replica("a", counted=50.0), Replica("a"), False),
    ],
)
def test_a_replica_that_has_started_anew_holds_nothing(before: Replica, after: Replica, anew: bool) -> None:
    indexes = PrefixIndexes(16)
    indexes.scrape(before)
    indexes.touch("a", BLOCKS)
    indexes.touch("b", BLOCKS)
    # A page that does not say is no proof, and does not hide what the next one shows.
    assert indexes.scrape(Replica("a")) is False
    assert indexes.scrape(after) is anew
    assert (indexes.match("a", BLOCKS), indexes.match("b", BLOCKS)) == (0 if anew else 10, 10)


def test_a_page_shows_what_was_sent_before_it_was_asked_for() -> None:
    in_flight = InFlight(settle_us=10)
    for number, at_us in enumerate((0, 85, 95, 100)):
        in_flight.send(number, "a", tokens=100, priority=1 + number % 2, now_us=at_us)
    in_flight.scrape("a", 100)
    assert in_flight.of("a", 1) == Counted(own=4, unseen=2, unseen_behind=1, unseen_tokens=200, ended=0)
    in_flight.end(0, 110)
    in_flight.end(3, 111)
    in_flight.end(3, 112)
    assert in_flight.of("a", 1) == Counted(own=2, unseen=1, unseen_behind=0, unseen_tokens=100, ended=1)
    # Of a page that was asked for earlier nothing is learnt; of one that came after the end, that it is over.
    in_flight.scrape("a", 90)
    assert in_flight.of("a", 1).ended == 1
    in_flight.scrape("a", 110)
    assert in_flight.of("a", 1) == Counted(own=2)
    assert len(in_flight) == 2
    with pytest.raises(ValueError, match="in flight already"):
        in_flight.send(1, "b", tokens=0, priority=1, now_us=200)


OURS = """# HELP brim_llm_requests_waiting Requests
# TYPE brim_llm_requests_waiting gauge
brim_llm_requests_waiting{model="story",process="41",version="1"} 3
vllm:num_requests_waiting{model="story",process="41",version="1"} 3
nv_trt_llm_request_metrics{model="story",process="41",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="story",process="41",request_type="scheduled",version="1"} 8
brim_llm_requests_waiting{model="story",process="42",version="1"} 1
brim_llm_requests_running{model="story",process="41",version="1"} 8
brim_llm_kv_cache_usage_ratio{model="story",process="41",version="1"} 0.25
brim_llm_kv_cache_usage_ratio{model="story",process="42",version="1"} 0.75
brim_llm_kv_blocks_total{model="story",process="41",version="1"} 512
brim_llm_kv_blocks_total{model="story",process="42",version="1"} 512
brim_llm_kv_block_tokens{model="story",process="41",version="1"} 32
brim_llm_kv_block_tokens{model="story",process="42",version="1"} 32
brim_llm_prompt_tokens_total{model="story",process="41",version="1"} 1000
nv_inference_pending_request_count{model="story",version="1"} 0
nv_inference_pending_request_count{model="sorter",version="1"} 7
nv_inference_pending_request_count{model="sorter",version="2"} 2
nv_inference_count{model="sorter",version="1"} 90
"""


def test_our_page_is_read() -> None:
    assert read_page(OURS, "a", 5) == {
        "story": Replica("a", 4.0, 8.0, 0.25, 1024, 32, 5, "41 42", 1000.0),
        "sorter": Replica("a", waiting=9.0, scraped_us=5, counted=90.0),
        ALL: Replica("a", waiting=13.0, running=8.0, kv_free=0.25, scraped_us=5),
    }


def test_pages_of_vllm_and_tensorrt_llm_are_read() -> None:
    vllm = (
        'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\nvllm:num_requests_running{engine="0",model_name="m"} 5.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5 1700000000000\nprocess_start_time_seconds 1.7e+09\n'
    )
    assert read_page(vllm, "a", 0)["m"] == Replica("a", 2.0, 5.0, 0.5, scraped_us=0, incarnation="1.7e+09")
    trt = (
        'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 2\n'
        'nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 5\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.5\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 40\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 20\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64\n'
    )
    assert read_page(trt, "a", 0)["m"] == Replica("a", 2.0, 5.0, 0.5, 40, 64, 0)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{}", OURS[:40], 'a{b="c} 3', OURS.replace(" 3\n", " three\n").replace(" 1\n", " one\n")]
)
def test_a_garbled_page_says_nothing_and_harms_nothing(text: str) -> None:
    views = read_page(text, "a", 0)
    assert all(view.name == "a" for view in views.values())
    story = views.get("story", Replica("a"))
    assert story.waiting in (None, 0.0)


def test_no_number_on_a_page_stays_none() -> None:
    views = read_page(OURS.replace("0.25\n", "NaN\n").replace("} 1\n", "} NaN\n"), "a", 0)
    assert views["story"].waiting is not None and isnan(views["story"].waiting)
    assert views["story"].kv_free is not None and isnan(views["story"].kv_free)


def _infer_body(text: bytes, *, raw: bool) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="story", id="x")
    message.inputs.add(name="seed", datatype="INT32", shape=[1])
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    if raw:
        message.raw_input_contents.extend([b"\0\0\0\0", struct.pack("<I", len(text)) + text])
    else:
        tensor.contents.bytes_contents.extend([text, b"another"])
    encoded = message.SerializeToString()
    return struct.pack(">BI", 0, len(encoded)) + encoded


def _binary_body(text: bytes) -> tuple[bytes, int]:
    tensors = b"\0" * 8 + struct.pack("<I", len(text)) + text
    inputs = [
        {"name": "seed", "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 8}},
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 4 + len(text)}},
    ]
    head = json.dumps({"inputs": inputs}).encode()
    return head + tensors, len(head)


def test_the_prompt_is_found_in_every_form_of_a_request() -> None:
    text = "Once upon a tïme"
    encoded = text.encode()
    assert prompt_of_json(json.dumps({"text_input": text, "stream": True}).encode()) == encoded
    assert prompt_of_json(json.dumps({"model": "m", "prompt": text}).encode()) == encoded
    tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [[text]]}
    assert prompt_of_json(json.dumps({"inputs": [{"name": "seed", "data": [1]}, tensor]}).encode()) == encoded
    assert prompt_of_json(*_binary_body(encoded)) == encoded
    assert prompt_of_grpc(_infer_body(encoded, raw=False)) == encoded
    assert prompt_of_grpc(_infer_body(encoded, raw=True)) == encoded
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    longer = [*chat, {"role": "user", "content": "And then?"}]
    first, second = (prompt_of_json(json.dumps({"messages": one}).encode()) for one in (chat, longer))
    assert text.encode() in first and second.startswith(first[:-1])


@pytest.mark.parametrize("read", [prompt_of_json, prompt_of_grpc])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"text_input": 3}',
        b'{"inputs": [3]}',
        b'{"inputs": [{"name": "text_input", "data": []}]}',
        b"[" * 100_000,
        b"\0\0\0\0\x7f\x0a",
        b"\x01" + _infer_body(b"x", raw=True)[1:],
        b"\xff" * 64,
    ],
)
def test_what_is_no_request_has_no_prompt(read: Callable[[bytes], bytes], body: bytes) -> None:
    assert read(body) == b""


@pytest.mark.parametrize("raw", [True, False])
def test_a_message_that_was_cut_off_has_its_prompt_or_none(raw: bool) -> None:
    body = _infer_body(b"Once upon a time", raw=raw)
    for end in range(len(body)):
        assert b"Once upon a time".startswith(prompt_of_grpc(body[:end]))


def test_prompts_that_begin_alike_share_blocks_and_long_ones_are_cut() -> None:
    first, second = (request_of(b"x" * 640 + end, 16) for end in (b"a" * 64, b"b" * 64))
    assert len(first.blocks) == 11 and first.blocks[:10] == second.blocks[:10] and first.blocks[10] != second.blocks[10]
    assert first.prompt_tokens == 176
    endless = request_of(b"x" * (MOST_BYTES * 9), 16)
    assert len(endless.blocks) == MOST_BYTES // 64 and endless.prompt_tokens == MOST_BYTES * 9 // 4


def _host(port: int, health_port: int | None = None, **more: Any) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}
    if health_port is not None:
        endpoint["health_check_config"] = {"port_value": health_port}
    return {"endpoint": endpoint, **more}


def _said(protocol: str, name: str = "", metrics: str = "") -> dict[str, Any]:
    brim = {key: value for key, value in (("replica", name), ("metrics", metrics)) if value}
    return {"metadata": {"filter_metadata": {"envoy.lb": {"protocol": protocol}, "brim": brim}}}


def _file(*hosts: dict[str, Any]) -> dict[str, Any]:
    return {"resources": [{"cluster_name": "triton", "endpoints": [{"lb_endpoints": list(hosts)}]}]}


def test_two_ports_of_one_server_are_one_replica() -> None:
    document = _file(
        _host(10, 10, **_said("http", "one", "127.0.0.1:12")),
        _host(11, 10, **_said("grpc", "one", "127.0.0.1:12")),
        _host(20, 20, **_said("http"), health_status="DRAINING"),
        _host(21, 20, **_said("grpc"), health_status="DRAINING"),
        _host(30),
    )
    assert servers_of(document, 9) == [
        Server("127.0.0.1:20", "127.0.0.1:20", "127.0.0.1:21", "127.0.0.1:9", fit=False),
        Server("127.0.0.1:30", "127.0.0.1:30", "127.0.0.1:30", "127.0.0.1:9"),
        Server("one", "127.0.0.1:10", "127.0.0.1:11", "127.0.0.1:12"),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"resources": []}', '{"resources": [{"endpoints": [{"lb_endpoints": [{}]}]}]}']
)
def test_a_file_that_names_no_replicas_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "eds.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"eds\.json does not name replicas"):
        read_replicas(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_replicas(tmp_path / "none.json")


def test_replicas_that_envoy_holds_for_sick_get_nothing() -> None:
    def status(port: int, **health: Any) -> dict[str, Any]:
        return {
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "health_status": {"eds_health_status": "HEALTHY", **health},
        }

    page = {
        "cluster_statuses": [
            {"name": "picker"},
            {
                "name": "triton/story",
                "host_statuses": [
                    status(10),
                    status(11, failed_active_health_check=True),
                    status(20, failed_outlier_check=True),
                    status(30, eds_health_status="DRAINING"),
                    status(40),
                ],
            },
            {"name": "triton", "host_statuses": [status(40, failed_active_health_check=True)]},
        ]
    }
    servers = [
        Server(name, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")
        for name, port in zip("abcd", (10, 20, 30, 40), strict=True)
    ]
    servers.append(Server("e", "127.0.0.1:50", "127.0.0.1:51", fit=False))
    unfit = unfit_replicas(sick_hosts(page), servers)
    assert unfit == {"story": {"a", "b", "c"}, ALL: {"e"}}
    pools = Pools()
    pools.set_replicas("abcde")
    for name in "abcde":
        pools.scrape({"story": Replica(name, 0.0, scraped_us=0), "sorter": Replica(name, 0.0, scraped_us=0)})
    pools.set_unfit(unfit)
    taken = {model: {_pick(pools, model) for _ in range(40)} for model in ("story", "sorter")}
    assert taken == {"story": {"d"}, "sorter": {"a", "b", "c", "d"}}
    pools.set_unfit({ALL: set("abcde")})
    assert pools.pick("story", Request(), 0) is None


def _pick(pools: Pools, model: str) -> str:
    placed = pools.pick(model, Request(), 0)
    assert placed is not None
    pools.end(placed, 0)
    return placed.decision.name


def test_each_model_is_routed_by_its_own_queue_and_its_kind() -> None:
    pools = Pools(policies={"odd": "round_robin"})
    pools.set_replicas("ab")
    for name, waiting in (("a", 0.0), ("b", 9.0)):
        pools.scrape(
            {
                "story": Replica(name, waiting, 1.0, 0.5, scraped_us=0),
                "sorter": Replica(name, 9.0 - waiting, scraped_us=0),
                "odd": Replica(name, scraped_us=0),
            }
        )
    assert [pools.router(model).policy for model in ("story", "sorter", "odd", "unknown")] == [
        *("prefix_aware", "queue_depth", "round_robin", "prefix_aware")
    ]
    assert (_pick(pools, "story"), _pick(pools, "sorter")) == ("a", "b")
    assert pools.pick("story", Request(), 1) is not None
    assert [pools.router(model).in_flight("a") for model in ("story", "sorter", "unknown")] == [1, 0, 0]


def test_decisions_are_made_again_from_their_file_which_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    router = Router("prefix_aware", "abc", Settings(seed=7))
    log = DecisionLog(path, most_lines=10)
    for number in range(25):
        router.scrape(Replica("abc"[number % 3], float(number), 2.0, 0.5, scraped_us=number))
        decision = router.pick(Request(160, BLOCKS), number)
        assert decision is not None
        log.write(decision, router.settings)
    log.close()
    lines = path.read_text(encoding="utf-8").splitlines()
    older = (tmp_path / "decisions.jsonl.1").read_text(encoding="utf-8").splitlines()
    assert (len(lines), len(older)) == (5, 10)
    assert replay(older + lines).differing == ()
    # Whatever it was made from, it comes out otherwise when that is changed.
    record = json.loads(lines[0])
    record["picked"] = next(
        one["replica"]["name"] for one in record["candidates"] if one["replica"]["name"] != record["picked"]
    )
    assert replay([lines[1], json.dumps(record)]).differing == (2,)
    with pytest.raises(InputError, match="line 2 is no decision"):
        replay([lines[0], "{}"])
    assert line_of(decision, router.settings) == lines[-1]
