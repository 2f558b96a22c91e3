"""The section of ``brim soak``: throughput and what was held, from the first minute to the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from brim.measure.accounting import Outcome
from brim.report.document import Figure, Section, Table
from brim.report.groups import Origin
from brim.report.pictures import LOOKS
from brim.report.soak_result import Sample, Soak, Trend, throughput_of
from brim.report.traces import Panel, Trace, drawn_along
from brim.report.words import figure_text, in_a_line, milliseconds, number
from brim.soak.sample import FILE_NAME as SAMPLES_FILE
from brim.soak.trend import MOST_POINTS
from brim.soak.verdict import LEAST_RATIO, WARM_UP_RATIO, Answer
from brim.units import US_PER_S

MIB = 1 << 20
WORDS = {
    Answer.FLAT: "stayed as it was",
    Answer.NOT_FLAT: "did not stay as it was",
    Answer.COULD_NOT_TELL: "could not be judged",
}
SHARED = "shared memory"
PARTIAL = f"brim soak, as {SAMPLES_FILE} tells"


def section(soak: Soak | None, samples: Sequence[Sample]) -> Section:
    """Verdict, throughput, memory, and what was open. Without ``soak.json`` only what the samples show.

    Args:
        soak: of a run that came to its end.
        samples: in order; may be none with a result, and is at least one without.
    """
    origin = _origin(soak)
    figures = []
    if samples:
        figures.append(_over_time(soak, samples, origin))
    if soak is not None:
        figures += [_throughput(soak, origin), _memory(soak, origin), _requests(soak, origin)]
    if samples:
        figures.append(_open(samples, origin))
    return Section("soak", "Soak", () if soak is None else sentences(soak), tuple(figures))


def sentences(soak: Soak) -> tuple[str, ...]:
    """The verdict with its reasons, and the figures that it is about."""
    name = f"Soak of {soak.model} over {soak.protocol}"
    why = f": {'; '.join(soak.reasons)}" if soak.reasons else ""
    window, ratio = _seconds(soak.window_us), "-" if soak.ratio is None else f"{soak.ratio:.4f}"
    name_of_most, most = max(_trends(soak).items(), key=lambda one: one[1].growth_bytes / (one[1].allowed_bytes or 1))
    throughput = (
        f"The last {window} had {number(soak.last)} answers/s, the first {number(soak.first)}: {ratio} "
        f"({LEAST_RATIO} is needed)"
    )
    growth = (
        f"{name_of_most} grew the most, by {_mib(most.growth_bytes)} of {_mib(most.allowed_bytes)} MiB that it may"
        if most.growth_bytes > 0
        else "no memory grew"
    )
    return (f"{name}: it {WORDS[soak.answer]} in {_seconds(soak.ran_us)}{why}.", f"{throughput}; {growth}.")


def conditions_of(soak: Soak) -> dict[str, object]:
    """Of the run, by name."""
    share = "" if soak.capacity is None or soak.load is None else f", {soak.load:g} of {number(soak.capacity)}/s"
    ended = ", told to stop before its time" if soak.interrupted else ""
    return {
        "soaked": f"{soak.model} over {soak.protocol}, {number(soak.rate)} requests/s{share}",
        "soaked for": f"{_seconds(soak.ran_us)} of {_seconds(soak.duration_us)}{ended}",
        **({} if soak.others_cores is None else {"cores that others used in the soak": f"{soak.others_cores:.2f}"}),
        **soak.conditions,
    }


def disagreements(soak: Soak | None, samples: Sequence[Sample]) -> list[str]:
    """Where the result and the samples are not of one whole run."""
    if soak is None:
        return ["This soak is partial: there is no soak.json, so there are samples, and no verdict."] if samples else []
    if soak.samples == len(samples):
        return []
    return [f"soak.json is of {soak.samples} samples, and {SAMPLES_FILE} has {len(samples)}."]


def _origin(soak: Soak | None) -> Origin:
    if soak is None:
        return Origin(PARTIAL, "not noted: the soak was ended before it wrote soak.json")
    return Origin(soak.typed, in_a_line(conditions_of(soak)))


def _seconds(us: int) -> str:
    return f"{round(us / US_PER_S, 1):g} s"


def _mib(value: int) -> str:
    return number(value / MIB, 2)


def stretches(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """As many as a picture has points, each of as many samples as the others; the last may have fewer."""
    size = -(-len(samples) // MOST_POINTS)
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def _over_time(soak: Soak | None, samples: Sequence[Sample], origin: Origin) -> Figure:
    """Throughput is exact over each stretch, and memory the most that was seen in it: a peak stays one."""
    parts = stretches(samples)
    programs = list(dict.fromkeys(name for one in samples for name in one.rss))
    traces = [
        Trace(name, look, [max(one.rss.get(name, 0) for one in part) / MIB for part in parts])
        for name, look in zip(programs, (*LOOKS[:3], *LOOKS[4:]), strict=False)
    ]
    shared = Trace(SHARED, LOOKS[3], [max(one.shm_bytes for one in part) / MIB for part in parts])
    end_s = samples[-1].at_us / US_PER_S
    warm_up = ("warm-up: growth is not looked at", 0.0, WARM_UP_RATIO * end_s)
    needed = None if soak is None else (f"{LEAST_RATIO:g} of the first window's throughput", soak.needed)
    rates = [throughput_of(part) for part in parts]
    panels = [
        Panel("Right answers", "answers/s", [Trace("right answers", (LOOKS[4][0], "-", "v"), rates)], mark=needed),
        Panel("Memory by program", "MiB", [*traces, shared], shade=warm_up),
    ]

    def scale(axes: Axes) -> None:
        axes.set_xlim(0, end_s)

    picture = drawn_along(
        "soak",
        [part[-1].at_us / US_PER_S for part in parts],
        panels,
        axis="seconds",
        scale=scale,
        shows=f"Throughput and memory over {end_s:.0f} s",
    )
    size = len(parts[0])
    note = f"{len(samples)} samples" + (f", {size} a point: the most memory of each is drawn." if size > 1 else ".")
    return Figure("Throughput and memory over time", *origin, picture=picture, notes=(note,))


def _throughput(soak: Soak, origin: Origin) -> Figure:
    window = _seconds(soak.window_us)
    rows = (
        (f"first {window}, answers/s", "-", number(soak.first, 2)),
        (f"last {window}, answers/s", "-", number(soak.last, 2)),
        ("last / first", f">= {LEAST_RATIO:g}", number(soak.ratio, 4)),
    )
    notes = (
        "As many answers may be missing from the last window as are usually under way when one ends, and more than the rate "
        "in the first counts as the rate.",
    )
    return Figure(
        "Throughput at the beginning and at the end",
        *origin,
        table=Table(("figure", "needed", "measured"), rows, words=2),
        notes=notes,
    )


def _trends(soak: Soak) -> dict[str, Trend]:
    return {**{f"memory of {name}": one for name, one in soak.rss.items()}, SHARED: soak.shm}


def _memory(soak: Soak, origin: Origin) -> Figure:
    rows = tuple(
        (
            name,
            "within" if one.is_within else "beyond",
            *(_mib(value) for value in (one.level_bytes, one.growth_bytes, one.allowed_bytes)),
        )
        for name, one in _trends(soak).items()
    )
    each = soak.bytes_per_request
    note = "" if each is None else f" All programs together: {figure_text(each)} bytes a request."
    return Figure(
        "Growth of memory after the warm-up",
        *origin,
        table=Table(("what", "growth", "held MiB", "grew by MiB", "may grow by MiB"), rows, words=2),
        notes=(f"Growth is the median of all slopes between two samples (Theil-Sen) times the time.{note}",),
    )


def _requests(soak: Soak, origin: Origin) -> Figure:
    head = ("offered", *(outcome.value.replace("_", " ") for outcome in Outcome), "p50 ms", "p99 ms", "longest ms")
    row = (
        str(soak.offered),
        *(str(soak.count(outcome)) for outcome in Outcome),
        *(milliseconds(us) for us in (soak.p50_us, soak.p99_us, soak.max_us)),
    )
    told = tuple(f"{count:,} were told: {message}" for message, count in soak.messages.items())
    return Figure(
        "What became of the requests",
        *origin,
        table=Table(head, (row,), words=0),
        notes=("An answer counts as answered when it is the right one; latencies are of those.", *told),
    )


def _open(samples: Sequence[Sample], origin: Origin) -> Figure:
    """What was open at the beginning, at the most, and at the end, each while the load ran."""
    programs = list(dict.fromkeys(name for one in samples for name in one.fds))

    def files_of(name: str) -> Callable[[Sample], int | None]:
        return lambda one: one.fds.get(name)

    looked_at: dict[str, Callable[[Sample], int | None]] = {
        "connections of callers": lambda one: one.connections,
        "connections to the server": lambda one: one.upstream,
        **{f"open files of {name}": files_of(name) for name in programs},
        "shared-memory regions": lambda one: one.shm_regions,
        "requests under way, most": lambda one: one.most_in_flight,
    }
    rows = []
    for name, of in looked_at.items():
        known = [value for value in map(of, samples) if value is not None]
        rows.append((name, *(str(pick(known)) if known else "-" for pick in (_first, max, _last))))
    return Figure(
        "Connections and files",
        *origin,
        table=Table(("what", "first sample", "most", "last sample"), tuple(rows)),
        notes=(
            "While the load ran. What is still open after the last caller has left is among the verdict's reasons.",
        ),
    )


def _first(values: Sequence[int]) -> int:
    return values[0]


def _last(values: Sequence[int]) -> int:
    return values[-1]
