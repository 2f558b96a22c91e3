"""Where to look, and what comes of asking: real sockets, servers that say little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.live.look import Looker
from brim.live.places import Places, ServerPlace, given_places, noted_places, running_places
from brim.live.seen import Objectives, Recording, SeenGateway, SeenServer, read_recording, write_recording
from brim.server import leftovers
from brim.server.ports import choose_ports
from tests.unit.live_example import ended_line, look, server, text_page, totals

Answers = dict[str, bytes]


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """A server of these paths; another path is not found. Its ``host:port``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.partition("?")[0])
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def triton(*entries: object, page: list[str] | None = None, instances: int = 2) -> Answers:
    answers = {"/v2/models/stats": json.dumps({"model_stats": list(entries)}).encode()}
    answers["/v2/models/net/config"] = json.dumps({"instance_group": [{"count": instances}]}).encode()
    if page is not None:
        answers["/metrics"] = "\n".join(["# HELP", *page, 'other{model="net"} 1']).encode()
    return answers


def nowhere() -> str:
    return f"127.0.0.1:{choose_ports('127.0.0.1', {'nobody': None})['nobody']}"


def test_a_look_keeps_the_lines_that_matter() -> None:
    answers = triton(totals(sizes={1: 1}), page=text_page(running=3))
    front = {"/stats/prometheus": "\n".join([ended_line(4), "envoy_server_live{} 1"]).encode()}
    with answering(answers) as address, answering(front) as gateway:
        places = Places((ServerPlace("r1", address, address),), gateway)
        with Looker(lambda: places, clock_us=iter(range(1, 9)).__next__) as looker:
            seen = looker.look()
    said = seen.servers["r1"]
    assert isinstance(said, SeenServer) and said.instances == {"net": 2}
    assert said.page is not None and all("other" not in line for line in said.page)
    assert any("brim_llm_requests_running" in line for line in said.page)
    assert not any(line.startswith("vllm:") for line in said.page), "ours say the same"
    assert isinstance(seen.gateway, SeenGateway) and seen.gateway.page == (ended_line(4),)


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://{nowhere()}")
    with answering(triton(totals())) as address, Looker(lambda: Places((ServerPlace("r1", address, None),))) as looker:
        assert isinstance(looker.look().servers["r1"], SeenServer)


def test_the_gateways_page_for_prometheus_does_as_well() -> None:
    with answering({"/metrics": ended_line(4).encode()}) as gateway, Looker(lambda: Places((), gateway)) as looker:
        front = looker.look().gateway
    assert isinstance(front, SeenGateway) and front.page == (ended_line(4),)


def test_who_does_not_answer_is_told_apart_from_who_does() -> None:
    answers = triton(totals())
    with answering(answers) as address:
        servers = (ServerPlace("here", address, nowhere()), ServerPlace("gone", nowhere(), None))
        with Looker(lambda: Places(servers, nowhere())) as looker:
            seen = looker.look()
            assert isinstance(seen.servers["here"], SeenServer) and seen.servers["here"].page is None
            gone = seen.servers["gone"]
            assert isinstance(gone, str) and gone.startswith("no statistics: ")
            assert isinstance(seen.gateway, str) and seen.gateway.startswith("no page: ")
            answers["/v2/models/stats"] = b"{}"
            assert looker.look().servers["here"] == "no statistics: another form than Triton's"
            answers["/v2/models/stats"] = b"<html>"
            assert "no statistics" in str(looker.look().servers["here"])


def test_where_to_look_is_asked_again_and_the_last_answer_holds() -> None:
    answers: list[Callable[[], Places]] = []

    def where() -> Places:
        return answers.pop(0)()

    def nobody() -> Places:
        raise InputError("no server of this checkout runs here", hint="-")

    answers += [nobody, lambda: Places((ServerPlace("a", nowhere(), None),)), nobody]
    with Looker(where) as looker:
        with pytest.raises(InputError):
            looker.look()
        assert list(looker.look().servers) == ["a"] and list(looker.look().servers) == ["a"]


def test_given_addresses_are_checked_all_at_once() -> None:
    with pytest.raises(InputError) as caught:
        given_places(["host", "h:1", "http://h:1", "https://h:2"], ["x:1"], "nothing")
    for words in (
        "host: expected host:port",
        "scheme is 'https'",
        "h:1: given twice",
        "--metrics 1 times and 4",
        "--gateway-admin nothing",
    ):
        assert words in caught.value.message


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for notes that no other test sees."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setattr(leftovers, "notes_folder", lambda: folder)
    return folder


@contextmanager
def noted(*arguments: str) -> Iterator[int]:
    """A process with these arguments, and its note."""
    waits = Path(__file__).with_name("waits.py")
    child = subprocess.Popen([sys.executable, str(waits), *arguments], stdin=subprocess.PIPE)
    try:
        leftovers.note_for(leftovers.new_prefix(), child.pid).write()
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_running_servers_are_found_by_their_notes(notes: Path, tmp_path: Path) -> None:
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    configuration = tmp_path / "envoy.json"
    admin = {"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 7}}}}
    configuration.write_text(json.dumps(admin), encoding="utf-8")
    with pytest.raises(InputError, match="no server of this checkout runs here"):
        running_places(repository, cache)
    mine = [f"--model-repository={repository}", "--http-address=127.0.0.1", "--metrics-address=127.0.0.1"]
    fleet = cache / "replicas" / str(os.getpid())
    fleet.mkdir(parents=True)
    (fleet / "status.json").write_text(
        json.dumps({"replicas": [{"name": "r2", "http": "127.0.0.1:2"}]}), encoding="utf-8"
    )
    with (
        noted(*mine, "--http-port=1", "--metrics-port=3"),
        noted(*mine, "--http-port=2", "--metrics-port=4"),
        noted("-c", str(configuration)),
        noted("--model-repository=/elsewhere", "--http-port=9"),
    ):
        found = running_places(repository, cache)
        assert found.gateway == "127.0.0.1:7"
        assert [(one.name, one.http, one.metrics) for one in found.servers] == [
            ("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:3"),
            ("r2", "127.0.0.1:2", "127.0.0.1:4"),
        ]
        assert running_places(repository, cache, os.getpid()) == found
        with pytest.raises(InputError, match="with the process id 1"):
            running_places(repository, cache, 1)
        # Who gives an address gets what is noted beside it, unless they say otherwise.
        assert given_places(["127.0.0.1:1"]).servers[0].metrics == "127.0.0.1:3"
        assert given_places(["127.0.0.1:1"]).gateway == "127.0.0.1:7"
        assert given_places(["127.0.0.1:1"], ["h:5"], "h:6") == Places(
            (ServerPlace("127.0.0.1:1", "127.0.0.1:1", "h:5"),), "h:6"
        )
        assert given_places(["127.0.0.1:1", "h:8000"]).gateway is None, "others are in front of something else"
    assert noted_places() == {}, "notes of what has ended"


def test_without_notes_metrics_are_where_triton_has_them(notes: Path) -> None:
    assert given_places(["http://h:8000"]) == Places((ServerPlace("h:8000", "h:8000", "h:8002"),))
    (notes / "brim_torn_.json").write_text("{", encoding="utf-8")
    assert noted_places() == {}


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    page = [line for line in text_page() if not line.startswith("vllm:")]
    looks = (
        look(1, [ended_line(1)], r1=server(1, totals(sizes={3: 4}), page=page), r2="gone"),
        look(2, "no page", r1=server(2, totals(sizes={3: 5}), page=None)),
    )
    recording = Recording({"net": Objectives(99, 50_000, 1, None)}, looks)
    file = tmp_path / "looks.json"
    write_recording(file, recording)
    assert read_recording(file) == recording
    assert sorted(path.name for path in tmp_path.iterdir()) == ["looks.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a recording"),
        ('{"format": 2}', "format 2, expected 1"),
        ('{"format": 1, "looks": [], "objectives": {}, "lines": []}', "0 looks"),
        ('{"format": 1, "looks": [{}], "objectives": {}, "lines": []}', "taken_us"),
        ('{"format": 1, "looks": 3, "objectives": {}, "lines": []}', "not a recording"),
        ('{"format": 1, "looks": [], "objectives": {}}', "lines"),
        (
            '{"format": 1, "looks": [{"taken_us": 1, "servers": {}, "gateway": {"taken_us": 1, "page": [9]}}], '
            '"objectives": {}, "lines": ["x"]}',
            "not a recording: IndexError",
        ),
        ("[]", "not a recording"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "looks.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read_recording(file)
    with pytest.raises(InputError, match="No such file"):
        read_recording(tmp_path / "none")


def test_looks_have_to_be_in_order(tmp_path: Path) -> None:
    file = tmp_path / "looks.json"
    write_recording(file, Recording({}, (look(2), look(1))))
    with pytest.raises(InputError, match="order of time"):
        read_recording(file)
