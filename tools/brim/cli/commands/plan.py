"""``brim plan``: how many replicas a traffic needs, and what routing, scaling and spares make of it, simulated."""

from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from brim.cli.app import JsonFlag
from brim.cli.commands.plan_answer import PICTURE_FILE, PLAN_FILE, document, table, write
from brim.cli.commands.plan_case import Modelled, Timing, modelled
from brim.cli.commands.simulate import PICTURES
from brim.cli.output import put, put_answer, say
from brim.errors import InputError
from brim.measure.text.lengths import EXPECTED
from brim.paths import find_project
from brim.plan.compare import Case, best, policies
from brim.plan.limits import GATEWAY_PER_S, SCRAPES_A_RATE, limits_of, sentences
from brim.plan.run import Conditions, factors_of
from brim.plan.scaled import Scaling
from brim.plan.scaling import UTILISATION_TARGET, Fleet, thresholds_of
from brim.plan.series import RATE_WINDOW_S
from brim.plan.shapes import Shape, shaped
from brim.plan.sizing import most_replicas, warm_spares
from brim.plan.spread import ROUND_ROBIN, spread_of
from brim.plan.traffic import MOST_REPLICAS, Traffic, read_traffic
from brim.service.load import find_service
from brim.service.schema import Service

EPOCHS = 3_600
"""Of a trace, when nobody says how long one is."""
SHORTEST_EPOCH_S, LONGEST_EPOCH_S = 0.25, 60.0
LEAST_EPOCH_S = 0.001
"""That may be asked for."""
MOST_EPOCHS = 1_000_000
FEW_REPLICAS, FEW_REQUESTS = 8, 20_000
"""A fleet that is simulated request by request when nobody says how."""
MOST_EVENTS = 2_000_000
"""Requests that are simulated one by one at the most."""
DURATION_S = 3_600.0
STARTUP_S, SCRAPE_S = 60.0, 15.0
QUEUE_DEPTH, PREFIX_AWARE = "queue_depth", "prefix_aware"


def plan(
    name: Annotated[str, typer.Argument(metavar="SERVICE", help="A service: its model, objective and batching.")],
    trace: Annotated[
        Path | None, typer.Option(help="Traffic: a JSON file of rates over time, losses and slow replicas.")
    ] = None,
    shape: Annotated[Shape | None, typer.Option(help="Traffic: a built-in shape instead.")] = None,
    rate: Annotated[float | None, typer.Option(help="Of a shape: requests a second at the least.")] = None,
    peak: Annotated[float | None, typer.Option(help="Of a shape: requests a second at the most.")] = None,
    duration: Annotated[float | None, typer.Option(help="Of a shape: seconds; an hour when absent.")] = None,
    routing: Annotated[
        list[str] | None, typer.Option(help="A routing policy; several are compared. Two when absent.")
    ] = None,
    scaling: Annotated[
        list[Scaling] | None, typer.Option(help="When there are more; several are compared. Two when absent.")
    ] = None,
    spares: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            max=MOST_REPLICAS,
            help="Warm replicas beyond the needed ones. 0 and what the growth needs when absent.",
        ),
    ] = None,
    min_replicas: Annotated[int, typer.Option(min=1, max=MOST_REPLICAS, help="Never fewer.")] = 1,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, max=MOST_REPLICAS, help="Never more; twice what the peak needs when absent.")
    ] = None,
    startup_s: Annotated[
        float, typer.Option(min=0, max=86_400, help="From wanting a replica to its first request: weights, warm-up.")
    ] = STARTUP_S,
    scrape_s: Annotated[
        float, typer.Option(min=0.1, max=3_600, help="Between two looks of the autoscaler.")
    ] = SCRAPE_S,
    gateway_per_s: Annotated[
        float, typer.Option(min=1, help="Requests a second that one gateway passes on.")
    ] = GATEWAY_PER_S,
    gateways: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Gateways; as many as are needed when absent.")
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000, help="Most requests, for each ready replica; the service's bound when absent."
        ),
    ] = None,
    utilisation_target: Annotated[
        float, typer.Option(min=0.05, max=1, help="Of scaling on utilisation.")
    ] = UTILISATION_TARGET,
    tau: Annotated[Path | None, typer.Option(help="Measured batch times, as `brim simulate` takes them.")] = None,
    tau0_us: Annotated[float | None, typer.Option(help="Time that every batch costs.")] = None,
    alpha_us: Annotated[float | None, typer.Option(help="Time that every row costs on top.")] = None,
    prepare_us: Annotated[int, typer.Option(help="An instance's work on a batch before it computes.")] = 0,
    prepare_row_us: Annotated[int, typer.Option(help="The same for every row.")] = 0,
    request_us: Annotated[int, typer.Option(help="Work before the queue, one request after the other.")] = 0,
    overhead_us: Annotated[int, typer.Option(help="What every request takes besides: network, parsing.")] = 0,
    jitter: Annotated[float, typer.Option(help="Sigma of lognormal batch or step times; 0 for none.")] = 0.0,
    instances: Annotated[int | None, typer.Option(help="Of each replica, instead of what the service says.")] = None,
    shared_device: Annotated[
        bool, typer.Option("--shared-device", help="Instances prepare side by side and compute one after the other.")
    ] = False,
    step_time: Annotated[Path | None, typer.Option(help="Language model: what a step takes.")] = None,
    prompts: Annotated[str | None, typer.Option(help=f"Language model: lengths of prompts: {EXPECTED}.")] = None,
    texts: Annotated[str | None, typer.Option(help="Language model: the same of texts.")] = None,
    events: Annotated[
        bool | None,
        typer.Option("--events/--fluid", help="Request by request, or as fluid; by the size of the trace when absent."),
    ] = None,
    epoch_s: Annotated[
        float | None, typer.Option(help="Length of an epoch; from the trace's length when absent.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answer.")] = 0,
    out: Annotated[Path | None, typer.Option(help=f"Folder for {PLAN_FILE} and {PICTURE_FILE}.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this .svg or .png file.")] = None,
    as_json: JsonFlag = False,
) -> int:
    """Say how many replicas a service's traffic needs, and compare routing, scaling and spares under it, without a cluster."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(
            f"--plot {plot}: a name that ends in {' or '.join(PICTURES)} is expected", hint="such as plan.svg"
        )
    service = find_service(find_project().services, name)
    began_s = perf_counter()
    timing = Timing(
        tau, tau0_us, alpha_us, prepare_us, prepare_row_us, request_us, overhead_us, jitter, instances, shared_device,
        step_time, prompts, texts,
    )  # fmt: skip
    model = modelled(service, timing, in_flight=in_flight, seed=seed)
    share = service.slo.percentile / 100
    carried = model.one.carried_per_s(share)
    traffic = _traffic(service, carried, trace, shape, rate, peak, duration)
    routings = routing or [ROUND_ROBIN, QUEUE_DEPTH if service.generation is None else PREFIX_AWARE]
    for one in routings:
        spread_of(one)
    warm = warm_spares(traffic, carried, startup_s)
    most = max_replicas or max(min_replicas, most_replicas(traffic, carried, warm))
    bounds = Fleet(min_replicas=min_replicas, max_replicas=most)
    compared = policies(
        routings, scaling or [Scaling.QUEUE, Scaling.UTILISATION], spares or sorted({0, min(warm, most - 1)})
    )
    epoch_s = _epoch_s(traffic, scrape_s, epoch_s)
    one_by_one = _one_by_one(model, traffic, bounds, events)
    conditions = Conditions(
        epoch_s,
        startup_s,
        scrape_s,
        max(RATE_WINDOW_S, SCRAPES_A_RATE * scrape_s),
        None if gateways is None else gateways * gateway_per_s,
        share,
    )
    factors = factors_of(traffic)
    make = model.events if one_by_one and model.events is not None else model.fluid
    case = Case(
        lambda policy, places: make(policy, places, epoch_s, factors),
        model.one,
        traffic,
        conditions,
        thresholds_of(_bounded(service, model.bound)),
        bounds,
        utilisation_target,
        seed,
    )
    outcomes = [(policy, case.run(policy)) for policy in compared]
    chosen = best(outcomes)[0]
    limits = limits_of(case, chosen, gateway_per_s=gateway_per_s, gateways=gateways)
    # Not in the answer: the same seed gives the same one.
    say(
        f"{len(outcomes)} policies of {traffic.requests:,.0f} requests each simulated in {perf_counter() - began_s:.1f} s"
    )
    words = sentences(limits, objective=model.objective, policy=chosen)
    data = document(service, case, outcomes, limits, words, model, one_by_one=one_by_one)
    write(data, outcomes, traffic, out, plot, title=f"{service.name}: {traffic.name}, {model.objective}")
    met = any(outcome.slo_met for _, outcome in outcomes)
    if as_json:
        put_answer("plan", data, ok=met)
    else:
        put("\n".join([table(outcomes), *words]))
    return 0 if met else 1


def _traffic(
    service: Service,
    carried: float,
    trace: Path | None,
    shape: Shape | None,
    rate: float | None,
    peak: float | None,
    duration: float | None,
) -> Traffic:
    """What was typed; of a shape, what the service's own traffic says where nothing was.

    Raises:
        InputError: none, or both of a file and a shape, or a value that cannot be.
    """
    of_shape = {"--rate": rate, "--peak": peak, "--duration": duration}
    given = [option for option, value in of_shape.items() if value is not None]
    if (trace is None) == (shape is None):
        said = "--trace and --shape exclude each other" if trace else "it is not said what traffic is to come"
        raise InputError(said, hint=f"give --trace FILE, or --shape {'|'.join(one.value for one in Shape)}")
    if trace is not None:
        if given:
            raise InputError(f"{', '.join(given)} beside --trace", hint="the file says rates and times itself")
        return read_traffic(trace)
    assert shape is not None
    known = service.traffic
    least = known.rate_per_s if rate is None else rate
    most = max(least, known.peak_per_s or 2 * least) if peak is None else peak
    replicas = math.ceil(most / carried) if carried else 1
    return shaped(shape, least, most, DURATION_S if duration is None else duration, peak_replicas=replicas)


def _bounded(service: Service, bound: int) -> Service:
    """The service with the bound that is simulated: what waits where little is let in is little."""
    return service.model_copy(update={"batching": service.batching.model_copy(update={"in_flight_bound": bound})})


def _epoch_s(traffic: Traffic, scrape_s: float, given: float | None) -> float:
    """Length of an epoch: short beside scrapes, and not more of them than can be gone through.

    Raises:
        InputError: the one given is out of range.
    """
    if given is None:
        epoch_s = min(max(traffic.duration_s / EPOCHS, SHORTEST_EPOCH_S), LONGEST_EPOCH_S)
        # A whole number of them between two scrapes.
        return scrape_s / max(1, math.ceil(scrape_s / epoch_s))
    if not LEAST_EPOCH_S <= given <= scrape_s or traffic.duration_s / given > MOST_EPOCHS:
        raise InputError(
            f"--epoch-s {given:g}: {LEAST_EPOCH_S:g} to --scrape-s ({scrape_s:g}) is expected, and at most"
            f" {MOST_EPOCHS:,} of them in the trace ({traffic.duration_s:g} s)",
            hint="leave it out for one that suits the trace",
        )
    return given


def _one_by_one(model: Modelled, traffic: Traffic, bounds: Fleet, given: bool | None) -> bool:
    """Whether requests are simulated one by one: where it was asked for, or the fleet and the trace are small.

    Raises:
        InputError: it was asked for, and cannot be.
    """
    if given is None:
        small = bounds.max_replicas <= FEW_REPLICAS and traffic.requests <= FEW_REQUESTS
        return small and model.events is not None
    if given and model.events is None:
        raise InputError("--events of a language model", hint="fleets of language models are simulated as fluid")
    if given and traffic.requests > MOST_EVENTS:
        raise InputError(
            f"--events of {traffic.requests:,.0f} requests; at most {MOST_EVENTS:,} are simulated one by one",
            hint="--fluid takes as long for many as for few",
        )
    return given
