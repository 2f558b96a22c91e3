"""Serve from NVIDIA's container image instead of the wheel: the same repository, the same ports, the native backends."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

import brim
from brim.errors import MissingTool
from brim.server.canary import Tensors
from brim.server.child import ChildServer
from brim.server.options import ServerOptions
from brim.server.ports import choose_ports
from brim.server.tracing import trace_arguments

REPOSITORY = "nvcr.io/nvidia/tritonserver"
RELEASE = "25.05"
"""Release of every image of NVIDIA's. Since 24.12 they have Python 3.12, which Brim needs; the vLLM backend's metrics came before."""
IMAGE_PYTHON = (3, 12)
IMPORTED_FROM = "/adapters"
"""Where a container has what its adapters import."""
IMAGE = f"{REPOSITORY}:{RELEASE}-py3"
VLLM_IMAGE = f"{REPOSITORY}:{RELEASE}-vllm-python-py3"
SDK_IMAGE = f"{REPOSITORY}:{RELEASE}-py3-sdk"
"""perf_analyzer and the client libraries."""
TENSORRT_IMAGE = f"nvcr.io/nvidia/tensorrt:{RELEASE}-py3"
"""trtexec, of the TensorRT that tritonserver's image of the same release loads engines with."""
ENGINE_TIMEOUT_S = 20
TRACES_INSIDE = Path("/traces")
INSIDE = {"http": 8000, "grpc": 8001, "metrics": 8002}


def container_command(
    *,
    name: str,
    image: str,
    repository: Path,
    models: Sequence[str],
    ports: Mapping[str, int],
    options: ServerOptions,
    gpus: bool,
    imports: Sequence[Path] = (),
) -> list[str]:
    """The ``docker run`` command. The repository is mounted read-only; ports are published on the given host only.

    ``imports`` are the folders from which the python backend's stubs import what is not in the image.
    """
    inside = [f"{IMPORTED_FROM}/{number}" for number, _ in enumerate(imports)]
    traces = options.trace_file
    published = [f"--publish={options.host}:{ports[key]}:{inside}" for key, inside in INSIDE.items()]
    return [
        "docker",
        "run",
        "--rm",
        f"--name={name}",
        "--init",
        "--shm-size=1g",
        "--ulimit=memlock=-1",
        *(["--gpus=all"] if gpus else []),
        *published,
        f"--volume={repository.resolve()}:/models:ro",
        *(f"--volume={folder.resolve()}:{place}:ro" for folder, place in zip(imports, inside, strict=True)),
        *([f"--env=PYTHONPATH={':'.join(inside)}"] if inside else []),
        *([f"--volume={traces.parent.resolve()}:{TRACES_INSIDE}"] if traces else []),
        image,
        "tritonserver",
        "--model-repository=/models",
        "--disable-auto-complete-config",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        f"--exit-timeout-secs={options.exit_timeout_s}",
        *([f"--model-config-name={options.profile}"] if options.profile else []),
        *trace_arguments(options.tracing, traces and TRACES_INSIDE / traces.name),
        *options.extra_arguments,
    ]


def adapter_imports(running: tuple[int, int] = sys.version_info[:2]) -> list[Path]:
    """Folders of this environment from which the adapters of a model repository import Brim and what it needs.

    Raises:
        MissingTool: this Python (``running``) is not the image's, so compiled packages would not load there.
    """
    if running != IMAGE_PYTHON:
        raise MissingTool(
            f"this is Python {running[0]}.{running[1]}, and the adapters run in the image's {IMAGE_PYTHON[0]}.{IMAGE_PYTHON[1]}: "
            "its stubs cannot load the packages of this environment",
            hint="make the environment with python3.12 (`make clean env PYTHON=python3.12`), or use docker compose",
        )
    return list(dict.fromkeys(Path(str(module.__file__)).resolve().parents[1] for module in (brim, np)))


def require_engine() -> None:
    """Check that a Docker engine answers.

    Raises:
        MissingTool: no ``docker`` command, or no engine behind it.
    """
    if shutil.which("docker") is None:
        raise MissingTool("docker is not installed", hint="install Docker, or serve with the embedded server")
    try:
        answer = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            text=True,
            timeout=ENGINE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingTool("the Docker engine does not answer", hint="start it, or use the embedded server") from error
    if answer.returncode:
        reason = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-1:]
        raise MissingTool(
            f"no Docker engine answers: {' '.join(reason)}", hint="start it, or serve with the embedded server"
        )


class ContainerServer(ChildServer):
    """A tritonserver in a container for as long as the ``with`` block lives."""

    def __init__(
        self,
        repository: Path,
        models: Sequence[str],
        *,
        log_file: Path,
        canaries: Mapping[str, Tensors | None] | None = None,
        options: ServerOptions | None = None,
        image: str = IMAGE,
        gpus: bool = True,
        adapters: bool = True,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing starts before the ``with`` block. Arguments as for ``EmbeddedServer``, and:

        Args:
            repository: see there.
            models: see there.
            log_file: see there.
            canaries: see there.
            options: see there.
            image: what is run.
            gpus: whether it gets the machine's GPUs.
            adapters: whether models in it import Brim, which the image does not have.
            on_progress: see there.
        """
        super().__init__(
            repository, models, log_file=log_file, canaries=canaries, options=options, on_progress=on_progress
        )
        self.image = image
        self.gpus = gpus
        self.adapters = adapters
        self.name = f"brim-{secrets.token_hex(4)}"
        self._process: subprocess.Popen[bytes] | None = None

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The ``docker run`` client."""
        return self._process

    def __enter__(self) -> Self:
        """Start the container and wait for every canary."""
        require_engine()
        options = self.options
        ports = choose_ports(options.host, options.given_ports)
        command = container_command(
            name=self.name,
            image=self.image,
            repository=self.repository,
            models=self.models,
            ports=ports,
            options=options,
            gpus=self.gpus,
            imports=adapter_imports() if self.adapters else (),
        )
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.on_progress(f"starting {self.image} (the first time it is pulled, which takes minutes)")
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._endpoint = self._answers_at(ports)
        try:
            self._wait_ready(self._endpoint, self.how_it_ended)
        except BaseException:
            self.stop()
            raise
        return self

    def how_it_ended(self) -> str | None:
        """None while the container runs, else one sentence with the log's place."""
        if self._process is None:
            return "the container is not running"
        status = self._process.poll()
        return None if status is None else f"docker run ended with status {status}; see {self.log_file}"

    def stop(self) -> None:
        """Stop and remove the container. Safe to call twice."""
        process, self._process, self._endpoint = self._process, None, None
        if process is None:
            return
        grace_s = self.options.exit_timeout_s + 5
        subprocess.run(
            ["docker", "stop", f"--time={grace_s}", self.name],
            capture_output=True,
            timeout=grace_s + ENGINE_TIMEOUT_S,
            check=False,
        )
        try:
            process.wait(ENGINE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(ENGINE_TIMEOUT_S)
