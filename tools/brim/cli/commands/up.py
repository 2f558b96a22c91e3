"""``brim up``: from a checkout to served models with proven answers, in one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.clients import curl_line, python_lines
from brim.cli.commands.export import put_gates
from brim.cli.commands.serve import (
    BOUNDS,
    Port,
    canaries,
    gateway_before,
    log_folder,
    new_log,
    require_artifacts,
    stop_on_signal,
    trace_place,
)
from brim.cli.commands.serve_replicas import (
    BalanceOption,
    Picks,
    PicksOption,
    ReplicaCount,
    Wanted,
    fleet_of,
    look_after,
    picker_of,
    plan_picker,
)
from brim.cli.output import people, put, put_answer, say
from brim.cli.self_check import Verdict, self_check
from brim.cli.status_line import StatusLine
from brim.cli.text_clients import text_curl_lines, text_python_lines
from brim.cli.text_self_check import text_self_check
from brim.config.files import write_configs
from brim.config.generate import Profile
from brim.errors import AnswerIsNo, ServerFailed
from brim.findings import Severity
from brim.gateway.replicas import Balance
from brim.lint import lint_paths
from brim.paths import Project, find_project
from brim.server.embedded import EmbeddedServer, ServerOptions
from brim.server.endpoint import NO_ANSWER, Endpoint
from brim.server.logs import log_tail
from brim.server.tracing import asked_of
from brim.server.watch import watch
from brim.service.load import find_services
from brim.service.schema import Service
from brim_export.language_model_record import LanguageModelRecord
from brim_export.service_export import VERSION, export_service


def up(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Services; all when none.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the self-check.")] = False,
    http_port: Port = None,
    grpc_port: Port = None,
    metrics_port: Port = None,
    replicas: ReplicaCount = 1,
    balance: BalanceOption = Balance.LEAST_REQUEST,
    picks: PicksOption = Picks.TEXTS,
    as_json: JsonFlag = False,
) -> int:
    """Export, configure, serve and check every service; then stay up until Ctrl-C."""
    project = find_project()
    services = find_services(project.services, names or [])
    tracing = asked_of(services)
    options = ServerOptions(
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        tracing=tracing,
        trace_file=trace_place(project, tracing),
    )
    verdicts: list[Verdict] = []
    with stop_on_signal():
        _prepare(project, services)
        say("[4/5] serving")
        models = [service.name for service in services]
        if replicas > 1:
            logs = log_folder(project, "replicas")
            wanted = Wanted(project.model_repository, models, project.cache, canaries(services), options, logs)
            plan = plan_picker(picks, services)
            fleet_is = fleet_of(wanted, replicas, services=services, bounds=BOUNDS, balance=balance, plan=plan)
            with fleet_is as fleet, ExitStack() as stack:
                say("[5/5] self-check: real requests to every replica, every answer compared")
                for replica in (one for one in fleet.replicas if one.endpoint is not None):
                    say(f"      {replica.name}")
                    verdicts += _all_checked(project, replica.server, services)
                first = fleet.first.server.endpoint
                front = stack.enter_context(gateway_before(first, project, services, replicas=fleet.for_gateway))
                fleet.gateway = front
                fleet.tick()
                picker = stack.enter_context(picker_of(plan, fleet, front, new_log(project, "picker")))
                if _goes_on(front.endpoint, services, verdicts, once=once, as_json=as_json):
                    say("Ctrl-C stops it; `brim replicas` shows the replicas, and drains one")
                    look_after(fleet, front, picker)
        else:
            with EmbeddedServer(
                project.model_repository,
                models,
                cache=project.cache,
                log_file=new_log(project),
                canaries=canaries(services),
                options=options,
                on_progress=lambda text: say(f"      {text}"),
            ) as server:
                say("[5/5] self-check: real requests, every answer compared")
                verdicts += _all_checked(project, server, services)
                if _goes_on(server.endpoint, services, verdicts, once=once, as_json=as_json):
                    _stay(server, services)
    if as_json:
        put_answer("up", {"self_check": [_as_json(verdict) for verdict in verdicts]}, ok=all(v.ok for v in verdicts))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _all_checked(project: Project, server: EmbeddedServer, services: Sequence[Service]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for service in services:
        found = _checked(project, server, service)
        verdicts += found
        for verdict in found:
            say(f"      {_line(verdict)}")
            for fault in verdict.faults:
                say(f"        {fault}")
    return verdicts


def _goes_on(
    endpoint: Endpoint, services: Sequence[Service], verdicts: Sequence[Verdict], *, once: bool, as_json: bool
) -> bool:
    """Tell how it is asked; whether it stays up."""
    wrong = [verdict for verdict in verdicts if not verdict.ok]
    if not as_json:
        _show_clients(endpoint, services)
    if once or wrong:
        say(
            "the self-check found wrong answers; stopping"
            if wrong
            else "every answer was right; stopping, as --once asks"
        )
        return False
    return True


def _checked(project: Project, server: EmbeddedServer, service: Service) -> list[Verdict]:
    try:
        if service.generation is not None:
            record = LanguageModelRecord.load(project.model_repository / service.name / VERSION)
            return text_self_check(server.endpoint, service, record)
        return self_check(server.endpoint, service)
    except NO_ANSWER as error:
        raise ServerFailed(
            f"{service.name}: {server.how_it_ended() or 'tritonserver runs'}, and its statistics cannot be read: {error}\n"
            f"the end of {server.log_file}:\n{log_tail(server.log_file)}",
            hint="start it again; `brim serve` starts a server anew that has ended",
        ) from error


def _prepare(project: Project, services: Sequence[Service]) -> None:
    """Export, configure and lint.

    Raises:
        AnswerIsNo: a gate refused or the linter found an error.
    """
    for service in services:
        say(f"[1/5] export {service.name}")
        result = export_service(project, service, on_progress=lambda text: say(f"      {text}"))
        if result is None:
            say("      up to date")
        elif not result.ok:
            put_gates(result.gates)
            raise AnswerIsNo(
                f"{service.name}: a gate refused; an earlier export is left as it was",
                hint=f"change the model as the refusal says, then `brim export {service.name}` tries it alone",
            )
    say("[2/5] configurations")
    for service in services:
        for path in write_configs(project.model_repository, service):
            say(f"      wrote {path.relative_to(project.root)}")
    say("[3/5] lint")
    findings = [
        finding for service in services for finding in lint_paths([_shown(project.model_repository / service.name)])
    ]
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    for finding in errors:
        say(f"      {finding.render()}")
    say(f"      {len(errors)} errors; {len(findings) - len(errors)} warnings, which `brim lint model_repository` shows")
    if errors:
        raise AnswerIsNo("the linter found errors in the generated configuration", hint="change the service file")
    require_artifacts(project, services, Profile.DEFAULT)


def _shown(path: Path) -> Path:
    """The path as a person in the working directory would write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _line(verdict: Verdict) -> str:
    sizes = ", ".join(f"{count}x{size}" for size, count in sorted(verdict.executions_by_size.items()))
    callers = "alone" if verdict.callers == 1 else f"{verdict.callers} at once"
    batches = f"; batches: {sizes}" if sizes else ""
    return (
        f"{verdict.service} {verdict.protocol:4} {callers:11} {verdict.right}/{verdict.asked} right "
        f"(against {verdict.reference}){batches}"
    )


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "service": verdict.service,
        "protocol": verdict.protocol,
        "callers": verdict.callers,
        "asked": verdict.asked,
        "right": verdict.right,
        "faults": verdict.faults,
        "executions_by_size": verdict.executions_by_size,
        "reference": verdict.reference,
    }


def _show_clients(endpoint: Endpoint, services: Sequence[Service]) -> None:
    put(f"\nHTTP     http://{endpoint.http}\ngRPC     {endpoint.grpc}\nmetrics  http://{endpoint.metrics}/metrics")
    for service in services:
        lines = curl_line if service.generation is None else text_curl_lines
        put(f"\n# {service.name}: curl\n{lines(endpoint, service)}")
    for service in services:
        if service.generation is not None:
            put(f"\n# {service.name}: tritonclient, gRPC stream\n{text_python_lines(endpoint, service)}")
    batched = [service for service in services if service.generation is None]
    if not batched:
        return
    shortest = min(batched, key=lambda service: len(curl_line(endpoint, service)))
    put(f"\n# {shortest.name}: tritonclient, gRPC\n{python_lines(endpoint, shortest, asynchronous=False)}")
    put(
        f"\n# {shortest.name}: tritonclient, HTTP with asyncio\n{python_lines(endpoint, shortest, asynchronous=True)}\n"
    )


def _stay(server: EmbeddedServer, services: Sequence[Service]) -> None:
    say("Ctrl-C stops it")
    names = [service.name for service in services]
    if not sys.stderr.isatty():
        watch(server)
    with people.status("") as status:
        line = StatusLine(server.endpoint, names, status.update)
        watch(server, every=line.tick)
