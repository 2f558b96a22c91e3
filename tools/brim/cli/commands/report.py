"""``brim report``: a run folder as one page with plots, and as a summary in Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.output import put, put_answer, say
from brim.errors import InputError, MissingTool, ServiceFileError
from brim.measure.accounting import Objective
from brim.paths import find_project
from brim.service.load import find_service
from brim.units import ms_to_us

if TYPE_CHECKING:
    from brim.report.run_folder import Documents

PAGE_NAME = "report.html"
MARKDOWN_NAME = "report.md"
PERCENTILE = 99.0


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of `brim sweep`, `measure`, `tune`, `load`, `isolate`, `bench` or `soak`."
        ),
    ],
    slo_ms: Annotated[
        float | None, typer.Option(help="Latency of the SLO, instead of what choice.json or the service file says.")
    ] = None,
    percentile: Annotated[float | None, typer.Option(help=f"Of --slo-ms; {PERCENTILE:g} when absent.")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for {PAGE_NAME} and {MARKDOWN_NAME}; RUN when absent.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Show a run: one HTML page with plots that needs nothing else, and a Markdown summary."""
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
        raise MissingTool(
            f"no picture can be drawn: {error}", hint="pip install 'brim[report]' brings what the report needs"
        ) from error
    from brim.report.markdown import markdown
    from brim.report.page import page

    built = build_report(documents, objective, source=source)
    folder = run if out is None else out
    files = _write(folder, {PAGE_NAME: page(built), MARKDOWN_NAME: markdown(built, page=PAGE_NAME)})
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


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    """Each file whole or not at all.

    Raises:
        InputError: the folder cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder", hint="--out wants a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        part = folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / name)
    return [folder / name for name in texts]
