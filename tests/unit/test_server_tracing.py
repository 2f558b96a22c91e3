from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from brim.cli.commands.serve import trace_place
from brim.cli.commands.serve_replicas import Wanted
from brim.errors import InputError
from brim.gateway.envoy_config import envoy_config
from brim.gateway.limits import RequestLimits
from brim.gateway.xds import Document, Listen, Upstream
from brim.paths import Project
from brim.server.container import container_command
from brim.server.options import ServerOptions
from brim.server.tracing import asked_of, hides_contexts, trace_arguments
from brim.service.load import find_services
from brim.service.schema import Tracing
from brim.trace.switch import trace_file
from tests.conftest import Brim

COLLECTOR = Tracing(mode="opentelemetry", rate=50, endpoint="http://collector:4318/v1/traces")


def test_who_asks_for_nothing_gets_no_argument(checkout: Path) -> None:
    assert trace_arguments(None, None) == ()
    assert asked_of(find_services(checkout / "services", [])) is None


def test_files_are_bounded() -> None:
    assert trace_arguments(Tracing(rate=7), Path("/t/trace.json")) == (
        "--trace-config=mode=triton",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=7",
        "--trace-config=count=10000",
        "--trace-config=triton,file=/t/trace.json",
        "--trace-config=triton,log-frequency=100",
    )


def test_a_file_alone_lets_it_be_switched_on_later() -> None:
    assert trace_arguments(None, Path("/t/trace.json")) == (
        "--trace-config=mode=triton",
        "--trace-config=level=OFF",
        "--trace-config=triton,file=/t/trace.json",
    )


def test_a_collector_gets_what_is_followed() -> None:
    told = trace_arguments(COLLECTOR, Path("/t/trace.json"))
    assert "--trace-config=opentelemetry,url=http://collector:4318/v1/traces" in told
    assert "--trace-config=rate=50" in told
    assert not any("/t/" in one for one in told)


def test_a_container_writes_where_the_host_can_read(tmp_path: Path) -> None:
    options = ServerOptions(tracing=Tracing(), trace_file=tmp_path / "trace.json")
    command = container_command(
        name="n",
        image="i",
        repository=tmp_path,
        models=[],
        ports={"http": 1, "grpc": 2, "metrics": 3},
        options=options,
        gpus=False,
    )
    assert f"--volume={tmp_path}:/traces" in command[: command.index("i")]
    assert "--trace-config=triton,file=/traces/trace.json" in command[command.index("i") :]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"mode": "opentelemetry"}, "endpoint"),
        ({"endpoint": "http://collector:4318"}, "endpoint"),
        ({"follow_callers": True}, "follow_callers"),
        ({"rate": 0}, "rate"),
        ({"most_traces": -1}, "most_traces"),
        ({"mode": "opentelemetry", "endpoint": "http://a,b"}, "endpoint"),
        ({"mode": "opentelemetry", "endpoint": "https://a"}, "endpoint"),
    ],
)
def test_what_the_server_would_not_take_is_refused(given: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        Tracing.model_validate(given)


def test_one_server_has_one_tracing(checkout: Path) -> None:
    first, second, third = find_services(checkout / "services", [])[:3]
    alike = [one.model_copy(update={"tracing": Tracing(rate=5)}) for one in (first, second)]
    assert asked_of([*alike, third]) == Tracing(rate=5)
    with pytest.raises(InputError, match=rf"{first.name}(.|\n)*{second.name}"):
        asked_of([alike[0], alike[1].model_copy(update={"tracing": COLLECTOR})])


def _removed(document: Document) -> list[str]:
    manager = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    removed: list[str] = manager["route_config"]["virtual_hosts"][0]["request_headers_to_remove"]
    return removed


def test_callers_do_not_decide_how_much_is_followed() -> None:
    listen, upstream = Listen("127.0.0.1", 3, 4, "127.0.0.1", 5), Upstream("127.0.0.1:1", "127.0.0.1:2")
    assert not hides_contexts(None)
    assert not hides_contexts(Tracing())
    assert hides_contexts(COLLECTOR)
    assert not hides_contexts(COLLECTOR.model_copy(update={"follow_callers": True}))
    assert "traceparent" in _removed(envoy_config(upstream, listen, RequestLimits(), untraced=True))
    assert "traceparent" not in _removed(envoy_config(upstream, listen, RequestLimits()))


def test_production_has_the_same_arguments(
    brim: Brim, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_repository").mkdir()
    (tmp_path / "services").mkdir()
    text = (checkout / "services" / "image_classifier.yaml").read_text()
    service = tmp_path / "services" / "image_classifier.yaml"
    monkeypatch.setenv("BRIM_ROOT", str(tmp_path))
    service.write_text(text)
    assert brim("trace", "--arguments")[:2] == (0, "")
    service.write_text(text + "\ntracing: {rate: 20}\n")
    done = brim("trace", "image_classifier", "--arguments")
    assert tuple(done.out.split()) == trace_arguments(Tracing(rate=20), Path("/tmp/brim-trace.json"))


def test_serve_makes_the_folder_that_triton_would_not(tmp_path: Path) -> None:
    project = Project(tmp_path)
    file = trace_place(project, Tracing())
    assert file is not None
    assert file.parent.is_dir()
    assert file.is_relative_to(project.cache)
    assert trace_place(project, COLLECTOR) is None
    assert trace_place(project, None) is None


def test_each_replica_writes_a_file_of_its_own(tmp_path: Path) -> None:
    options = ServerOptions(tracing=Tracing(), trace_file=tmp_path / "trace.json")
    wanted = Wanted(tmp_path, ["m"], tmp_path, {}, options, tmp_path)
    files = [wanted.server(name).options.trace_file for name in ("r1", "r2", "r3")]
    assert len(set(files)) == 3
    assert {file.parent for file in files if file} == {tmp_path}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"trace_mode": "opentelemetry"}, "collector"),
        ({"trace_mode": "triton", "trace_file": ""}, "without a file"),
        ({"trace_mode": "triton", "trace_file": "/nowhere/at/all/trace.json"}, "another machine"),
    ],
)
def test_a_server_that_cannot_be_followed_says_why(settings: dict[str, str], word: str) -> None:
    with pytest.raises(InputError, match=word):
        trace_file("127.0.0.1:8000", settings)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("trace",), "no service"),
        (("trace", "nobody"), "nobody"),
        (("trace", "image_classifier", "--requests", "10", "--request-id", "10"), "0 to 9"),
        (("trace", "image_classifier", "--gateway", "127.0.0.1:1"), "--url"),
        (("trace", "image_classifier", "--url", "127.0.0.1:1", "--gateway", "x"), "host:port"),
        (("trace", "image_classifier", "--requests", "0"), "--requests"),
        (("trace", "image_classifier", "--url", "127.0.0.1:1", "--out", "/dev/null/here"), "/dev/null"),
    ],
)
def test_wrong_input(
    brim: Brim, checkout: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], word: str
) -> None:
    monkeypatch.setenv("BRIM_ROOT", str(checkout))
    done = brim(*arguments)
    assert done.code == 2
    assert word in done.err
