"""The simulator of token models against the real engine, in what no clock decides: the steps themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from brim.engine.admission import BATCH, INTERACTIVE, Policy
from brim.engine.calibration import calibrate
from brim.engine.drive import ProcessorClock, drive
from brim.engine.engine_process import EngineProcess
from brim.engine.simulate import open_loop
from brim.engine.static_batching import drive_static
from brim.engine.step_time import StepTime
from brim.engine.traffic import Call
from brim.paths import Project
from brim.service.load import find_service
from brim.tune.text.setting import Setting, engine_arguments, with_setting

SETTING = Setting(chunk_tokens=64, max_sequences=4, kv_blocks=24)
POLICY = Policy(max_sequences=4, ageing_us={INTERACTIVE: 10**12, BATCH: 10**12})
CALLS = [Call(100, 4, 4), Call(10, 12, 12), Call(20, 3, 3), Call(150, 2, 2), Call(7, 9, 9), Call(33, 1, 1)]


@pytest.fixture(scope="module")
def engine(exported_text: Project) -> Iterator[EngineProcess]:
    """The shipped language model's, with a small cache."""
    project = exported_text
    service = find_service(project.services, "text_generation")
    arguments = replace(engine_arguments(project, with_setting(service, SETTING)), context_tokens=256)
    with closing(EngineProcess(arguments)) as engine:
        yield engine


def test_the_engine_runs_the_very_steps_that_are_simulated(engine: EngineProcess) -> None:
    simulated = open_loop(CALLS, [0] * len(CALLS), StepTime(1, 0, 0, 0, 0), engine.limits, POLICY)
    driven = drive(engine, POLICY, CALLS, sent_us=[0] * len(CALLS), clock=ProcessorClock(engine.pid))
    assert driven.shapes == simulated.shapes
    assert driven.tokens.tolist() == simulated.tokens.tolist() == [call.output_tokens for call in CALLS]
    assert driven.complete.all() and driven.most_blocks <= SETTING.kv_blocks
    assert driven.last_us.argsort(kind="stable").tolist() == simulated.last_us.argsort(kind="stable").tolist()


def test_a_static_batch_takes_as_many_steps_as_its_longest_text(engine: EngineProcess) -> None:
    driven = drive_static(CALLS[:4], [0] * 4, engine, 2, ProcessorClock(engine.pid))
    assert driven.complete.all()
    assert driven.tokens.tolist() == [call.output_tokens for call in CALLS[:4]]
    assert len(driven.step_us) >= 12 + 3, "the longest of either batch"
    assert driven.first_us[2:].min() > driven.last_us[:2].max(), "the second batch comes after the first one"


def test_a_calibration_measures_what_it_was_designed_to(engine: EngineProcess) -> None:
    found = calibrate(engine, max_sequences=4, budget_s=0.0, clock=ProcessorClock(engine.pid))
    assert found.passes == 1
    assert {1, 2, 4} <= {shape.decoding for shape, _ in found.steps}
    assert any(shape.prefill_tokens and shape.decoding for shape, _ in found.steps)
    assert all(took_us > 0 for _, took_us in found.steps)
