"""tau(b) of a graph on its device alone: no server, no copy from or to the host, any size from one row to the largest batch.

Beside it the same run as the python backend does it, with arrays in main memory: what copying costs. Short runs of one size
are repeated for ``LEAST_WINDOW_US`` and their median counts, so that one that was held up moves nothing; sizes come in a new
random order every round, so that what changes on the machine meanwhile hits all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from brim.bench.comparison import Comparison
from brim.bench.conditions import Watch
from brim.config.shapes import typical_row
from brim.errors import InputError, MissingTool
from brim.limits import BATCH_LIMIT
from brim.measure.batch_time import LEAST_RUNS, LEAST_STDERR_US, BatchTime, MeasuredBatchTime, fit
from brim.paths import Project
from brim.runtime.contract import Array
from brim.runtime.record import read_record
from brim.runtime.session import CUDA_PROVIDER, Device, GraphTensor, OnnxSession, cores
from brim.service.schema import Service

NAME = "device"
LEAST_WINDOW_US = 5_000
MOST_RUNS = 200
"""Of one size in one round, however short they are."""
SHOWN_ROWS = (1, 8, 32, 64, BATCH_LIMIT)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look.

    Attributes:
        sizes: how many batch sizes, spread from one row to the largest batch; all of them when None.
        rounds: over all sizes, at least ``LEAST_RUNS``.
        budget_s: no round begins after this time; the first ``LEAST_RUNS`` are measured in any case.
    """

    sizes: int | None = None
    rounds: int = 7
    budget_s: float = 60.0


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured.

    Attributes:
        comparison: for the answer.
        on_device: tau(b) with tensors on the device.
        from_host: the same with arrays in main memory, copies included.
    """

    comparison: Comparison
    on_device: MeasuredBatchTime
    from_host: MeasuredBatchTime


def device(
    project: Project,
    service: Service,
    *,
    on_gpu: bool,
    effort: Effort = DEFAULT_EFFORT,
    seed: int = 0,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Found:
    """Measure an exported service's graph.

    Args:
        project: has the export.
        service: its ``longest_tokens`` or ``largest_size`` says how long rows of variable size may be.
        on_gpu: the first GPU, else the CPU with the threads that the service is served with.
        effort: how long to look.
        seed: of the order of sizes.
        clock_ns: for tests.
        on_progress: told what is happening.

    Raises:
        CouldNotTell: runs of one size differ too much.
        InputError: the graph takes text.
        MissingTool: a GPU is asked for, and ONNX Runtime does not run on one here.
        ModelFileError: it is not exported.
    """
    if effort.rounds < LEAST_RUNS:
        raise InputError(f"{effort.rounds} rounds; at least {LEAST_RUNS} are needed", hint="leave --rounds out")
    folder = project.model_repository / service.name / "1"
    remedy = f"run `brim export {service.name}`"
    threads = service.runtime.threads or max(1, cores() // sum(group.count for group in service.instances))
    warned: list[str] = []
    session = OnnxSession(
        folder / "model.onnx", Device(0 if on_gpu else None, threads), remedy=remedy, warn=warned.append
    )
    if on_gpu and session.provider != CUDA_PROVIDER:
        raise MissingTool(
            "; ".join(warned) or f"ONNX Runtime was asked for {CUDA_PROVIDER} and took {session.provider}",
            hint="docs/gpu.md says what a GPU needs; --cpu measures the CPU",
        )
    texts = [name for name, tensor in session.inputs.items() if tensor.dtype is None or tensor.dtype.kind == "O"]
    if texts:
        raise InputError(f"{service.name}: graph input {', '.join(texts)} is text", hint="no device holds text")
    ranges = read_record(folder, remedy).index_ranges
    outputs = list(session.outputs)
    row_size = typical_row(service)
    watch = Watch()
    times: dict[str, dict[int, list[float]]] = {"device": {}, "host": {}}
    sizes = chosen_sizes(service.max_batch_size, effort.sizes)
    draw = np.random.default_rng(seed)
    began_ns = clock_ns()
    rounds = 0
    # In the first round the device picks its kernels: it does not count.
    for number in range(-1, effort.rounds):
        if number >= LEAST_RUNS and clock_ns() - began_ns > effort.budget_s * 1e9:
            break
        on_progress(f"batch times of {service.name} on {session.provider}: round {number + 1} of {effort.rounds}")
        rounds = number + 1
        for rows in draw.permutation(sizes).tolist():
            feeds = {name: ones(tensor, rows, row_size, ranges.get(name)) for name, tensor in session.inputs.items()}
            ways: dict[str, Callable[[], object]] = {
                "device": session.on_device(outputs, feeds),
                "host": partial(session.run, outputs, feeds),
            }
            for way, run in ways.items():
                # Once untimed: it makes the memory of its outputs.
                run()
                taken_us = typical_us(run, clock_ns)
                if number >= 0:
                    times[way].setdefault(rows, []).append(taken_us)
    conditions = watch.stop()
    provenance = {
        "provider": session.provider,
        "rounds": rounds,
        "row_size": row_size,
        "seed": seed,
        "conditions": conditions.as_json(),
    }
    fits = {way: fit(runs) for way, runs in times.items()}
    curves = {
        way: MeasuredBatchTime(service.name, curve, None, None, {**provenance, "tensors": f"on the {way}"})
        for way, curve in fits.items()
    }
    figures = {
        f"{way}: {rows} row{'s' if rows > 1 else ''}, us": tuple(times[way][rows])
        for way in fits
        for rows in SHOWN_ROWS
        if rows in times[way]
    }
    details = {
        "model": service.name,
        "provider": session.provider,
        **{way: curve.as_json() for way, curve in fits.items()},
        "findings": findings(fits, service.max_batch_size),
    }
    return Found(Comparison(NAME, (), figures, conditions, details), curves["device"], curves["host"])


def chosen_sizes(most: int, count: int | None) -> list[int]:
    """Batch sizes from 1 to ``most``: all, or so many of them evenly spread, both ends included.

    Raises:
        InputError: fewer than three, which say nothing of a curve.
    """
    if count is None or count >= most:
        return list(range(1, most + 1))
    if count < LEAST_RUNS:
        raise InputError(f"{count} batch sizes; at least {LEAST_RUNS} are needed", hint="leave --points out for all")
    return sorted({round(size) for size in np.linspace(1, most, count)})


def ones(tensor: GraphTensor, rows: int, row_size: int, index_range: tuple[int, int] | None) -> Array:
    """So many rows of 1, which every mask lets through, or of the nearest value that an index may have.

    What a batch takes does not depend on its values.
    """
    shape = (rows, *(row_size if size is None else size for size in tensor.shape[1:]))
    value = 1 if index_range is None else min(max(1, index_range[0]), index_range[1])
    return np.full(shape, value, dtype=tensor.dtype)


def typical_us(run: Callable[[], object], clock_ns: Callable[[], int]) -> float:
    """Median time of runs, of as many as take ``LEAST_WINDOW_US`` together, ``MOST_RUNS`` at most."""
    began_ns = before_ns = clock_ns()
    taken_ns: list[int] = []
    while len(taken_ns) < MOST_RUNS and before_ns - began_ns < LEAST_WINDOW_US * 1_000:
        run()
        now_ns = clock_ns()
        taken_ns.append(now_ns - before_ns)
        before_ns = now_ns
    return median(taken_ns) / 1_000


def findings(fits: Mapping[str, BatchTime], most: int) -> list[str]:
    """What the curves say, in sentences."""
    said = []
    for way, curve in fits.items():
        first, last = curve.points[0], curve.points[-1]
        gain = first.time_us * last.rows / (first.rows * max(last.time_us, LEAST_STDERR_US))
        said.append(
            f"tensors on the {way}: {curve.form.value}, tau0 {curve.tau0_us:.0f} us + {curve.alpha_us:.2f} us a row; "
            f"{last.rows} rows take {last.time_us:.0f} us, {gain:.1f} times the rows a second of {first.rows} at a time"
        )
    copies_us = fits["host"].points[-1].time_us - fits["device"].points[-1].time_us
    said.append(f"with its copies to the device and back a batch of {most} rows takes {copies_us:+.0f} us")
    return said
