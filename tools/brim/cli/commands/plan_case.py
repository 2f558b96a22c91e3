"""From what was typed after ``brim plan`` to a fleet that can be simulated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from brim.batcher.batch_time import AffineBatchTime, BatchTime, SlowedBatchTime
from brim.batcher.machine import Machine
from brim.batcher.queue import QueuePolicy
from brim.batcher.settings import Settings, settings_of
from brim.cli.commands.simulate import batch_time
from brim.config.generate import model_config
from brim.engine.step_time import read_step_time
from brim.engine.traffic import Call
from brim.errors import InputError
from brim.gateway.admission import in_flight_bound
from brim.measure.text.lengths import SHAREGPT, mix_of
from brim.plan.batch_replica import batch_replica
from brim.plan.events import EventFleet
from brim.plan.fleet import Fleet
from brim.plan.fluid import FluidFleet
from brim.plan.replica import Replica
from brim.plan.spread import spread_of
from brim.plan.text_replica import Objective, text_replica
from brim.service.schema import BatchTime as Line
from brim.service.schema import Service
from brim.tune.text.setting import host_settings, limits_of
from brim.units import ms_to_us


@dataclass(frozen=True, slots=True)
class Timing:
    """What was typed about how long things take, by the names of the options."""

    tau: Path | None
    tau0_us: float | None
    alpha_us: float | None
    prepare_us: int
    prepare_row_us: int
    request_us: int
    overhead_us: int
    jitter: float
    instances: int | None
    shared_device: bool
    step_time: Path | None
    prompts: str | None
    texts: str | None


@dataclass(frozen=True, slots=True)
class Modelled:
    """A service's replica, and how fleets of it are simulated.

    Attributes:
        one: the replica.
        bound: most requests in flight on it.
        objective: in words.
        fluid: routing policy, places, seconds of an epoch, factors of slow kinds -> a fleet.
        events: likewise, request by request; None for a language model.
    """

    one: Replica
    bound: int
    objective: str
    fluid: Callable[[str, int, float, tuple[float, ...]], Fleet]
    events: Callable[[str, int, float, tuple[float, ...]], Fleet] | None


def modelled(service: Service, timing: Timing, *, in_flight: int | None, seed: int) -> Modelled:
    """Look at one replica of a service.

    Raises:
        InputError: it is not said how long a batch or a step takes, or an option is for models of the other kind.
    """
    return (_tensor if service.generation is None else _text)(service, timing, in_flight, seed)


def _tensor(service: Service, timing: Timing, in_flight: int | None, seed: int) -> Modelled:
    _refuse(timing, ("step_time", "prompts", "texts"), f"{service.name} is no language model")
    settings, machine = _settings(service, timing), _machine(service, timing)
    slo_us = ms_to_us(service.slo.latency_ms)
    one = batch_replica(settings, machine, slo_us, seed=seed)
    bound = in_flight or service.batching.in_flight_bound or _bound(settings, machine, slo_us)

    def events(policy: str, places: int, epoch_s: float, factors: tuple[float, ...]) -> Fleet:
        machines = [_slowed(machine, factor) for factor in factors]
        return EventFleet(settings, machines, places, bound, epoch_s, policy, slo_us, seed=seed)

    return Modelled(
        one,
        bound,
        f"{service.slo.percentile:g} % within {service.slo.latency_ms:g} ms",
        _fluid(one, bound),
        events,
    )


def _text(service: Service, timing: Timing, in_flight: int | None, seed: int) -> Modelled:
    _refuse(
        timing,
        (
            "tau",
            "tau0_us",
            "alpha_us",
            "prepare_us",
            "prepare_row_us",
            "request_us",
            "overhead_us",
            "instances",
            "shared_device",
        ),
        f"{service.name} is a language model",
    )
    if timing.step_time is None:
        raise InputError(
            "it is not said how long a step takes",
            hint="give --step-time FILE: coefficients, or steps as `brim tune` measures them (docs/text-tuning.md)",
        )
    settings = host_settings(service)
    limits, slo = limits_of(settings), service.slo
    mix = mix_of(timing.prompts or SHAREGPT, timing.texts or SHAREGPT, context_tokens=limits.context_tokens)

    def draw(count: int, rng: np.random.Generator) -> list[Call]:
        return mix.draw(count, rng, context_tokens=limits.context_tokens, batch_share=0.0)

    ttft_us, tpot_us = (math.inf if ms is None else ms_to_us(ms) for ms in (slo.ttft_ms, slo.tpot_ms))
    about_first = slo.ttft_ms is not None
    objective = Objective(ttft_us, tpot_us, math.inf if about_first else ms_to_us(slo.latency_ms))
    one = text_replica(
        draw, read_step_time(timing.step_time), limits, settings.policy, objective, jitter=timing.jitter, seed=seed
    )
    bound = in_flight or settings.policy.max_sequences + settings.policy.max_waiting
    within = (
        f"a first token within {slo.ttft_ms:g} ms" if about_first else f"the whole text within {slo.latency_ms:g} ms"
    )
    further = "" if slo.tpot_ms is None else f", each further one within {slo.tpot_ms:g} ms"
    return Modelled(one, bound, f"{slo.percentile:g} %: {within}{further}", _fluid(one, bound), None)


def _fluid(one: Replica, bound: int) -> Callable[[str, int, float, tuple[float, ...]], Fleet]:
    def fluid(policy: str, places: int, epoch_s: float, factors: tuple[float, ...]) -> Fleet:
        kinds = [one if factor == 1 else one.slowed(factor) for factor in factors]
        return FluidFleet(kinds, places, bound, epoch_s, spread_of(policy))

    return fluid


def _settings(service: Service, timing: Timing) -> Settings:
    """The batcher without what its configuration bounds: in a fleet the gateway does that."""
    read = settings_of(model_config(service), instances=timing.instances)
    return replace(read, priority_levels=0, default_priority_level=0, default_policy=QueuePolicy(), level_policies={})


def _machine(service: Service, timing: Timing) -> Machine:
    known = service.batching.batch_time
    time: BatchTime
    if known is not None and timing.tau is None and timing.tau0_us is None and timing.alpha_us is None:
        time = AffineBatchTime(known.tau0_us, known.alpha_us)
    else:
        time = batch_time(timing.tau, timing.tau0_us, timing.alpha_us)
    return Machine(
        time,
        jitter=timing.jitter,
        prepare_us=timing.prepare_us,
        prepare_row_us=timing.prepare_row_us,
        serialised=timing.shared_device,
        overhead_us=timing.overhead_us,
        request_us=timing.request_us,
    )


def _slowed(machine: Machine, factor: float) -> Machine:
    if factor == 1:
        return machine
    return replace(
        machine,
        batch_time=SlowedBatchTime(machine.batch_time, factor),
        prepare_us=round(machine.prepare_us * factor),
        prepare_row_us=round(machine.prepare_row_us * factor),
    )


def _bound(settings: Settings, machine: Machine, slo_us: int) -> int:
    """What the gateway would let in per replica, from the line through the smallest and the largest batch."""
    most = settings.max_rows
    least_us, full_us = (machine.batch_time.time_us(rows) + machine.prepare_us for rows in (1, most))
    alpha_us = (full_us - least_us) / (most - 1) + machine.prepare_row_us if most > 1 else 0.0
    line = Line(tau0_us=max(0.0, least_us - alpha_us), alpha_us=alpha_us)
    bound = in_flight_bound(slo_us=slo_us, time=line, max_rows=most, overhead_us=machine.overhead_us)
    return bound if machine.serialised else bound * settings.instances


def _refuse(timing: Timing, names: tuple[str, ...], why: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(timing, name)]
    if given:
        raise InputError(f"{', '.join(given)}: {why}", hint="docs/planning.md says which options are for which models")
