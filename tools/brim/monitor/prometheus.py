"""A Prometheus of one's own on loopback: started, asked and ended, with bounded storage."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from brim.errors import CouldNotTell, InputError, ServerFailed
from brim.measure.attempt import clean_environment
from brim.monitor.programs import Program, find_program
from brim.parent import die_with_parent
from brim.server.endpoint import LOOPBACK
from brim.server.logs import bound_log, log_tail
from brim.server.ports import choose_ports
from brim.server.program import end_program

CONFIG_FILE, LOG_FILE, DATA_FOLDER = "prometheus.json", "prometheus.log", "data"
RETENTION = "6h"
MOST_STORED, WAL_SEGMENT = "256MB", "10MB"
"""Of samples in blocks; what has come in the last two hours is held in memory and in the log of segments before that."""
QUERY_TIMEOUT_S = 20
MOST_QUERIES, MOST_CONNECTIONS = 4, 64
READY_TIMEOUT_S, ANSWER_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 30.0, 15.0
POLL_S = 0.05
LONGEST_ANSWER_BYTES = 64 << 20

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an answer, and its value at the moment of the query. NaN and infinities pass through."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Alert:
    """One that is not inactive.

    Attributes:
        name: of its rule.
        state: ``pending`` or ``firing``.
        labels: without the name.
    """

    name: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """One page that is read: ``health`` is ``up``, ``down`` or ``unknown`` before the first time; ``error`` says why."""

    job: str
    instance: str
    health: str
    error: str


def start(
    config: Document,
    folder: Path,
    *,
    cache: Path,
    port: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Prometheus:
    """Start one and wait until it answers. It ends with ``stop()``, with its ``with`` block, or with this process.

    Start it from a thread that lives as long as it shall.

    Args:
        config: ``prometheus.yml`` as a mapping; paths of ``rule_files`` are absolute, or relative to ``folder``.
        folder: for its configuration, its log and its data; made if it is not there.
        cache: the project's cache, where the program is kept.
        port: chosen by the system when absent.
        on_progress: told what is happening while the program is fetched.

    Raises:
        MissingTool: there is no Prometheus, and none can be fetched.
        ServerFailed: it does not start, for its own reasons: a fault of the configuration, mostly.
    """
    program = find_program(Program.PROMETHEUS, cache, on_progress=on_progress)
    chosen = choose_ports(LOOPBACK, {"prometheus": port})["prometheus"]
    running = Prometheus(program, config, folder, f"{LOOPBACK}:{chosen}")
    try:
        running.wait_ready()
    except BaseException:
        running.stop()
        raise
    return running


def scrape_config(jobs: Mapping[str, str], *, every_s: float = 1.0, rules: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A configuration that reads one page a job.

    Args:
        jobs: ``job`` -> ``host:port`` whose ``/metrics`` is read.
        every_s: between two readings, and between two evaluations of rules that do not say themselves.
        rules: rule files.
    """
    every = f"{round(every_s * 1_000)}ms"
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path.absolute()) for path in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in jobs.items()
        ],
    }


class Prometheus:
    """One that runs; ``start`` makes it."""

    def __init__(self, program: Path, config: Document, folder: Path, address: str) -> None:
        """Start the process."""
        self.address, self.folder = address, folder
        self.log_file = folder / LOG_FILE
        folder.mkdir(parents=True, exist_ok=True)
        self._write(config)
        command = [
            *(str(program), f"--config.file={folder / CONFIG_FILE}", f"--web.listen-address={address}"),
            *("--web.enable-lifecycle", f"--web.max-connections={MOST_CONNECTIONS}"),
            *(f"--storage.tsdb.path={folder / DATA_FOLDER}", f"--storage.tsdb.retention.time={RETENTION}"),
            *(f"--storage.tsdb.retention.size={MOST_STORED}", f"--storage.tsdb.wal-segment-size={WAL_SEGMENT}"),
            *(f"--query.timeout={QUERY_TIMEOUT_S}s", f"--query.max-concurrency={MOST_QUERIES}", "--log.level=warn"),
        ]
        with self.log_file.open("ab") as log:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )

    def __enter__(self) -> Self:
        """Already running."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self.stop()

    @property
    def url(self) -> str:
        """Base of its pages and its API."""
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        """Id of its process. Only while it runs."""
        if self._process is None:
            raise ServerFailed("Prometheus is not running", hint="start it with brim.monitor.prometheus.start")
        return self._process.pid

    def query(self, expression: str) -> list[Sample]:
        """What an expression is now: its series, or one sample without labels for a scalar.

        Raises:
            InputError: Prometheus does not take the expression; says why.
            CouldNotTell: it does not answer.
        """
        data = self._api("query", {"query": expression})
        kind, result = data["resultType"], data["result"]
        if kind == "scalar":
            return [Sample({}, float(result[1]))]
        if kind != "vector":
            raise InputError(f"{expression}: is a {kind}, expected a vector or a scalar", hint="use an instant query")
        return [Sample(dict(one["metric"]), float(one["value"][1])) for one in result]

    def value(self, expression: str) -> float | None:
        """The one value of an expression; None where it has none, or NaN.

        Raises:
            InputError: it is wrong, or has several series.
            CouldNotTell: Prometheus does not answer.
        """
        samples = self.query(expression)
        if len(samples) > 1:
            raise InputError(
                f"{expression}: {len(samples)} series, expected one: {[dict(one.labels) for one in samples]}",
                hint="name the labels, or sum over them",
            )
        return samples[0].value if samples and not math.isnan(samples[0].value) else None

    def alerts(self) -> list[Alert]:
        """Those that are pending or firing.

        Raises:
            CouldNotTell: Prometheus does not answer.
        """
        found = self._api("alerts")["alerts"]
        return [
            Alert(
                one["labels"]["alertname"],
                one["state"],
                {key: value for key, value in one["labels"].items() if key != "alertname"},
            )
            for one in found
        ]

    def rule_faults(self) -> list[str]:
        """Rules whose last evaluation failed, with the reason.

        Raises:
            CouldNotTell: Prometheus does not answer.
        """
        rules = [rule for group in self._api("rules")["groups"] for rule in group["rules"]]
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]

    def targets(self) -> list[Target]:
        """The pages that it reads.

        Raises:
            CouldNotTell: Prometheus does not answer.
        """
        return [
            Target(one["labels"]["job"], one["labels"]["instance"], one["health"], one["lastError"])
            for one in self._api("targets", {"state": "active"})["activeTargets"]
        ]

    def reload(self, config: Document | None = None) -> None:
        """Read the configuration and the rules anew.

        Args:
            config: takes the place of the old one; None where only rule files have changed.

        Raises:
            InputError: it does not take them; the old ones stay in force.
            CouldNotTell: it does not answer.
        """
        if config is not None:
            self._write(config)
        status, text = self._ask("/-/reload", b"")
        if status != 200:
            raise InputError(
                f"Prometheus does not take the configuration: {text.strip()}\n{log_tail(self.log_file)}",
                hint="`promtool check config FILE` says more",
            )

    def how_it_ended(self) -> str | None:
        """None while it runs, else one sentence."""
        status = self._process.poll() if self._process else "unknown"
        return None if status is None else f"Prometheus ended with status {status}"

    def wait_ready(self) -> None:
        """Wait until it answers.

        Raises:
            ServerFailed: it ended, or took too long.
        """
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            ended = self.how_it_ended()
            if ended or time.monotonic() > deadline_s:
                state = ended or f"Prometheus was not ready after {READY_TIMEOUT_S:g} s"
                raise ServerFailed(
                    f"{state}\nthe end of {self.log_file}:\n{log_tail(self.log_file)}",
                    hint="is there a fault in its configuration or in a rule file? promtool checks both",
                )
            try:
                if self._ask("/-/ready")[0] == 200:
                    return
            except CouldNotTell:
                pass
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            end_program(process, STOP_TIMEOUT_S)

    def _write(self, config: Document) -> None:
        # JSON is YAML.
        (self.folder / CONFIG_FILE).write_text(json.dumps(config, indent=1), encoding="utf-8")

    def _api(self, path: str, form: Mapping[str, str] | None = None) -> Any:
        bound_log(self.log_file)
        # Only queries are taken as a form, which has no bound on its length.
        as_form = path == "query"
        address = f"/api/v1/{path}" if as_form or not form else f"/api/v1/{path}?{urlencode(form)}"
        status, text = self._ask(address, urlencode(form or {}).encode() if as_form else None)
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise CouldNotTell(
                f"{self.url}{path}: {status}, and no JSON: {text[:200]}", hint="is it Prometheus?"
            ) from error
        if answer.get("status") != "success":
            raise InputError(
                f"{(form or {}).get('query', path)}: {answer.get('error', text[:200])}",
                hint="Prometheus says what it does not take",
            )
        return answer["data"]

    def _ask(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", body, timeout=ANSWER_TIMEOUT_S) as answer:
                return answer.status, answer.read(LONGEST_ANSWER_BYTES).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read(LONGEST_ANSWER_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise CouldNotTell(
                f"{self.url}: {error}", hint=f"is Prometheus still there? see {self.log_file}"
            ) from error
