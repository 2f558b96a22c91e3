"""The simulator of token models held against an engine: the grid, errors, verdict, the store, and a whole run without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brim.bench import generation_simulation as bench
from brim.bench.conditions import Conditions
from brim.bench.generation_check import (
    LEAST_POINTS,
    SATURATED,
    Checked,
    Figures,
    GenerationCheck,
    Pace,
    Ways,
    remarks,
)
from brim.bench.generation_grid import CASES, SCALED_CHATS, STATIC, Case
from brim.bench.simulation_store import Store
from brim.bench.verdict import ExitCode, Verdict
from brim.cli.commands.bench_generation_simulation import shown
from brim.engine.engine import EngineLimits
from brim.engine.engine_process import EngineArguments
from brim.engine.fake import FakeEngine
from brim.engine.kv_cache import blocks_for
from brim.engine.step_time import StepTime
from brim.errors import InputError
from brim.paths import Project
from brim.service.load import find_service
from brim.service.schema import Service
from tests.conftest import Brim
from tests.unit.text_bench import REAL, StepClock, engine_on_clock

QUIET = Conditions("a processor", 2, 0.1, 0.1, 0.05, {})
MEASURED = Figures(100_000, 500_000, 20_000, 40_000)


def point(error: float = 0.0, name: str = "ttft_p50") -> Checked:
    predicted = replace(MEASURED, **{name: getattr(MEASURED, name) * (1 + error)})
    return Checked("key", "a point", 40, 2.5, predicted, MEASURED)


def ways(ratio: float, name: str = SATURATED) -> Ways:
    paces = {"continuous": Pace(100 * ratio, 10, 20, 30), "static": Pace(100, 100, 200, 300)}
    return Ways("key", name, 96, paces, paces)


def check(
    points: list[Checked], both: list[Ways], *, planned: int | None = None, others: float = 0.05, shared: bool = True
) -> GenerationCheck:
    conditions = replace(QUIET, other_cores=others)
    return GenerationCheck(points, planned or len(points), both, conditions, {"seed": 0}, "brim bench", shared)


def test_the_grid_has_every_kind_of_point_and_variants_stand_together() -> None:
    assert len(CASES) >= LEAST_POINTS and len({case.name for case in CASES}) == len(CASES)
    variants = [case.variant for case in CASES]
    assert [one for place, one in enumerate(variants) if one not in variants[:place]] == [
        one for place, one in enumerate(variants) if place == 0 or one != variants[place - 1]
    ]
    open_loads = {case.load for case in CASES if case.load is not None}
    assert len(open_loads) >= 3 and len({case.callers for case in CASES if case.load is None}) >= 3
    assert len({case.mix.name for case in CASES}) == 2 and len({case.variant.chunk_tokens for case in CASES}) >= 3
    longest = [min(2048, case.mix.prompts.most + case.mix.texts.most) for case in CASES]
    for case, tokens in zip(CASES, longest, strict=True):
        assert blocks_for(tokens, 32) <= case.variant.kv_blocks, "every call fits the cache"
    most = SCALED_CHATS.prompts.most + SCALED_CHATS.texts.most
    assert STATIC.max_sequences * blocks_for(most, 32) <= STATIC.kv_blocks, "seats alone are the limit"


@pytest.mark.parametrize(
    ("points", "both", "planned", "others", "shared", "code"),
    [
        ([point(0.14), point(0.24, "tpot_p99")], [ways(2.0)], 2, 0.05, True, ExitCode.YES),
        ([point(0.0), point(0.16)], [ways(2.5)], 2, 0.05, True, ExitCode.NO),
        ([point(0.0), point(-0.26, "ttft_p99")], [ways(2.5)], 2, 0.05, True, ExitCode.NO),
        ([point(0.0)], [ways(1.99)], 1, 0.05, True, ExitCode.NO),
        ([point(0.3)], [ways(2.5)], 1, 1.5, True, ExitCode.COULD_NOT_TELL),
        ([point(0.3)], [ways(2.5)], 1, 1.5, False, ExitCode.NO),
        ([point(0.0)], [ways(2.5)], 2, 0.05, True, ExitCode.COULD_NOT_TELL),
        ([point(0.0)], [], 1, 0.05, True, ExitCode.COULD_NOT_TELL),
        ([point(0.0)], [ways(2.5), ways(0.5, "open loop")], 1, 0.05, True, ExitCode.YES),
        ([], [], 14, 0.05, True, ExitCode.COULD_NOT_TELL),
    ],
)
def test_the_verdict(
    points: list[Checked], both: list[Ways], planned: int, others: float, shared: bool, code: ExitCode
) -> None:
    found = check(points, both, planned=planned, others=others, shared=shared)
    assert found.exit_code is code
    document = found.as_json()
    assert document["verdicts"].keys() == {"points", "static"} and document["planned"] == planned
    json.dumps(document, allow_nan=False)
    assert shown(found)


def test_what_stands_in_the_file_is_read_again() -> None:
    for one in (point(0.1), replace(point(), rate_per_s=None)):
        assert Checked.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert Ways.from_json(json.loads(json.dumps(ways(2.0).as_json()))) == ways(2.0)
    assert ways(2.0).ratios["measured"]["tokens_per_s"] == 2.0 and ways(2.0).ratios["simulated"]["ttft_p50_us"] == 0.1


def test_remarks_name_what_is_off_and_what_is_missing() -> None:
    said = list(remarks(check([point(0.2), point(0.0)], [ways(2)], planned=5)))
    assert said[0].startswith("3 of 5 points were not measured")
    assert said[1] == "a point: off by ttft_p50 20%"
    assert "all wait from the beginning" in said[-1]


@pytest.mark.parametrize(
    "line", ['{"kind": "point", "key": "k", "found": {}}', '{"kind": "other", "key": "k", "found": {}}']
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / bench.MEASUREMENTS_FILE).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="no measurement of this benchmark"):
        Store(tmp_path, file=bench.MEASUREMENTS_FILE, readers=bench.READERS)


class Place:
    """Engines whose steps take what they take, and the one clock that they move."""

    def __init__(self, step_time: StepTime = REAL) -> None:
        self.step_time = step_time
        self.started: list[EngineArguments] = []
        self.clock = StepClock()

    def start(self, arguments: EngineArguments) -> FakeEngine:
        self.started.append(arguments)
        limits = EngineLimits(arguments.kv_blocks, 32, arguments.chunk_tokens, arguments.context_tokens, 49_152)
        engine, self.clock = engine_on_clock(limits, self.step_time)
        engine.pid, engine.close = 0, lambda: None  # type: ignore[attr-defined]
        return engine

    def now(self, _pid: int) -> StepClock:
        """The same clock, begun anew."""
        return _Since(self.clock)


class _Since(StepClock):
    def __init__(self, clock: StepClock) -> None:
        self._clock, self._began_us = clock, clock.now_us()

    def now_us(self) -> int:
        return self._clock.now_us() - self._began_us

    def wait_until(self, at_us: int) -> None:
        self._clock.wait_until(self._began_us + at_us)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place()
    monkeypatch.setattr(bench, "EngineProcess", made.start)
    monkeypatch.setattr(bench, "ProcessorClock", made.now)
    yield made


BRIEF = bench.Effort(point_s=2.0, least_calls=10, static_calls=48, processor_time=True)
FEW = (CASES[1], CASES[4], next(case for case in CASES if case.variant.kv_blocks < 100))


@pytest.fixture
def story(checkout: Path) -> tuple[Project, Service]:
    project = Project(checkout)
    return project, find_service(project.services, "text_generation")


def test_an_engine_that_the_fit_describes_is_predicted_and_nothing_is_measured_twice(
    place: Place, story: tuple[Project, Service], tmp_path: Path
) -> None:
    said: list[str] = []
    found = bench.check_generation(*story, FEW, folder=tmp_path, effort=BRIEF, on_progress=said.append)
    assert [one.name for one in found.points] == [case.name for case in FEW]
    assert max(max(one.errors.values()) for one in found.points) < 0.05
    assert found.verdicts == {"points": Verdict.MET, "static": Verdict.MET}
    assert [way.name for way in found.ways] == [SATURATED, "open loop"]
    saturated = found.ways[0].ratios
    assert saturated["measured"]["tokens_per_s"] == pytest.approx(saturated["simulated"]["tokens_per_s"], rel=0.15)
    assert {one.threads for one in place.started} == {1} and len(place.started) == 3
    written = json.loads((tmp_path / bench.CHECK_FILE).read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(found.as_json()))
    again = bench.check_generation(*story, FEW, folder=tmp_path, effort=BRIEF)
    assert again.points == found.points and again.ways == found.ways and len(place.started) == 3
    more = bench.check_generation(*story, (*FEW, CASES[0]), folder=tmp_path, effort=replace(BRIEF, budget_s=0.0))
    assert len(more.points) == 3 and more.planned == 4 and more.exit_code is ExitCode.COULD_NOT_TELL


def test_every_case_has_calls_of_its_own(story: tuple[Project, Service], place: Place, tmp_path: Path) -> None:
    runs = [
        bench.check_generation(*story, [Case(CASES[0].variant, CASES[0].mix, load=load)], folder=tmp_path, effort=BRIEF)
        for load in (0.5, 0.50001)
    ]
    first, second = (run.points[0] for run in runs)
    assert first.key != second.key and first.measured != second.measured
    assert np.isclose(first.rate_per_s or 0, second.rate_per_s or 0, rtol=0.3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generation-simulation", "--rounds", "3"), "takes no --rounds"),
        (("generation-simulation", "text_embedding"), "text_embedding is no language model"),
        (("simulation", "--processor-time"), "takes no --processor-time"),
        (("padding", "--processor-time"), "takes no --processor-time"),
        (("generation-simulation", "--points", "0"), "--points"),
    ],
)
def test_wrong_arguments(brim: Brim, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = brim("bench", *arguments)
    assert (code, out) == (2, "")
    assert words in err
