"""Running servers as a report: the same figures as ``brim top``, on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from brim.live.columns import COLUMNS, count_text, goodput_text
from brim.live.facts import facts
from brim.live.figures import Figures
from brim.live.history import Source, View
from brim.live.seen import Objectives
from brim.measure import plot
from brim.report.document import Figure, Picture, Report, Section, Table
from brim.report.groups import Origin
from brim.report.inline_svg import SVG_STYLE, inline_svg
from brim.report.pictures import canvas
from brim.report.words import in_a_line
from brim.units import US_PER_S, us_to_ms

MEANING = "\n".join(f"{column.title:<12}{column.about}" for column in COLUMNS)
READING = "A dash is what cannot be known from what was asked; <= is the bound of a histogram's bucket."


def live_report(
    view: View,
    objectives: Mapping[str, Objectives],
    *,
    command: str,
    taken_at: str,
    refresh_s: int | None = None,
) -> Report:
    """The whole page.

    Args:
        view: what there is to see.
        objectives: model -> what was promised to its callers.
        command: that made this.
        taken_at: date and time of the last look, as people read it; empty where it is not known.
        refresh_s: the page loads itself anew so often; None: it does not.
    """
    models = list(view.models.values())
    stretch_s = max((model.wall_us for model in models), default=0) / US_PER_S
    conditions = {
        **({"looked at": taken_at} if taken_at else {}),
        "figures of the last": f"{stretch_s:.1f} s",
        "servers": ", ".join(_source_text(one) for one in view.servers) or "none",
        "gateway": "none is looked at" if view.gateway is None else view.gateway.trouble or "answers",
    }
    origin = Origin(command, in_a_line(conditions))
    promised = [
        (f"SLO of {model}", _promise_text(one)) for model, one in sorted(objectives.items()) if model in view.models
    ]
    sections = [_models(models, origin)]
    sections += [
        _model(f"model{index}", one, view.by_server[one.model], origin) for index, one in enumerate(models, start=1)
    ]
    return Report(
        "Running now",
        "; ".join(map(_sentence, models)) + "." if models else "No model is loaded.",
        None,
        tuple(_warnings(view)),
        (*conditions.items(), *promised),
        tuple(sections),
        refresh_s,
    )


def _source_text(source: Source) -> str:
    return source.name if not source.trouble else f"{source.name} (no answer)"


def _promise_text(one: Objectives) -> str:
    latency = f"p{one.percentile:g} within {us_to_ms(one.latency_us):.10g} ms"
    parts = [
        f"{name} {us_to_ms(us):.10g} ms"
        for name, us in (("first token", one.ttft_us), ("each further token", one.tpot_us))
        if us is not None
    ]
    return ", ".join([latency, *parts])


def _warnings(view: View) -> list[str]:
    sources = [*view.servers, *([] if view.gateway is None else [view.gateway])]
    found = [f"{one.name} does not answer: {one.trouble}" for one in sources if one.trouble]
    return found + [f"{one.name} began anew since the look before." for one in sources if one.restarted]


def _sentence(model: Figures) -> str:
    share = "" if model.goodput is None else f", {goodput_text(model.goodput)} in the SLO"
    return f"{model.model}: {count_text(model.rate_per_s)}/s{share}"


def _models(models: Sequence[Figures], origin: Origin) -> Section:
    if not models:
        return Section("models", "Models")
    rows = tuple((model.model, *(column.cell(model) for column in COLUMNS)) for model in models)
    head = ("model", *(column.title for column in COLUMNS))
    figure = Figure("All models", *origin, table=Table(head, rows), notes=(READING,))
    return Section("models", "Models", figures=(figure,), blocks=(("What the columns mean", MEANING),))


def _model(name: str, model: Figures, replicas: Sequence[Figures], origin: Origin) -> Section:
    figures = []
    if model.batch_sizes:
        figures.append(
            Figure(
                "Batch sizes",
                *origin,
                picture=_sizes(f"{name}-sizes", model),
                table=Table(
                    ("rows", "batches"),
                    tuple((str(size), f"{count:,}") for size, count in model.batch_sizes.items()),
                    words=0,
                    brief=False,
                ),
                folded=True,
            )
        )
    figures.append(Figure("What it does", *origin, table=Table(("", "figure"), tuple(facts(model)), words=2)))
    if len(replicas) > 1:
        head = ("replica", *(column.title for column in COLUMNS))
        rows = tuple((one.server, *(column.cell(one) for column in COLUMNS)) for one in replicas)
        figures.append(Figure("By replica", *origin, table=Table(head, rows), notes=(READING,)))
    return Section(name, model.model, (), tuple(figures))


def _sizes(name: str, model: Figures) -> Picture:
    with plot.style(SVG_STYLE):
        drawn = canvas(plot.SIZES_HEIGHT_IN + 0.6, name)
        axes = drawn.subplots()
        axes.bar(list(model.batch_sizes), list(model.batch_sizes.values()), width=0.9, color=plot.GREEN)
        axes.set_xlim(0, max(10, *model.batch_sizes) + 1)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("rows in a batch")
        axes.set_ylabel("batches")
        return Picture(inline_svg(drawn, name), f"Batch sizes of {model.model}: {model.executions} batches")
