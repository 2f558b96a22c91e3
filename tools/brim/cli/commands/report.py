"""``brim report``: a run folder as one page with plots, and as a summary in Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.live_places import (
    LEAST_INTERVAL_S,
    MOST_INTERVAL_S,
    ONCE_INTERVAL_S,
    GatewayOption,
    MetricsOption,
)
from brim.cli.commands.report_live import (
    MARKDOWN_NAME,
    PAGE_NAME,
    RUNNING,
    Live,
    draw_page,
    no_pictures,
    report_live,
    write_files,
)
from brim.cli.output import put, put_answer, say
from brim.errors import InputError, ServiceFileError
from brim.measure.accounting import Objective
from brim.paths import find_project
from brim.service.load import find_service
from brim.units import ms_to_us

if TYPE_CHECKING:
    from brim.report.run_folder import Documents

PERCENTILE = 99.0


def report(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]", help="Folder of `brim sweep`, `measure`, `tune`, `load`, `isolate`, `bench` or `soak`."
        ),
    ] = None,
    slo_ms: Annotated[
        float | None, typer.Option(help="Latency of the SLO, instead of what choice.json or the service file says.")
    ] = None,
    percentile: Annotated[float | None, typer.Option(help=f"Of --slo-ms; {PERCENTILE:g} when absent.")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for {PAGE_NAME} and {MARKDOWN_NAME}; RUN when absent.")
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help=f"Of a server that runs, once for each, in place of RUN; `{RUNNING}`: of the one that runs here; or a file "
            "of `brim top --record`.",
        ),
    ] = None,
    metrics: MetricsOption = None,
    gateway_admin: GatewayOption = None,
    interval_s: Annotated[
        float,
        typer.Option(min=LEAST_INTERVAL_S, max=MOST_INTERVAL_S, help="With --live: between the two looks."),
    ] = ONCE_INTERVAL_S,
    refresh_s: Annotated[
        int | None,
        typer.Option(
            min=1, max=3600, help="With --live: write the page anew so often, until Ctrl-C; it reloads itself."
        ),
    ] = None,
    duration_s: Annotated[
        float | None, typer.Option(min=1, max=86_400 * 30, help="With --refresh-s: end after that.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="The top of the page as a browser shows it.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Show a run, or with --live what runs now: one HTML page that needs nothing else, and a Markdown summary."""
    if (run is None) is (not live):
        raise InputError("give either RUN or --live", hint="`brim report --help` shows what it takes")
    if picture is not None and picture.suffix != ".png":
        raise InputError(f"--picture {picture}: its name ends in .png", hint=f"such as {picture.with_suffix('.png')}")
    if run is None:
        if slo_ms is not None or percentile is not None:
            raise InputError("--slo-ms or --percentile with --live", hint="the services' own SLOs are shown")
        servers = live or []
        looked_at = Live(servers, metrics or [], gateway_admin, interval_s, refresh_s, duration_s, out, picture)
        return report_live(looked_at, as_json=as_json)
    if metrics or gateway_admin or refresh_s is not None or duration_s is not None:
        raise InputError(
            "--metrics, --gateway-admin, --refresh-s and --duration-s are of --live", hint="leave them out"
        )
    if percentile is not None and slo_ms is None:
        raise InputError("--percentile without --slo-ms", hint="both together are an SLO")
    given = None
    if slo_ms is not None:
        given = Objective(percentile=PERCENTILE if percentile is None else percentile, latency_us=ms_to_us(slo_ms))
    # Reading comes before matplotlib, which takes a moment to import.
    from brim.report.run_folder import read_run

    documents = read_run(run)
    objective, source = (given, "--slo-ms") if given is not None else _objective(documents)
    try:
        from brim.report.build import build_report
    except ImportError as error:
        raise no_pictures(error) from error
    from brim.report.markdown import markdown
    from brim.report.page import page

    built = build_report(documents, objective, source=source)
    folder = run if out is None else out
    files = write_files(folder, {PAGE_NAME: page(built), MARKDOWN_NAME: markdown(built, page=PAGE_NAME)})
    files += draw_page(files[0], picture)
    if as_json:
        put_answer("report", {"files": [str(path) for path in files], "sections": [one.id for one in built.sections]})
    else:
        for warning in built.warnings:
            say(f"warning: {warning}")
        say(built.verdict)
        for path in files:
            put(str(path))
    return 0


def _objective(documents: Documents) -> tuple[Objective | None, str]:
    """The SLO that the tuning had, else the service file's; None when there is neither. And where it comes from."""
    choice = documents.choice
    if choice is not None:
        return Objective(percentile=choice.slo.percentile, latency_us=choice.slo.latency_us), "choice.json"
    # A run of the open-loop driver was held against this; the service file may have changed since.
    counted = {(point.slo.percentile, point.slo.latency_us) for point in documents.open_points if point.slo is not None}
    if len(counted) == 1 and not documents.points:
        ((percentile, latency_us),) = counted
        return Objective(percentile=percentile, latency_us=latency_us), "openloop.jsonl"
    if documents.load_test is not None and not documents.points and not documents.open_points:
        return documents.load_test.objective, "loadtest.json"
    if documents.overload is not None and not documents.every_point:
        return documents.overload.objective, "bench.json"
    models = {point.model for point in documents.every_point}
    if documents.asked is not None:
        models.add(documents.asked.model)
    if documents.interrupted is not None:
        models.add(documents.interrupted.service)
    if len(models) != 1:
        return None, "there are several models" if models else "no measurement tells its model"
    (model,) = models
    try:
        service = find_service(find_project().services, model)
    except ServiceFileError:
        raise
    except InputError as error:
        # A run folder can be looked at anywhere; it is only shown without an SLO.
        return None, f"give --slo-ms: {error.message}"
    slo = service.slo
    return Objective(percentile=slo.percentile, latency_us=ms_to_us(slo.latency_ms)), f"services/{model}.yaml"
