"""Whether a run was as good at its end as at its beginning, and left nothing growing: from its samples alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from brim.soak.sample import GATEWAY, SERVER, STUBS, Resources, Sample, throughput_of
from brim.soak.trend import slope
from brim.units import US_PER_S

LONGEST_WINDOW_US = 60 * US_PER_S
WINDOWS = 10
"""A window is a minute, or a tenth of a shorter run."""
LEAST_SAMPLES = 10
LEAST_RATIO = 0.98
WARM_UP_RATIO = 0.2
"""Of the run, not looked at for growth: memory pools, caches and connections reach their size under the first load."""
GROWTH_RATIO = 0.05
ALLOCATOR_BYTES = 8 << 20
"""Growth of a program's memory that is taken for its allocator's: pools that fill up further on a rare peak of requests under
way. A leak of 5 bytes a request is above it after 10 minutes at 4,000 a second."""
SHM_BYTES = 1 << 20
"""Growth of shared memory that is none: the python backend widens a pool by steps when a peak needs it (measured on 24.10)."""
NOISE_CORES = 0.25
"""So many more processors that other programs take in the last window than in the first can be why it is slower."""
SPARE_FDS = 16
"""Open files beyond those of before and a connection a request: logs, a canary on its way, the gateway's pages."""


class Answer(StrEnum):
    """What the run says."""

    FLAT = "flat"
    NOT_FLAT = "not flat"
    COULD_NOT_TELL = "could not tell"

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return {Answer.FLAT: 0, Answer.NOT_FLAT: 1, Answer.COULD_NOT_TELL: 3}[self]


@dataclass(frozen=True, slots=True)
class Growth:
    """The trend of one program's memory after the warm-up.

    Attributes:
        level: median, in bytes.
        growth: rise over the time that was looked at, by the trend, in bytes.
        allowed: what may be.
    """

    level: float
    growth: float
    allowed: float

    def as_json(self) -> dict[str, Any]:
        """Whole bytes."""
        return {
            "level_bytes": round(self.level),
            "growth_bytes": round(self.growth),
            "allowed_bytes": round(self.allowed),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run showed.

    Attributes:
        answer: the verdict.
        reasons: why it is not ``flat``; empty when it is.
        window_us: length of the first and the last window.
        first: answers a second in the first window.
        last: in the last one.
        ratio: last / first; None without an answer in the first.
        rss: program -> trend of its resident memory.
        shm: trend of shared memory.
        bytes_per_request: growth of all programs' memory for each answer in the time that was looked at.
        others_cores: processors that other programs on the machine took, over the whole run.
    """

    answer: Answer
    reasons: tuple[str, ...]
    window_us: int
    first: float
    last: float
    ratio: float | None
    rss: dict[str, Growth]
    shm: Growth
    bytes_per_request: float | None
    others_cores: float

    def as_json(self) -> dict[str, Any]:
        """Rates a second, growth as a ratio of what was held, and the figures behind it in bytes."""
        held = sum(one.level for one in self.rss.values())
        grown = sum(one.growth for one in self.rss.values())
        return {
            "answer": self.answer.value,
            "reasons": list(self.reasons),
            "first": self.first,
            "last": self.last,
            "ratio": self.ratio,
            "window_us": self.window_us,
            "rss_growth": grown / held if held else 0.0,
            "shm_growth": self.shm.growth / self.shm.level if self.shm.level else 0.0,
            "bytes_per_request": self.bytes_per_request,
            "others_cores": self.others_cores,
            "rss": {name: one.as_json() for name, one in self.rss.items()},
            "shm": self.shm.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Around:
    """What was held before the load began and after the last answer, with no caller connected."""

    before: Resources
    after: Resources


def judge(
    samples: Sequence[Sample], *, rate_per_s: float, dropped: int, around: Around | None, troubles: Sequence[str] = ()
) -> Verdict:
    """The verdict on a run.

    A clear no comes before everything else; then what keeps the figures from telling anything.

    Args:
        samples: in order.
        rate_per_s: of requests, as planned.
        dropped: arrivals that were not sent because too many were under way already.
        around: what was held before and after; None where a program was gone.
        troubles: what happened that is a no by itself: a restart, wrong answers.
    """
    total_us = _span_us(samples)
    window_us = min(LONGEST_WINDOW_US, total_us // WINDOWS)
    windows = _windows(samples, window_us)
    first, last = (throughput_of(windows[0]), throughput_of(windows[-1])) if windows else (0.0, 0.0)
    ratio = last / first if first else None
    warm = [sample for sample in samples if sample.at_us >= WARM_UP_RATIO * total_us]
    rss = {name: _growth(warm, _rss_of(name)) for name in (SERVER, STUBS, GATEWAY)}
    shm = _growth(warm, lambda held: held.shm_bytes, least=SHM_BYTES)
    answered = sum(sample.answered for sample in warm)
    no, unknown = list(troubles), []
    if len(samples) < LEAST_SAMPLES:
        unknown.append(f"{len(samples)} samples: a verdict needs {LEAST_SAMPLES}")
    else:
        no += _growths(rss, shm) + _leaks(samples, around)
        slowed, why_unknown = _slowed(windows, ratio, rate_per_s, dropped)
        no += slowed
        unknown += why_unknown
    answer = Answer.NOT_FLAT if no else Answer.COULD_NOT_TELL if unknown else Answer.FLAT
    grown = sum(one.growth for one in rss.values())
    return Verdict(
        answer,
        (*no, *unknown),
        window_us,
        first,
        last,
        ratio,
        rss,
        shm,
        grown / answered if answered else None,
        _others_cores(samples) if samples else 0.0,
    )


def _windows(samples: Sequence[Sample], window_us: int) -> list[list[Sample]]:
    """Stretches of this length one after the other, of whole samples; the last one ends with the run."""
    if not samples or window_us <= 0:
        return []
    end_us, begin_us = samples[-1].at_us, samples[0].at_us - samples[0].span_us
    count = max(1, (end_us - begin_us) // window_us)
    found: list[list[Sample]] = [[] for _ in range(count)]
    for sample in samples:
        middle_us = sample.at_us - sample.span_us // 2 - begin_us
        found[min(count - 1, middle_us * count // (end_us - begin_us))].append(sample)
    return [window for window in found if window]


def _rss_of(program: str) -> Callable[[Resources], int]:
    return lambda held: held.rss.get(program, 0)


def _growth(samples: Sequence[Sample], of: Callable[[Resources], int], least: int = ALLOCATOR_BYTES) -> Growth:
    if not samples:
        return Growth(0.0, 0.0, least)
    at_us = [float(sample.at_us) for sample in samples]
    values = [float(of(sample.resources)) for sample in samples]
    level = median(values)
    return Growth(level, slope(at_us, values) * (at_us[-1] - at_us[0]), max(least, GROWTH_RATIO * level))


def _growths(rss: dict[str, Growth], shm: Growth) -> list[str]:
    found = {**{f"memory of {name}": one for name, one in rss.items()}, "shared memory": shm}
    return [
        f"{name} grew by {one.growth / 2**20:.1f} MiB to some {one.level / 2**20:.0f} MiB, "
        f"{one.allowed / 2**20:.1f} MiB may be"
        for name, one in found.items()
        if one.growth > one.allowed
    ]


def _leaks(samples: Sequence[Sample], around: Around | None) -> list[str]:
    """What was still open after the last caller had gone."""
    if around is None:
        return []
    most = max(sample.most_in_flight for sample in samples)
    before, after = around.before, around.after
    found = []
    if after.connections:
        found.append(f"{after.connections} connections of callers are still open at the gateway after all have left")
    for name, count in after.fds.items():
        allowed = before.fds.get(name, 0) + most + SPARE_FDS
        if count > allowed:
            found.append(
                f"{name} has {count} files open, {before.fds.get(name, 0)} before the load; with {most} requests under way "
                f"at most, {allowed} may be"
            )
    if after.shm_regions > before.shm_regions:
        found.append(f"{after.shm_regions} shared-memory regions, {before.shm_regions} before the load")
    return found


def _slowed(
    windows: Sequence[Sequence[Sample]], ratio: float | None, rate_per_s: float, dropped: int
) -> tuple[list[str], list[str]]:
    """Reasons for a no, and reasons why nothing can be told, from the throughput."""
    if ratio is None:
        return ["no request was answered rightly in the first window"], []
    if not dropped:
        for name, window in (("first", windows[0]), ("last", windows[-1])):
            sent = sum(sample.sent for sample in window) * US_PER_S / _span_us(window)
            if sent < LEAST_RATIO * rate_per_s:
                return [], [
                    f"the generator sent {sent:.1f} of {rate_per_s:.1f} requests a second in the {name} window: it was "
                    "the limit"
                ]
    first, last = throughput_of(windows[0]), throughput_of(windows[-1])
    # The end of a window cuts through what is under way: a batch of answers more or less is no trend.
    under_way = 0 if dropped else median(sample.in_flight for sample in windows[0])
    cut = under_way * US_PER_S / _span_us(windows[0])
    if first + cut < LEAST_RATIO * rate_per_s:
        return [], [
            f"the service did not keep up from the beginning: {first:.1f} answers to {rate_per_s:.1f} requests a second"
        ]
    # What had piled up before the first window is worked off in it, on top of the rate.
    first = min(first, rate_per_s)
    if last + cut >= LEAST_RATIO * first:
        return [], []
    text = f"throughput fell to {ratio:.3f} of the first window's, {LEAST_RATIO} is needed"
    others = [_others_cores(window) for window in (windows[0], windows[-1])]
    if others[1] - others[0] >= NOISE_CORES:
        return [], [f"{text}; but other programs took {others[1]:.2f} processors, {others[0]:.2f} in the first window"]
    between = [throughput_of(window) for window in windows[1:-1]]
    low = next((place for place, rate in enumerate(between) if rate <= last), len(between))
    if max(between[low:], default=0.0) >= LEAST_RATIO * first:
        return [], [f"{text}; but an earlier window was as low, and a later one was not: the machine is too noisy"]
    return [text], []


def _others_cores(samples: Sequence[Sample]) -> float:
    """Processors that programs took which are no part of this run; 0 where that cannot be told."""
    first, last = samples[0], samples[-1]
    busy_us = last.resources.busy_us - first.resources.busy_us
    own_us = last.resources.own_us - first.resources.own_us
    return max(0.0, (busy_us - own_us) / (last.at_us - first.at_us)) if last.at_us > first.at_us else 0.0


def _span_us(samples: Sequence[Sample]) -> int:
    return sum(sample.span_us for sample in samples)
