"""Serve from NVIDIA's container image instead of the wheel: the same repository, the same ports, the native backends."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from brim.errors import MissingTool
from brim.server.canary import Tensors
from brim.server.child import ChildServer
from brim.server.options import ServerOptions
from brim.server.ports import choose_ports
from brim.server.tracing import trace_arguments

IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
CLUSTER_RELEASE = "25.05"
"""Release of the chart's images. Since 24.12 they have Python 3.12, which Brim needs; the vLLM backend's metrics came before."""
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
) -> list[str]:
    """The ``docker run`` command. The repository is mounted read-only; ports are published on the given host only."""
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
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nothing starts before the ``with`` block. Arguments as for ``EmbeddedServer``."""
        super().__init__(
            repository, models, log_file=log_file, canaries=canaries, options=options, on_progress=on_progress
        )
        self.image = image
        self.gpus = gpus
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
