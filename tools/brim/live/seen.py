"""One look at servers and gateway, as they said it: what is recorded, and what everything else is worked out from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from brim.engine.metrics import (
    E2E,
    ENDS,
    KV_USAGE,
    PREEMPTIONS,
    PREFIX_ASKED,
    PREFIX_HIT,
    REFUSALS,
    RUNNING,
    STEP_TIME,
    TOKENS_IN,
    TOKENS_OUT,
    TPOT,
    TTFT,
    WAITING,
    Family,
    Kind,
)
from brim.errors import InputError
from brim.live.ended import NAMES as GATEWAY_NAMES
from brim.measure.text.server_side import SHARED_PREFIX, names_of

PENDING, FAILURES = "nv_inference_pending_request_count", "nv_inference_request_failure"
HISTOGRAMS = (TTFT, TPOT, E2E, STEP_TIME)
COUNTERS = (TOKENS_IN, TOKENS_OUT, PREFIX_ASKED, PREFIX_HIT, PREEMPTIONS, REFUSALS, ENDS)
GAUGES = (WAITING, RUNNING, KV_USAGE)
BUCKETS = ("_bucket", "_sum", "_count")
"""What a histogram has on a page. Of steps only sum and count are looked at."""
FORMAT = 1
MOST_LOOKS = 1_000
LARGEST_RECORDING = 64 * 1024**2


def _names(family: Family) -> list[str]:
    ends = ("",) if family.kind is not Kind.HISTOGRAM else ("_sum", "_count") if family is STEP_TIME else BUCKETS
    return [f"{name}{end}" for name in names_of(family) for end in ends]


TEXT_NAMES = frozenset(name for family in (*HISTOGRAMS, *COUNTERS, *GAUGES) for name in _names(family))
SERVER_NAMES = TEXT_NAMES | {PENDING, FAILURES}


@dataclass(frozen=True, slots=True)
class SeenServer:
    """What one server said.

    Attributes:
        taken_us: when, on the monotonic clock of who looked.
        statistics: the answer to ``GET /v2/models/stats``.
        instances: model -> instances that its configuration asks for; 1 where it is not known.
        page: the lines that matter of its metrics page; None where it has none.
    """

    taken_us: int
    statistics: Mapping[str, Any]
    instances: Mapping[str, int]
    page: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SeenGateway:
    """The lines that matter of the gateway's page."""

    taken_us: int
    page: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """One look.

    Attributes:
        taken_us: when it was over.
        servers: name -> what it said, or why it said nothing.
        gateway: the same of the gateway; None where none is looked at.
    """

    taken_us: int
    servers: Mapping[str, SeenServer | str]
    gateway: SeenGateway | str | None = None


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a model's callers were promised, in microseconds; None where nothing was.

    Attributes:
        percentile: share of the callers, in percent.
        latency_us: of a whole answer.
        ttft_us: to the first token.
        tpot_us: for each further token.
    """

    percentile: float
    latency_us: int
    ttft_us: int | None = None
    tpot_us: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """Looks in order, and what was promised at that time."""

    objectives: Mapping[str, Objectives]
    looks: tuple[Seen, ...]


def kept_lines(page: str, names: frozenset[str]) -> tuple[str, ...]:
    """The lines of these metrics that have a number. Those of vLLM are left out where a page has ours, which say the same."""
    found = tuple(line for line in page.splitlines() if line.partition("{")[0] in names and _has_number(line))
    has_ours = any(line.startswith(WAITING.name) for line in found)
    return tuple(line for line in found if not (has_ours and line.startswith(SHARED_PREFIX)))


def _has_number(line: str) -> bool:
    """A gauge that is not set may be NaN."""
    try:
        return isfinite(float(line.rpartition(" ")[2]))
    except ValueError:
        return False


def kept_of_gateway(page: str) -> tuple[str, ...]:
    """The lines of the gateway's page that matter."""
    return kept_lines(page, GATEWAY_NAMES)


def write_recording(path: Path, recording: Recording) -> None:
    """As one JSON file, whole or not at all."""
    # Most lines stay as they are from look to look: each is kept once.
    lines: dict[str, int] = {}

    def numbered(said: SeenServer | SeenGateway | str | None) -> Any:
        if said is None or isinstance(said, str):
            return said
        page = None if said.page is None else [lines.setdefault(line, len(lines)) for line in said.page]
        return {**asdict(said), "page": page}

    looks = [
        {
            "taken_us": look.taken_us,
            "servers": {name: numbered(said) for name, said in look.servers.items()},
            "gateway": numbered(look.gateway),
        }
        for look in recording.looks
    ]
    objectives = {model: asdict(one) for model, one in recording.objectives.items()}
    document = {"format": FORMAT, "objectives": objectives, "looks": looks, "lines": list(lines)}
    write_text(path, json.dumps(document, separators=(",", ":")) + "\n")


def write_text(path: Path, text: str) -> None:
    """A file, whole or not at all."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def read_recording(path: Path) -> Recording:
    """What ``write_recording`` wrote.

    Raises:
        InputError: it is something else, or has no two looks.
    """
    hint = "`brim top --record FILE` makes one"
    try:
        if path.stat().st_size > LARGEST_RECORDING:
            raise ValueError(f"{path.stat().st_size} bytes, at most {LARGEST_RECORDING} are read")
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}, expected {FORMAT}")
        looks = _looks(document["looks"], [str(line) for line in document["lines"]])
        objectives = {model: Objectives(**one) for model, one in document["objectives"].items()}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint=hint) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a recording: {type(error).__name__}: {error}", hint=hint) from error
    if len(looks) < 2:
        raise InputError(f"{path}: {len(looks)} looks; figures are differences of two at least", hint=hint)
    return Recording(objectives, looks)


def _looks(documents: Sequence[Mapping[str, Any]], lines: Sequence[str]) -> tuple[Seen, ...]:
    def page(numbers: Iterable[int]) -> str:
        return "\n".join(lines[number] for number in numbers)

    def server(said: Mapping[str, Any] | str) -> SeenServer | str:
        if isinstance(said, str):
            return said
        kept = None if said["page"] is None else kept_lines(page(said["page"]), SERVER_NAMES)
        return SeenServer(int(said["taken_us"]), said["statistics"], said["instances"], kept)

    def gateway(said: Mapping[str, Any] | str | None) -> SeenGateway | str | None:
        if said is None or isinstance(said, str):
            return said
        return SeenGateway(int(said["taken_us"]), kept_of_gateway(page(said["page"])))

    looks = tuple(
        Seen(
            int(one["taken_us"]), {name: server(said) for name, said in one["servers"].items()}, gateway(one["gateway"])
        )
        for one in documents[:MOST_LOOKS]
    )
    times = [look.taken_us for look in looks]
    if times != sorted(set(times)):
        raise ValueError("looks are not in the order of time")
    return looks
