"""The settings that are worth a simulation, and those among them that Brim's own linter would flag."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from brim.batcher.settings import Settings
from brim.config.files import config_text
from brim.lint import lint_paths
from brim.service.schema import Service
from brim.tune.setting import DEFAULT, Setting, with_setting
from brim.tune.threads import AS_IT_IS, Runtimes

MOST_INSTANCES = 3
SHORTEST_DELAY_US = 100
LONGEST_DELAY_US = 1_000_000
"""The linter's own bound: a longer delay is most likely a mistake of units."""
DELAYS = 48
FEW_DELAYS = 8
STALL = "stall"
"""Why a setting is refused that ``stalls``, beside the linter's codes."""
THREADS = "threads"
"""Why a setting is refused that has more threads than cores in all, or a number of threads that was not measured."""
SIZES = (2, 4, 8, 12, 16, 20, 25, 32, 40, 50, 64, 75, 80, 90)


@dataclass(frozen=True, slots=True)
class Grid:
    """Candidates.

    Attributes:
        settings: those that nothing speaks against.
        generated: how many there were.
        refused: lint code -> how many settings it is the reason for not trying; one setting may have several.
    """

    settings: tuple[Setting, ...]
    generated: int
    refused: dict[str, int]


def sizes(max_rows: int) -> list[int]:
    """A ladder of preferred sizes below the largest batch, which is what no preferred size means."""
    return [size for size in SIZES if size < max_rows]


def delays_us(lone_us: int, full_us: int, slo_us: int, count: int) -> list[int]:
    """No delay, and a ladder of them tied to the batch time.

    A delay gathers something when it is not short against the time of a batch, and it cannot help beyond the time of two
    full batches, within which a queue that is busy fills by itself; and it has to leave room in the objective.
    """
    least = max(SHORTEST_DELAY_US, lone_us // 16)
    most = max(least, min(2 * full_us, slo_us - lone_us, LONGEST_DELAY_US))
    ladder = (least * (most / least) ** (step / max(1, count - 1)) for step in range(count))
    return [0, *sorted({_two_digits(delay_us) for delay_us in ladder})]


def _two_digits(value: float) -> int:
    """Rounded to two digits: what a person would write down."""
    return int(float(f"{value:.1e}"))


def make_grid(service: Service, base: Settings, *, lone_us: int, full_us: int, runtimes: Runtimes = AS_IT_IS) -> Grid:
    """Every combination of preferred sizes (none, one, two), delays, instances and threads that is sound.

    Args:
        service: whose configuration is varied.
        base: that configuration for the simulator.
        lone_us: time of a batch of one row, with everything around it.
        full_us: time of a full batch.
        runtimes: in which ways a batch can be run, as far as they were measured.
    """
    # A queue policy is simulated event by event, some ten times slower.
    count = DELAYS if base.prefetches else FEW_DELAYS
    ladder = sizes(service.max_batch_size)
    preferred = [(), *((size,) for size in ladder), *combinations(ladder, 2)]
    delays = delays_us(lone_us, full_us, round(service.slo.latency_ms * 1_000), count)
    ends = {0, delays[1], delays[-1]}
    judged = [Setting(*values) for values in product(preferred, sorted(ends), range(1, MOST_INSTANCES + 1))]
    codes: dict[tuple[tuple[int, ...], int, bool], set[str]] = {}
    for setting, found in flagged(service, judged).items():
        codes.setdefault(_kind(setting), set()).update(found)
    kept, refused, generated = [], Counter[str](), 0
    for chosen, delay_us, instances in product(preferred, delays, range(1, MOST_INSTANCES + 1)):
        for threads in runtimes.threads_for(instances):
            setting = Setting(chosen, delay_us, instances, threads, runtimes.padding)
            generated += 1
            reasons = {STALL} if stalls(base, setting) else set(codes[_kind(setting)])
            if not reasons and not runtimes.allow(setting):
                reasons.add(THREADS)
            refused.update(reasons)
            if not reasons:
                kept.append(setting)
    return Grid(tuple(kept), generated, dict(sorted(refused.items())))


def _kind(setting: Setting) -> tuple[tuple[int, ...], int, bool]:
    """Settings that the linter judges alike: its rules about a delay alone have bounds, so what they say of the shortest
    and the longest one they say of all between."""
    return setting.preferred, setting.instances, setting.delay_us > 0


def stalls(base: Settings, setting: Setting) -> bool:
    """Whether the setting combines one instance with a bounded queue, which is never tried.

    Any bound, timeout or priority level of the queue makes Triton wait for an idle instance before it builds a batch. With
    one instance the wake-up from the end of an execution comes before the instance counts as idle, so it is lost unless
    another request arrives: callers then wait for the next tick of 500 ms (measured on 24.10; core
    ``dynamic_batch_scheduler.cc``, ``WaitForPayloadSlotAvailable``).
    """
    return setting.instances == 1 and not base.prefetches


def flagged(service: Service, settings: Iterable[Setting]) -> dict[Setting, tuple[str, ...]]:
    """Codes of what the linter finds in each setting's generated configuration and not in that of the default setting.

    What it finds there already (a warning about the model's inputs, say) no setting can change.
    """
    wanted = [DEFAULT, *settings]
    with tempfile.TemporaryDirectory(prefix="brim-tune-") as name:
        files = {}
        for number, setting in enumerate(wanted):
            files[f"{number}.pbtxt"] = setting
            text = config_text(with_setting(service, setting))
            (Path(name) / f"{number}.pbtxt").write_text(text, encoding="utf-8")
        found: dict[Setting, set[str]] = {setting: set() for setting in wanted}
        known: set[str] = set()
        for finding in lint_paths([name]):
            file = Path(finding.file).name
            found[files[file]].add(finding.code)
            if file == "0.pbtxt":
                known.add(finding.code)
    return {setting: tuple(sorted(found[setting] - known)) for setting in wanted[1:]}
