"""``brim doctor``: what this machine has and lacks, each with its remedy."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say, table_text
from brim.cli.system_errors import explained
from brim.config.files import differences
from brim.errors import BrimError
from brim.measure.launcher import ready_launcher
from brim.paths import Project, find_project
from brim.server.machine import Check, State, look
from brim.service.load import find_service, service_names
from brim_export.artifact import verify
from brim_export.service_export import out_folder

MARKS = {State.OK: "yes", State.ABSENT: "no", State.BROKEN: "BROKEN"}


def doctor(as_json: JsonFlag = False) -> int:
    """Explain what this machine and checkout have and lack. Exit 1 when something must be mended before serving."""
    project = find_project()
    checks = [*look(project.root), _perf_analyzer(project.cache)]
    checks += [_service(project, name) for name in service_names(project.services)]
    broken = [check for check in checks if check.state is State.BROKEN]
    if as_json:
        listed = [
            {"name": check.name, "state": check.state.value, "detail": check.detail, "remedy": check.remedy}
            for check in checks
        ]
        put_answer("doctor", {"checks": listed}, ok=not broken)
        return 1 if broken else 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        table.add_row(check.name, MARKS[check.state], check.detail)
        if check.remedy:
            table.add_row("", "", f"-> {check.remedy}")
    put(table_text(table))
    say(f"{len(broken)} to be mended first" if broken else "nothing stands in the way of `make up` and `make test`")
    return 1 if broken else 0


def _perf_analyzer(cache: Path) -> Check:
    launcher = ready_launcher(cache)
    if launcher is None:
        return Check("perf_analyzer", State.ABSENT, "not here yet", "`brim measure` fetches it on first use")
    return Check("perf_analyzer", State.OK, f"{launcher.version} ({launcher.origin.value})")


def _service(project: Project, name: str) -> Check:
    title = f"service {name}"
    try:
        service = find_service(project.services, name)
        stale = differences(project.model_repository, service)
    except BrimError as error:
        return Check(title, State.BROKEN, error.message, error.hint)
    except OSError as error:
        words = explained(error)
        return Check(title, State.BROKEN, words.message if words else str(error), words.hint if words else "")
    if stale:
        return Check(
            title, State.ABSENT, "its configuration is out of date", f"`brim config {name} --write`, or `make up`"
        )
    try:
        artifact = verify(out_folder(project, service))
    except BrimError as error:
        return Check(title, State.ABSENT, f"not exported: {error.message}", f"`brim export {name}`, or `make up`")
    return Check(title, State.OK, f"exported from {artifact.source.name}, {len(artifact.files)} files unharmed")
