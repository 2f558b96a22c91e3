"""``brim measure`` as a person or a script runs it: streams, files, wrong input, and no trace after a signal."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from brim.errors import CouldNotTell
from brim.measure.launcher import find_launcher
from brim.measure.point import Point, read_points
from brim.paths import Project
from brim.server import leftovers
from brim.server.embedded import EmbeddedServer
from brim.server.endpoint import Endpoint
from tests.conftest import Brim
from tests.server.doubler import SERVICE, make_project

PATIENCE_S = 240
QUICK = ("--window-ms", "200", "--max-trials", "3", "--stability-percent", "1000")
ROW = re.compile(r"^ *(\d+) callers? ", re.MULTILINE)


@pytest.fixture(scope="module")
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("project"))
    # The tools of the checkout are used, so that none is fetched again.
    made.cache.symlink_to(Project(checkout).cache_folder(), target_is_directory=True)
    try:
        find_launcher(made.cache)
    except CouldNotTell as error:
        pytest.skip(str(error))
    (made.services / "unserved.yaml").write_text(SERVICE.replace("doubler", "unserved"), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def endpoint(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    log_file = tmp_path_factory.mktemp("log") / "triton.log"
    with EmbeddedServer(project.model_repository, ["doubler"], cache=project.cache, log_file=log_file) as server:
        yield server.endpoint


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "brim", "measure", *arguments],
        env={**os.environ, "BRIM_ROOT": str(project.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def measure(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    child = start(project, *arguments)
    try:
        out, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


@pytest.fixture
def brim(project: Project, brim: Brim, monkeypatch: pytest.MonkeyPatch) -> Brim:
    """The command in this process, for what is refused before anything is started."""
    monkeypatch.setenv("BRIM_ROOT", str(project.root))
    return brim


def at(endpoint: Endpoint) -> tuple[str, ...]:
    return ("--url", endpoint.http, "--grpc-port", endpoint.grpc.rpartition(":")[2])


def test_own_server_table_picture_and_files(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = measure(project, "doubler", "--concurrency", "1,3", *QUICK, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    heading, *rows = done.stdout.splitlines()
    assert heading.split()[0] == "load"
    assert [ROW.match(row)[1] for row in rows] == ["1", "3"]
    assert len({len(line) for line in done.stdout.splitlines()}) == 1, "columns stand under their titles"
    assert [point.concurrency for point in read_points(folder)] == [1, 3]
    assert {path.name for path in folder.iterdir()} == {"measurements.jsonl", "measurements.svg", "raw", "rows.json"}
    assert str(folder / "measurements.svg") in done.stderr
    assert "doubler: closed loop, grpc" in (folder / "measurements.svg").read_text(encoding="utf-8")


def test_json_has_the_points_and_the_picture(project: Project, endpoint: Endpoint, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = measure(project, "doubler", *at(endpoint), "--rate", "200", *QUICK, "--out", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)["data"]
    assert [point["rate"] for point in data["points"]] == [200]
    assert data["points"] == [point.as_json() for point in read_points(folder)]
    assert data["folder"] == str(folder)
    assert Path(data["plot"]).read_text(encoding="utf-8").startswith("<?xml")
    assert "200/s" in done.stderr, "the row is shown beside the JSON"


def test_http_needs_no_grpc_port(project: Project, endpoint: Endpoint, tmp_path: Path) -> None:
    given = ("--url", f"http://{endpoint.http}", "--protocol", "http", "--concurrency", "2", *QUICK)
    done = measure(project, "doubler", *given, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [point.protocol for point in read_points(tmp_path)] == ["http"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "no service 'nope'"),
        (["doubler", "--concurrency", "0,-1,2.5"], "value 0.*value -1.*2.5: must be a whole number"),
        (["doubler", "--concurrency", "1,ten,2,x"], "'ten', 'x'"),
        (["doubler", "--concurrency", "nan"], "'nan'"),
        (["doubler", "--concurrency", ""], "a number is expected"),
        (["doubler", "--rate", "inf"], "'inf'"),
        (["doubler", "--rate", "0"], "value 0: must be above 0"),
        (["doubler", "--rate", ""], "a number is expected"),
        (["doubler", "--rate", "1", "--concurrency", "1"], "exclude each other"),
        (["doubler", "--window-ms", "0"], "--window-ms"),
        (["doubler", "--stability-percent", "nan"], "stability_percent nan"),
        (["doubler", "--max-trials", "2"], "--max-trials"),
        (["doubler", "--seed", "-1"], "--seed"),
        (["doubler", "--url", "127.0.0.1:1"], "127.0.0.1:1: no KServe v2 server"),
        (["doubler", "--url", "https://127.0.0.1:1"], "only http"),
        (["doubler", "--url", "127.0.0.1"], "expected host:port"),
        (["doubler", "--grpc-port", "1"], "--grpc-port without --url"),
        (["unserved"], r"unserved/config.pbtxt is missing(.|\n)*unserved/1/model.onnx is missing"),
    ],
)
def test_wrong_input_is_one_clear_error_and_leaves_nothing(
    brim: Brim, arguments: list[str], words: str, tmp_path: Path
) -> None:
    done = brim("measure", *arguments, "--out", tmp_path / "run")
    assert done.code == 2, done.err
    assert re.search(words, done.err), done.err
    assert "hint:" in done.err and "Traceback" not in done.err
    assert done.out == ""
    assert not (tmp_path / "run").exists()


def test_server_that_cannot_be_measured(brim: Brim, endpoint: Endpoint, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "run"))
    unknown = brim("measure", "unserved", *at(endpoint), *out)
    assert (unknown.code, "unserved" in unknown.err) == (2, True)
    no_grpc = brim("measure", "doubler", "--url", endpoint.http, "--grpc-port", "1", *out)
    assert (no_grpc.code, "--grpc-port" in no_grpc.err) == (2, True)
    for address in (endpoint.grpc, endpoint.metrics):
        other = brim("measure", "doubler", "--url", str(address), *out)
        assert (other.code, "no KServe v2 server" in other.err) == (2, True), other.err
    assert not (tmp_path / "run").exists()


@contextmanager
def web_server(body: bytes) -> Iterator[str]:
    """Something that speaks HTTP and is no model server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b'{"name": "x"}', b"", b"\xff\xfe\x00"])
def test_web_server_that_is_no_model_server(brim: Brim, body: bytes, tmp_path: Path) -> None:
    with web_server(body) as address:
        done = brim("measure", "doubler", "--url", address, "--out", tmp_path / "run")
    assert done.code == 2, done.err
    assert "no KServe v2 server" in done.err
    assert "Traceback" not in done.err


def test_run_folder_that_cannot_be_one(brim: Brim, endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for name in ("rows.json", "measurements.jsonl"):
        (tmp_path / f"with-{name}" / name).mkdir(parents=True)
    (tmp_path / "with-raw").mkdir()
    (tmp_path / "with-raw" / "raw").touch()
    for folder in (file, file / "below", *sorted(tmp_path.glob("with-*"))):
        done = brim("measure", "doubler", *at(endpoint), "--concurrency", "1", *QUICK, "--out", folder)
        assert done.code == 2, (folder, done.err)
        assert f"the run folder {folder} cannot be used" in done.err
        assert "Traceback" not in done.err


def until(condition: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come")
        time.sleep(0.02)


THREE = ("doubler", "--concurrency", "1,2,3", *QUICK)


def interrupted(project: Project, number: signal.Signals, folder: Path) -> list[Point]:
    """What is kept of a run of three points that a signal ends at its second; nothing else of it is left."""
    child = start(project, *THREE, "--out", str(folder))
    try:
        console = folder / "raw" / "concurrency-2-1" / "stdout.txt"
        until(lambda: child.poll() is not None or (console.is_file() and console.stat().st_size), "the second point")
        started = psutil.Process(child.pid).children(recursive=True)
        assert len(started) >= 3, "the server, its stub and the generator are there to be ended"
        assert leftovers.regions_of(f"brim_{child.pid}_"), "the check below would prove nothing"
        child.send_signal(number)
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 130
    assert [process for process in started if process.is_running()] == []
    assert leftovers.regions_of(f"brim_{child.pid}_") == []
    assert list(leftovers.notes_folder().glob(f"brim_{child.pid}_*")) == []
    kept = read_points(folder)
    assert [point.concurrency for point in kept] in ([1], [1, 2])
    assert f"interrupted: {len(kept)} of 3 points are kept in {folder}" in err
    assert "Traceback" not in err
    return kept


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_stops_it_without_a_trace(project: Project, number: signal.Signals, tmp_path: Path) -> None:
    interrupted(project, number, tmp_path)


def test_an_interrupted_run_goes_on_later(project: Project, tmp_path: Path) -> None:
    kept = interrupted(project, signal.SIGINT, tmp_path)
    again = measure(project, *THREE, "--out", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert ROW.findall(again.stdout) == ["1", "2", "3"]
    assert "at concurrency 1\n" not in again.stderr
    points = read_points(tmp_path)
    assert [point.concurrency for point in points] == [1, 2, 3]
    assert points[: len(kept)] == kept


def test_a_signal_against_a_running_server_leaves_that_server_alone(
    project: Project, endpoint: Endpoint, tmp_path: Path
) -> None:
    given = ("doubler", *at(endpoint), "--concurrency", "1", "--window-ms", "20000", "--out", str(tmp_path))
    child = start(project, *given)
    try:
        console = tmp_path / "raw" / "concurrency-1-1" / "stdout.txt"
        until(lambda: child.poll() is not None or (console.is_file() and console.stat().st_size), "the load")
        started = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE_S)
    finally:
        child.kill()
    assert child.returncode == 130
    assert started
    assert [process for process in started if process.is_running()] == []
    assert read_points(tmp_path) == []
    assert (
        measure(project, "doubler", *at(endpoint), "--concurrency", "1", *QUICK, "--out", str(tmp_path)).returncode == 0
    )
