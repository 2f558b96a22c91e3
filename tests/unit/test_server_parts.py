"""The parts of serving that need no server: ports, commands, notes of leftovers, logs, addresses, machine checks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from brim.errors import InputError, MissingTool, NoSpace, PortInUse
from brim.server import container, embedded, leftovers, machine, wheel
from brim.server.container import container_command, require_engine
from brim.server.embedded import ServerOptions, command_line
from brim.server.endpoint import endpoint_from_url
from brim.server.logs import bound_log, log_tail
from brim.server.ports import choose_ports

HOST = "127.0.0.1"


def test_chosen_ports_differ() -> None:
    ports = choose_ports(HOST, {"http": None, "grpc": None, "metrics": None})
    assert len(set(ports.values())) == 3


def test_taken_port_is_named_with_its_holder() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            PortInUse, match=rf"grpc port {port} on 127.0.0.1 is in use by .*\(pid {os.getpid()}\)"
        ) as error:
            choose_ports(HOST, {"http": None, "grpc": port})
    assert "--grpc-port" in error.value.hint


@pytest.mark.parametrize("given", [{"http": 0, "grpc": 70_000}, {"http": -1, "grpc": None}])
def test_port_out_of_range(given: dict[str, int | None]) -> None:
    with pytest.raises(InputError, match=r"expected 1\.\.65535"):
        choose_ports(HOST, given)


def test_one_port_for_two_is_refused() -> None:
    with pytest.raises(InputError, match="is given twice"):
        choose_ports(HOST, {"http": 8000, "grpc": 8000})


def test_command_loads_only_the_named_models_under_the_profile() -> None:
    command = command_line(
        Path("/t/tritonserver"),
        repository=Path("/r"),
        backends=Path("/b"),
        prefix="brim_1_",
        models=["a", "b"],
        ports={"http": 1, "grpc": 2, "metrics": 3},
        options=ServerOptions(profile="onnx-gpu", exit_timeout_s=7, extra_arguments=("--log-verbose=1",)),
    )
    assert [word for word in command if word.startswith("--load-model")] == ["--load-model=a", "--load-model=b"]
    assert {
        "--model-control-mode=explicit",
        "--model-config-name=onnx-gpu",
        "--exit-timeout-secs=7",
        "--log-verbose=1",
    } <= set(command)
    assert "--backend-config=python,shm-region-prefix-name=brim_1_" in command
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"} <= set(command)


def test_container_command_mounts_read_only_and_publishes_on_loopback(tmp_path: Path) -> None:
    command = container_command(
        name="brim-x",
        image="image:1",
        repository=tmp_path,
        models=["a"],
        ports={"http": 1, "grpc": 2, "metrics": 3},
        options=ServerOptions(profile="tensorrt"),
        gpus=True,
    )
    assert f"--volume={tmp_path.resolve()}:/models:ro" in command
    published = [word for word in command if word.startswith("--publish")]
    assert published == ["--publish=127.0.0.1:1:8000", "--publish=127.0.0.1:2:8001", "--publish=127.0.0.1:3:8002"]
    assert command.index("image:1") < command.index("tritonserver") < command.index("--model-config-name=tensorrt")
    assert "--gpus=all" in command


def test_adapters_in_a_container_import_this_environment(tmp_path: Path) -> None:
    imports = container.adapter_imports(container.IMAGE_PYTHON)
    assert all((folder / name).is_dir() for folder, name in zip(imports, ("brim", "numpy"), strict=False))
    command = container_command(
        name="x",
        image="image:1",
        repository=tmp_path,
        models=["a"],
        ports={"http": 1, "grpc": 2, "metrics": 3},
        options=ServerOptions(),
        gpus=False,
        imports=[tmp_path / "one", tmp_path / "two"],
    )
    image = command.index("image:1")
    assert {f"--volume={tmp_path / 'one'}:/adapters/0:ro", f"--volume={tmp_path / 'two'}:/adapters/1:ro"} < set(
        command[:image]
    )
    assert "--env=PYTHONPATH=/adapters/0:/adapters/1" in command[:image]
    assert not [word for word in command if word.startswith("--gpus")]


def test_another_python_than_the_image_s_is_refused() -> None:
    with pytest.raises(MissingTool, match=r"this is Python 3\.11, .* the image's 3\.12"):
        container.adapter_imports((3, 11))


def test_no_docker_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="docker is not installed"):
        require_engine()


def test_engine_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n", encoding="utf-8")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(MissingTool, match="Cannot connect to the daemon"):
        require_engine()


@pytest.mark.parametrize(
    ("url", "http"),
    [
        ("http://h:8000", "h:8000"),
        ("h:8000", "h:8000"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://h:8000/", "h:8000"),
    ],
)
def test_address_of_a_running_server(url: str, http: str) -> None:
    endpoint = endpoint_from_url(url)
    assert endpoint.http == http
    assert endpoint.grpc.endswith(":8001")


@pytest.mark.parametrize("url", ["https://h:8000", "http://h", "http://:8000", "http://h:port", "h:99999", ""])
def test_address_that_is_none(url: str) -> None:
    with pytest.raises(InputError):
        endpoint_from_url(url)


def sleeper(prefix: str) -> subprocess.Popen[bytes]:
    """A process that carries a prefix on its command line, as a stub does."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", prefix])


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Notes of this test only."""
    monkeypatch.setattr(leftovers, "notes_folder", lambda: tmp_path)
    return tmp_path


def test_server_of_a_living_owner_is_left_alone(notes: Path) -> None:
    prefix = leftovers.new_prefix()
    child = sleeper(prefix)
    try:
        leftovers.note_for(prefix, child.pid).write()
        assert leftovers.clear_stale() == []
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_who_lives_does_so_whatever_the_wall_clock_says(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = leftovers.new_prefix()
    child = sleeper(prefix)
    try:
        leftovers.note_for(prefix, child.pid).write()
        booted_s = psutil.boot_time()
        # psutil adds it to the start times that it tells; it is the wall clock's less the time since then.
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted_s + 3600)
        assert leftovers.clear_stale() == []
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_server_of_a_dead_owner_is_cleared_with_its_regions(notes: Path) -> None:
    prefix = leftovers.new_prefix()
    child, stub = sleeper(prefix), sleeper(f"{prefix}region")
    region = leftovers.SHM / f"{prefix}region"
    region.write_bytes(b"x")
    bystander = sleeper("brim_someone_else_")
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    try:
        leftovers.Note(prefix, owner.pid, 0, child.pid, leftovers.start_ticks(child.pid)).write()
        assert leftovers.clear_stale() == [prefix]
        assert not psutil.pid_exists(child.pid) and not psutil.pid_exists(stub.pid)
        assert not region.exists()
        assert list(notes.iterdir()) == []
        assert bystander.poll() is None
    finally:
        for process in (child, stub, bystander):
            process.kill()
            process.wait()
        region.unlink(missing_ok=True)


def test_reused_process_id_is_not_taken_for_the_server(notes: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        leftovers.Note("brim_gone_", 2**22 - 1, 0, child.pid, 12345).write()
        assert leftovers.clear_stale() == ["brim_gone_"]
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"prefix": 3}'])
def test_broken_note_is_removed_and_harms_nobody(notes: Path, text: str) -> None:
    (notes / "brim_x.json").write_text(text, encoding="utf-8")
    assert leftovers.clear_stale() == []
    assert list(notes.iterdir()) == []


def test_log_is_cut_to_its_newest_part(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %06d\n" % number for number in range(1000)))
    bound_log(log, limit_bytes=20_000)
    assert log.stat().st_size == 12_000
    bound_log(log, limit_bytes=4_000)
    assert log.stat().st_size == 1_000
    assert log.read_bytes().endswith(b"line 000999\n")


def test_log_tail_prefers_errors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fine\nan Error here\nfine again\n", encoding="utf-8")
    assert log_tail(log) == "an Error here"
    log.write_text("fine\nfine again\n", encoding="utf-8")
    assert log_tail(log, lines=1) == "fine again"
    assert log_tail(tmp_path / "missing") == ""


def test_full_shared_memory_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1024})())
    with pytest.raises(NoSpace, match="/dev/shm has 0 MiB free") as error:
        embedded.check_shared_memory()
    assert "--shm-size" in error.value.hint


def test_machine_that_cannot_serve_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(wheel.platform, "libc_ver", lambda: ("glibc", "2.31"))
        with pytest.raises(MissingTool, match=r"needs glibc 2\.35.*has glibc 2\.31"):
            wheel.find_wheel()
    with monkeypatch.context() as patch:
        patch.setattr(wheel.platform, "machine", lambda: "aarch64")
        with pytest.raises(MissingTool, match="aarch64"):
            wheel.find_wheel()
    with monkeypatch.context() as patch:
        patch.setattr(wheel, "running_python", lambda: "3.14")
        with pytest.raises(MissingTool, match=r"no stub for Python 3\.14"):
            wheel.find_wheel()
    with monkeypatch.context() as patch:
        patch.setattr(np, "__version__", "2.4.0")
        with pytest.raises(MissingTool, match=r"numpy 2\.4\.0"):
            wheel.find_wheel()


def test_backend_folder_is_made_once_and_whole(tmp_path: Path) -> None:
    found = wheel.find_wheel()
    folder = wheel.assemble(found, tmp_path)
    stub = folder / "python" / "triton_python_backend_stub"
    assert os.access(stub, os.X_OK)
    assert (folder / "python" / "libtriton_python.so").is_file()
    made = stub.stat().st_mtime_ns
    assert wheel.assemble(found, tmp_path) == folder
    assert stub.stat().st_mtime_ns == made
    assert [path for path in tmp_path.iterdir() if path != folder] == []


def test_doctor_sees_every_part_and_names_a_remedy_for_what_is_missing(tmp_path: Path) -> None:
    checks = {check.name: check for check in machine.look(tmp_path)}
    assert {"machine", "python", "tritonserver", "shared memory", "disk", "servers", "gpu", "docker"} == set(checks)
    assert all(check.remedy for check in checks.values() if check.state is not machine.State.OK)
    assert checks["tritonserver"].state is machine.State.OK
