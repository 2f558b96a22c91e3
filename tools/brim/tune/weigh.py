"""Threads and sub-batches: which counts and cuttings are worth a place in the search, by short comparisons on the server.

The launch rule says nothing about them, so the simulator cannot tell their batch times: they are measured, or they are
left as they are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort
import psutil
from tritonclient.grpc.model_config_pb2 import ModelConfig

from brim.adapter_parameter import PARAMETER
from brim.errors import BrimError, ServerFailed
from brim.measure.callers import Row
from brim.measure.sweep import read_config
from brim.runtime.padding import PaddingCost
from brim.runtime.session import CUDA_PROVIDER
from brim.runtime.template import MODEL_PY
from brim.service.schema import Kind, Service
from brim.tune.grid import MOST_INSTANCES
from brim.tune.overlay import CONFIG
from brim.tune.predict import RuntimeTimes, Served
from brim.tune.setting import UNCUT, Setting, padding_text, rounded, setting_of
from brim.tune.threads import AS_IT_IS, Runtimes, Threads
from brim.tune.trial import Open, Timing, compare, extra_us, trial_sizes
from brim.units import us_to_ms

WORTH = 0.05
"""A cutting is changed when it saves this part of the batch time at least, and saves something in every round."""
COPY_BYTES = 2.0
"""Memory of a loaded model over the size of its files."""
MEMORY_SHARE = 0.5
"""Part of the free memory that the servers of a comparison may need."""
MODEL_PY_NAME = "model.py"


@dataclass(frozen=True, slots=True)
class Weighed:
    """What came of it.

    Attributes:
        served: the idea of the machine, with the batch times of what was compared.
        runtimes: what the search may combine.
        about: ``threads`` and ``padding``, each with what was weighed and why it was kept or changed.
    """

    served: Served
    runtimes: Runtimes = AS_IT_IS
    about: Mapping[str, Any] = field(default_factory=dict)


def no_knobs(model_folder: Path) -> str | None:
    """Why neither threads nor cutting can be set for a model; None when they can.

    Raises:
        InputError: its configuration cannot be read.
    """
    config: ModelConfig = read_config(model_folder / CONFIG)
    if PARAMETER not in config.parameters:
        return f'its configuration has no parameter "{PARAMETER}"'
    for path in sorted(model_folder.glob(f"[0-9]*/{MODEL_PY_NAME}")):
        if path.read_text(encoding="utf-8") != MODEL_PY:
            return f"it has a {MODEL_PY_NAME} of its own, which may not look at them"
    return None


def runs_on_gpu(service: Service) -> bool:
    """Whether ONNX Runtime computes on a GPU here, so that its threads do nearly nothing."""
    return CUDA_PROVIDER in ort.get_available_providers() and any(
        group.kind is not Kind.CPU for group in service.instances
    )


def weigh(
    service: Service,
    served: Served,
    open_server: Open,
    model_folder: Path,
    rows: Sequence[Row],
    *,
    cores: int,
    fitted: Callable[[], PaddingCost],
    on_progress: Callable[[str], None] = lambda _: None,
) -> Weighed:
    """Compare cuttings where lengths differ, then thread counts where there are cores for them.

    Args:
        service: as it is.
        served: the batch times of it, as they are.
        open_server: starts a server with a setting.
        model_folder: ``model_repository/NAME``.
        rows: what callers send.
        cores: that the server may use.
        fitted: measures the cost of padding on this machine (``brim bench fit-padding``).
        on_progress: told what is happening.

    Raises:
        InputError: the model refuses a row.
    """
    reason = no_knobs(model_folder)
    if reason is not None:
        kept = {"weighed": [], "changed": False, "why": f"as it is: {reason}"}
        return Weighed(served, about={"threads": kept, "padding": kept})
    room = _Room(model_folder)
    work = _Work(service, served, open_server, rows, room, on_progress)
    padding, about_padding, cut_times = _padding(work, fitted)
    threads, about_threads = _threads(work, Threads(service.runtime.threads, cores), padding, cut_times)
    return Weighed(threads.served, threads.runtimes, {"threads": about_threads, "padding": about_padding})


@dataclass(frozen=True, slots=True)
class _Work:
    service: Service
    served: Served
    open_server: Open
    rows: Sequence[Row]
    room: _Room
    on_progress: Callable[[str], None]

    def compare(self, settings: Sequence[Setting]) -> Mapping[Setting, Timing]:
        """A trial of the settings."""
        self.room.require(sum(one.instances for one in settings))
        return compare(
            self.open_server,
            self.service.name,
            self.rows,
            settings,
            max_rows=self.served.max_rows,
            time_us=lambda size: self.served.time_us[size - 1],
            on_progress=self.on_progress,
        )


@dataclass(frozen=True, slots=True)
class _Room:
    """Memory for the models of a trial."""

    model_folder: Path

    def require(self, copies: int) -> None:
        """Refuse a trial that the machine has no memory for.

        Raises:
            ServerFailed: there is too little.
        """
        files = sum(path.stat().st_size for path in self.model_folder.glob("[0-9]*/*") if path.is_file())
        needed, free = copies * COPY_BYTES * files, MEMORY_SHARE * psutil.virtual_memory().available
        if needed > free:
            raise ServerFailed(
                f"{copies} copies of the model need about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB may be taken",
                hint="tune on a machine with more memory",
            )


def _padding(
    work: _Work, fitted: Callable[[], PaddingCost]
) -> tuple[PaddingCost | None, dict[str, Any], Mapping[Setting, Timing]]:
    """The cutting of all candidates; None for the service's own."""
    service = work.service
    if service.traffic.size == "fixed":
        return (
            None,
            {"weighed": [], "changed": False, "why": "as it is: traffic.size is fixed, so nothing is padded"},
            {},
        )
    own = Setting()
    try:
        work.on_progress("fitting the cost of padding on this machine")
        options = {"fitted": Setting(padding=rounded(fitted())), "none": Setting(padding=UNCUT)}
        found = work.compare([own, *options.values()])
    except BrimError as error:
        return None, {"weighed": [], "changed": False, "why": f"as it is: {error.message}"}, {}
    sizes = trial_sizes(work.served.max_rows)[1:] or trial_sizes(work.served.max_rows)
    ratios = {name: _ratios(found[setting], found[own], sizes) for name, setting in options.items()}
    best = min(ratios, key=lambda name: statistics.median(ratios[name]))
    gain = 1 - statistics.median(ratios[best])
    changed = gain >= WORTH and max(ratios[best]) < 1 and _is_complete(found[options[best]], work.served.max_rows)
    said = "; ".join(
        f"{padding_text(setting.padding or UNCUT)}: {statistics.median(ratios[name]):.2f} of its time"
        for name, setting in options.items()
    )
    why = f"compared with what the service has, {said}. "
    why += "Changed" if changed else f"Kept, since a change has to save {WORTH:.0%}, and something in every round"
    about = {
        "weighed": [
            {"name": name, "padding": None if cost is None else asdict(cost), **_timing_json(found[setting])}
            for name, setting, cost in (
                ("own", own, None),
                *((name, setting, setting.padding) for name, setting in options.items()),
            )
        ],
        "changed": changed,
        "why": why,
    }
    return (options[best].padding if changed else None), about, found


def _ratios(timing: Timing, reference: Timing, sizes: Sequence[int]) -> list[float]:
    """Time over the reference's, the geometric mean of the sizes, round by round."""
    by_size = [timing.over(reference, size) for size in sizes if size in timing.by_size_us]
    return [math.exp(statistics.fmean(math.log(ratio) for ratio in one)) for one in zip(*by_size, strict=True)]


def _threads(
    work: _Work, threads: Threads, padding: PaddingCost | None, cut_times: Mapping[Setting, Timing]
) -> tuple[Weighed, dict[str, Any]]:
    """Batch times of every count of threads, and how much instances gain from one another."""
    service, served = work.service, work.served
    max_rows = served.max_rows
    own = Setting()
    cut: tuple[RuntimeTimes, ...] = ()
    if padding is not None:
        extra = extra_us(cut_times[Setting(padding=padding)], cut_times[own], max_rows)
        cut = (RuntimeTimes(0, padding, extra),)
    unweighed = Weighed(replace(served, runtimes=cut), Runtimes(padding=padding))
    if runs_on_gpu(service):
        return unweighed, {"weighed": [], "changed": False, "why": "as it is: the model computes on a GPU"}
    counts = threads.counts(setting_of(service))
    if threads.cores == 1 and counts == [1]:
        return unweighed, {"weighed": [], "changed": False, "why": "as it is: there is one core"}
    now = threads.of(setting_of(service))
    settings = {
        count: Setting(instances=max(1, min(MOST_INSTANCES, threads.cores // count)), threads=count, padding=padding)
        for count in sorted(counts, key=lambda count: (count != now, count))
    }
    try:
        found = work.compare(list(settings.values()))
    except ServerFailed as error:
        return unweighed, {"weighed": [], "changed": False, "why": f"as it is: {error.message}"}
    reference = settings[now]
    base = (0.0,) * max_rows if padding is None else cut[0].extra_us
    times = [
        RuntimeTimes(
            count,
            padding,
            tuple(a + b for a, b in zip(base, extra_us(found[setting], found[reference], max_rows), strict=True)),
            found[setting].side_by_side,
        )
        for count, setting in settings.items()
        if _is_complete(found[setting], max_rows)
    ]
    # The settings that are measured in any case have the service's own cutting; with it, threads make the same difference.
    plain = [
        replace(one, padding=None, extra_us=tuple(a - b for a, b in zip(one.extra_us, base, strict=True)))
        for one in (times if padding is not None else ())
    ]
    said = ", ".join(f"{count}: {_full_text(found[settings[count]], max_rows)}" for count in counts)
    about = {
        "weighed": [
            {"threads": count, "instances": setting.instances, **_timing_json(found[setting])}
            for count, setting in settings.items()
        ],
        "changed": False,
        "why": f"a full batch by the number of threads, {said}",
    }
    made = replace(served, threads=threads, runtimes=(*times, *plain))
    return Weighed(made, Runtimes(threads, tuple(sorted(one.threads for one in times)), padding)), about


def _is_complete(timing: Timing, max_rows: int) -> bool:
    """Whether full batches were timed; a way that was hopeless before lacks them."""
    return max_rows in timing.by_size_us


def _full_text(timing: Timing, max_rows: int) -> str:
    if not _is_complete(timing, max_rows):
        return "far slower"
    gain = timing.side_by_side
    said = f"{us_to_ms(round(timing.time_us(max_rows))):.4g} ms"
    return said if gain is None else f"{said} (instances beside one another gain {gain:.0%} of what they could)"


def _timing_json(timing: Timing) -> dict[str, Any]:
    return {
        "time_us": {size: round(timing.time_us(size)) for size in sorted(timing.by_size_us)},
        "rounds": len(next(iter(timing.by_size_us.values()), [])),
        "side_by_side": timing.side_by_side,
    }
