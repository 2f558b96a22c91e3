"""What a run folder holds, read whole: every fault of every file at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from brim.errors import InputError
from brim.isolation.record import JSON_NAME as ISOLATION_FILE
from brim.isolation.record import PAGE_NAME as ISOLATION_PAGE
from brim.measure.asked import FILE_NAME as ASKED_FILE
from brim.measure.asked import Asked
from brim.measure.open_point import FILE_NAME as OPEN_FILE
from brim.measure.open_point import OpenPoint
from brim.measure.plan import Mode
from brim.measure.point import FILE_NAME as POINTS_FILE
from brim.measure.point import Point
from brim.measure.sweep import Settings
from brim.measure.sweep_run import CONFIGURATIONS_FILE, FAILURES_FILE
from brim.measure.text.perf_stream import FILE_NAME as STREAM_CHECKS_FILE
from brim.measure.text.perf_stream import StreamCheck
from brim.measure.text.point import FILE_NAME as TEXT_FILE
from brim.measure.text.point import TextPoint
from brim.report.bench_result import FILE_NAME as BENCH_FILE
from brim.report.bench_result import BenchFile, Comparison, OtherBenchmark
from brim.report.choice import FILE_NAME as CHOICE_FILE
from brim.report.choice import Choice, ChoiceFile, Interrupted, TuneRun
from brim.report.isolation_result import Isolation
from brim.report.load_test import FILE_NAME as LOAD_TEST_FILE
from brim.report.load_test import LoadTest
from brim.report.overload_result import Overload
from brim.report.precision_result import Precisions
from brim.report.simulation_check import FILE_NAME as SIMULATION_FILE
from brim.report.simulation_check import SimulationCheck
from brim.report.soak_result import FILE_NAME as SOAK_FILE
from brim.report.soak_result import Sample, Soak, out_of_order
from brim.report.text_choice import TextChoice
from brim.soak.sample import FILE_NAME as SAMPLES_FILE

KNOWN = (
    *(POINTS_FILE, OPEN_FILE, ASKED_FILE, CHOICE_FILE, SIMULATION_FILE, LOAD_TEST_FILE, ISOLATION_FILE),
    *(BENCH_FILE, SOAK_FILE, SAMPLES_FILE, TEXT_FILE),
)
"""Files that make a section. configurations.json says only what the points are of, and failures.jsonl why some are not."""
MOST_BYTES = 128 * 1024**2
"""Of one file. A measured point is about 2 KB, so this is room for some 60,000 of them."""
MOST_FAULTS = 20
"""That are told of one file."""
MOST_SHOWN = 60
"""Characters of a wrong value."""
LITERALS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")

T = TypeVar("T")


class FailedLoad(BaseModel):
    """What a sweep could not measure: ``brim.measure.sweep_run.Failure``. Without a load it is the whole configuration."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    load: str
    message: str


@dataclass(frozen=True, slots=True)
class Documents:
    """A run folder's contents. What is not there is empty or None.

    Attributes:
        name: of the folder.
        points: of ``brim sweep`` or ``brim measure``, in the order of the file.
        runs: of ``brim tune``, in the order of the file.
        open_points: of ``brim measure --open-loop``, in the order of the file.
        text_points: of ``brim measure`` of a language model, in the order of the file.
        stream_checks: the same loads by perf_analyzer, in the order of the file.
        torn: lines that were cut short by the end of the process that wrote them, as ``FILE:NUMBER``.
        settings: of a sweep, by the digest of the configuration.
        asked: what the sweep was asked to measure; None for one that did not record it, and where there was none.
        failures: what it could not measure, and why, in the order of the file.
        choice: of ``brim tune``.
        text_choice: of ``brim tune`` for a language model.
        interrupted: of one that was stopped before it had a choice.
        simulation: predictions beside measurements.
        load_test: of a load test.
        isolation: of ``brim isolate``.
        isolation_page: whether its own page lies beside it.
        overload: of ``brim bench overload``.
        comparison: of any other benchmark with targets.
        precisions: of ``brim bench precision``.
        soak: of ``brim soak``.
        samples: of the same, in the order of the file.
    """

    name: str
    points: tuple[Point, ...] = ()
    runs: tuple[TuneRun, ...] = ()
    open_points: tuple[OpenPoint, ...] = ()
    text_points: tuple[TextPoint, ...] = ()
    stream_checks: tuple[StreamCheck, ...] = ()
    torn: tuple[str, ...] = ()
    settings: Mapping[str, Settings] = field(default_factory=dict)
    asked: Asked | None = None
    failures: tuple[FailedLoad, ...] = ()
    choice: Choice | None = None
    text_choice: TextChoice | None = None
    interrupted: Interrupted | None = None
    simulation: SimulationCheck | None = None
    load_test: LoadTest | None = None
    isolation: Isolation | None = None
    isolation_page: bool = False
    overload: Overload | None = None
    comparison: Comparison | None = None
    precisions: Precisions | None = None
    soak: Soak | None = None
    samples: tuple[Sample, ...] = ()

    @property
    def every_point(self) -> tuple[Point | OpenPoint, ...]:
        """Of perf_analyzer and of the open-loop driver."""
        return (*self.points, *self.open_points)


class _Note(BaseModel):
    """What a sweep notes of a configuration."""

    model_config = ConfigDict(frozen=True)

    config_digest: str
    settings: Settings


def read_run(folder: Path) -> Documents:
    """Read everything in a run folder that a report shows.

    Raises:
        InputError: the folder is missing or holds nothing to report, or files are broken: every fault of each at once.
    """
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "there is no such folder"
        raise InputError(f"{folder}: {what}", hint="RUN is what `brim sweep`, `brim measure` or `brim tune` wrote to")
    there = [name for name in KNOWN if (folder / name).is_file()]
    if not there:
        holds = sorted(path.name for path in folder.iterdir())
        found = f"holds only {', '.join(holds[:MOST_FAULTS])}" if holds else "is empty"
        raise InputError(
            f"{folder} {found}: none of {', '.join(KNOWN)} is there",
            hint="`brim sweep NAME --out DIR` makes a run folder with measurements",
        )
    faults: list[str] = []
    torn: list[str] = []
    runs: list[TuneRun] = []

    def point_or_run(document: Any) -> Point | None:
        if isinstance(document, dict) and "setting" in document:
            if "repeat" in document and "measured" in document:
                return None  # of a language model: choice.json has them all
            runs.append(TuneRun.model_validate(document))
            return None
        return _usable(Point.from_json(document))

    points = _lines(folder / POINTS_FILE, point_or_run, "a measured point", faults, torn)
    open_points = _lines(folder / OPEN_FILE, _usable_open, "a point of the open-loop driver", faults, torn)
    text_points = _lines(folder / TEXT_FILE, TextPoint.model_validate, "a point of a language model", faults, torn)
    stream_checks = _lines(
        folder / STREAM_CHECKS_FILE, StreamCheck.model_validate, "a check by perf_analyzer", faults, torn
    )
    failures = _lines(folder / FAILURES_FILE, FailedLoad.model_validate, "what a sweep could not measure", faults, torn)
    notes = _document(folder / CONFIGURATIONS_FILE, TypeAdapter(dict[str, _Note]), faults) or {}
    samples = _lines(folder / SAMPLES_FILE, Sample.model_validate, "a sample of a soak", faults, torn)
    if unordered := out_of_order(samples):
        faults.append(f"{folder / SAMPLES_FILE}: {unordered}")
    tuning: Choice | TextChoice | Interrupted | None = _document(folder / CHOICE_FILE, TypeAdapter(ChoiceFile), faults)
    bench: Overload | Precisions | Comparison | OtherBenchmark | None = _document(
        folder / BENCH_FILE, TypeAdapter(BenchFile), faults
    )
    documents = Documents(
        name=folder.resolve().name,
        points=tuple(point for point in points if point is not None),
        runs=tuple(runs),
        open_points=tuple(open_points),
        text_points=tuple(text_points),
        stream_checks=tuple(stream_checks),
        torn=tuple(torn),
        settings={note.config_digest: note.settings for note in notes.values()},
        asked=_document(folder / ASKED_FILE, TypeAdapter(Asked), faults),
        failures=tuple(failures),
        choice=tuning if isinstance(tuning, Choice) else None,
        text_choice=tuning if isinstance(tuning, TextChoice) else None,
        interrupted=tuning if isinstance(tuning, Interrupted) else None,
        simulation=_document(folder / SIMULATION_FILE, TypeAdapter(SimulationCheck), faults),
        load_test=_document(folder / LOAD_TEST_FILE, TypeAdapter(LoadTest), faults),
        isolation=_document(folder / ISOLATION_FILE, TypeAdapter(Isolation), faults),
        isolation_page=(folder / ISOLATION_PAGE).is_file(),
        overload=bench if isinstance(bench, Overload) else None,
        comparison=bench if isinstance(bench, Comparison) else None,
        precisions=bench if isinstance(bench, Precisions) else None,
        soak=_document(folder / SOAK_FILE, TypeAdapter(Soak), faults),
        samples=tuple(samples),
    )
    if faults:
        raise InputError(
            "\n".join(faults), hint="mend these, or make the files again with the commands that wrote them"
        )
    if there == [BENCH_FILE] and isinstance(bench, OtherBenchmark):
        raise InputError(
            f"{folder / BENCH_FILE} has neither 'ratios' nor the benchmark 'overload': nothing in it was held against a target",
            hint="`brim bench overload --out DIR` makes a run folder with targets",
        )
    return documents


def _lines(path: Path, made: Callable[[Any], T], what: str, faults: list[str], torn: list[str]) -> list[T]:
    """What the lines hold; lines that were cut short are noted in ``torn``, and whatever else is wrong in ``faults``."""
    text = _text(path, faults)
    found: list[T] = []
    wrong: list[str] = []
    for number, line in enumerate((text or "").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(made(_parse(line)))
        except json.JSONDecodeError as error:
            if _is_cut_short(line, error):
                torn.append(f"{path.name}:{number}")
            else:
                wrong.append(f"{path}:{number}:{error.colno}: not JSON: {error.msg}")
        except (ValidationError, ValueError, RecursionError) as error:
            wrong.append(f"{path}:{number}: not {what}: {_first(error)}")
    faults += _some(path, wrong)
    return found


def _usable(point: Point) -> Point:
    """A point that can be placed: with a load above 0, and percentiles that are some.

    Raises:
        ValueError: it has none.
    """
    value = point.concurrency if point.mode is Mode.CONCURRENCY else point.rate
    if value is None or value <= 0:
        raise ValueError(f"{point.mode.value}: {value}, a load above 0 is expected")
    _check_percentiles(point.latency_us)
    return point


def _usable_open(document: Any) -> OpenPoint:
    """A run of the open-loop driver that can be placed.

    Raises:
        ValueError: it cannot, or is none.
    """
    point = OpenPoint.model_validate(document)
    _check_percentiles(point.latency_us)
    return point


def _check_percentiles(latency_us: Mapping[str, int]) -> None:
    for percentile in latency_us:
        if not 0 < float(percentile) <= 100:
            raise ValueError(f"latency_us: {percentile!r} is no percentile, 0 to 100 is expected")


def _parse(text: str) -> Any:
    """JSON with finite numbers only: nothing else can be drawn."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _is_cut_short(line: str, error: json.JSONDecodeError) -> bool:
    """Whether a line is the beginning of an object whose end was never written: there is nothing after the fault."""
    if not line.startswith("{"):
        return False
    rest = line[error.pos :].strip()
    unended = error.msg.startswith(("Unterminated string", "Invalid \\uXXXX escape"))
    return not rest or unended or any(word.startswith(rest) for word in LITERALS)


def _document(path: Path, adapter: TypeAdapter[T], faults: list[str]) -> T | None:
    """One JSON file, or None when it is not there or has faults."""
    text = _text(path, faults)
    if text is None:
        return None
    try:
        return adapter.validate_python(_parse(text))
    except json.JSONDecodeError as error:
        faults.append(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}")
    except ValidationError as error:
        faults += _some(path, [f"{path}: {_told(one)}" for one in error.errors()])
    except (ValueError, RecursionError) as error:
        faults.append(f"{path}: not readable as JSON: {error}")
    return None


def _text(path: Path, faults: list[str]) -> str | None:
    """The file's text; None when it is not there, or has a fault."""
    try:
        if not path.is_file():
            return None
        size = path.stat().st_size
        if size > MOST_BYTES:
            faults.append(f"{path}: {size:,} bytes, at most {MOST_BYTES:,} are read")
            return None
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        faults.append(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        faults.append(f"{path}: byte {error.start} is not UTF-8")
    return None


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return f"{_told(error.errors()[0])}{more}"
    return str(error)


def _told(fault: ErrorDetails) -> str:
    """Place, value and what was expected; an object is not shown, since it is no value, and long besides."""
    place = ".".join(map(str, fault["loc"])) or "the whole"
    value = fault["input"]
    if isinstance(value, dict | list):
        return f"{place}: {fault['msg']}"
    text = json.dumps(value, default=str)
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return f"{place}: {shown}: {fault['msg']}"


def _some(path: Path, wrong: list[str]) -> list[str]:
    more = len(wrong) - MOST_FAULTS
    return wrong if more <= 0 else [*wrong[:MOST_FAULTS], f"{path}: {more} more such faults"]
