"""Looks, one after the other, as a view of now: differences between neighbours, added up over the last seconds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.errors import BrimError
from brim.live import ended as at_gateway
from brim.live import work as done
from brim.live.derive import figures
from brim.live.ended import NONE_ENDED, Tally, parse_gateway
from brim.live.figures import Figures
from brim.live.seen import Objectives, Seen, SeenGateway, SeenServer
from brim.live.work import Known, Work
from brim.units import US_PER_S

WINDOW_US = 10 * US_PER_S
"""What figures are taken over. An Envoy that others set up adds up its histograms every five seconds: in less there may be nothing."""
MOST_MODELS = 256
MOST_RATES = 120
"""Of a model, for its line over time."""


@dataclass(frozen=True, slots=True)
class Source:
    """A server or the gateway: ``trouble`` says why it did not answer at the last look, and is empty when it did."""

    name: str
    trouble: str = ""
    restarted: bool = False

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"name": self.name, "up": not self.trouble, "trouble": self.trouble, "restarted": self.restarted}


@dataclass(frozen=True, slots=True)
class View:
    """What there is to see.

    Attributes:
        taken_us: of the last look.
        servers: in the order of their names.
        gateway: None where none is looked at.
        models: of all servers together, by name.
        by_server: model -> the same for each server that has it.
        rates: model -> rows a second between looks, the oldest first.
    """

    taken_us: int
    servers: tuple[Source, ...]
    gateway: Source | None
    models: Mapping[str, Figures]
    by_server: Mapping[str, tuple[Figures, ...]]
    rates: Mapping[str, tuple[float, ...]]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "servers": [one.as_json() for one in self.servers],
            "gateway": None if self.gateway is None else self.gateway.as_json(),
            "models": [
                {**one.as_json(), "servers": [mine.as_json() for mine in self.by_server[name]]}
                for name, one in self.models.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class _Step:
    """What came between two looks: (server, model) -> work, model -> what ended at the gateway, and in how long."""

    taken_us: int
    works: Mapping[tuple[str, str], Work]
    ended: Mapping[str, Tally]
    ended_us: int


class History:
    """Takes looks, and remembers no more than a window of them."""

    def __init__(self, objectives: Mapping[str, Objectives] | None = None, *, window_us: int = WINDOW_US) -> None:
        """Nothing was seen yet.

        Args:
            objectives: model -> what was promised to its callers.
            window_us: what figures are taken over; at least the stretch between the last two looks.
        """
        self._objectives = dict(objectives or {})
        self._window_us = window_us
        self._known: dict[str, dict[str, Known]] = {}
        """Of every server as it answered last, through any silence."""
        self._ended: dict[str, Tally] | None = None
        self._ended_us = 0
        self._steps: deque[_Step] = deque()
        self._rates: dict[str, deque[float]] = {}

    def add(self, seen: Seen) -> View:
        """One more look, and what there is to see now."""
        sources, now, works = [], {}, {}
        for name in sorted(seen.servers):
            said = seen.servers[name]
            try:
                models = said if isinstance(said, str) else done.known(said)
            except BrimError as error:
                models = error.message
            if isinstance(models, str):
                sources.append(Source(name, models or "no answer"))
                self._forget(name)
                continue
            assert isinstance(said, SeenServer)
            mine = self._since(name, models)
            works.update({(name, model): work for model, work in mine.items()})
            now[name] = dict(list(models.items())[:MOST_MODELS])
            self._known[name] = now[name]
            sources.append(Source(name, restarted=any(work.restarted for work in mine.values())))
        self._known = {name: models for name, models in self._known.items() if name in seen.servers}
        gateway, ended, ended_us, in_flight = self._at_gateway(seen)
        self._steps.append(_Step(seen.taken_us, works, ended, ended_us))
        while len(self._steps) > 1 and self._steps[0].taken_us <= seen.taken_us - self._window_us:
            self._steps.popleft()
        self._note_rates(works)
        return self._view(seen, sources, gateway, now, in_flight)

    def _since(self, name: str, models: Mapping[str, Known]) -> dict[str, Work]:
        before = self._known.get(name)
        if before is None:
            return {}
        # A server that had no model loaded tells no time.
        last_us = max((one.taken_us for one in before.values()), default=None)
        works = {}
        for model, after in models.items():
            if model in before:
                works[model] = done.between(before[model], after)
            elif last_us is not None:
                works[model] = done.loaded_since(after, after.taken_us - last_us)
        return works

    def _forget(self, name: str) -> None:
        """A server that is silent does nothing: what it did before is no figure of now."""
        self._steps = deque(
            _Step(
                step.taken_us,
                {key: work for key, work in step.works.items() if key[0] != name},
                step.ended,
                step.ended_us,
            )
            for step in self._steps
        )

    def _at_gateway(self, seen: Seen) -> tuple[Source | None, dict[str, Tally], int, dict[str, int]]:
        said = seen.gateway
        parsed = said if said is None or isinstance(said, str) else _parsed(said)
        if said is None or isinstance(said, str) or isinstance(parsed, str) or parsed is None:
            self._steps = deque(_Step(step.taken_us, step.works, {}, 0) for step in self._steps)
            return (None if parsed is None else Source("gateway", str(parsed) or "no answer")), {}, 0, {}
        totals, in_flight = parsed
        totals = dict(sorted(totals.items())[:MOST_MODELS])
        before, self._ended = self._ended, totals
        wall_us, self._ended_us = said.taken_us - self._ended_us, said.taken_us
        if before is None:
            return Source("gateway"), {}, 0, in_flight
        ended = {model: at_gateway.between(before.get(model, NONE_ENDED), after) for model, after in totals.items()}
        # Nothing of what it had before may be missing now.
        restarted = any(
            model not in totals or ended[model] is totals[model] for model, one in before.items() if one.timed
        )
        return Source("gateway", restarted=restarted), ended, max(0, wall_us), in_flight

    def _note_rates(self, works: Mapping[tuple[str, str], Work]) -> None:
        rates: dict[str, float] = {}
        for (_, model), work in works.items():
            rates[model] = rates.get(model, 0.0) + (figures(model, "", work, ()).rate_per_s or 0.0)
        self._rates = {
            model: deque((*self._rates.get(model, ()), rate), maxlen=MOST_RATES) for model, rate in rates.items()
        }

    def _view(
        self,
        seen: Seen,
        sources: list[Source],
        gateway: Source | None,
        now: Mapping[str, Mapping[str, Known]],
        in_flight: Mapping[str, int],
    ) -> View:
        names = {model for models in now.values() for model in models}
        names |= {model for step in self._steps for model in step.ended}
        models, by_server = {}, {}
        for model in sorted(names)[:MOST_MODELS]:
            having = [name for name in sorted(now) if model in now[name]]
            worked = {name: self._worked(name, model) for name in having}
            works = [work for work in worked.values() if work is not None]
            objectives = self._objectives.get(model)
            ended_steps = [step for step in self._steps if step.ended_us]
            models[model] = figures(
                model,
                "",
                done.side_by_side(works) if works else None,
                [now[name][model] for name in having],
                objectives=objectives,
                ended=at_gateway.added(step.ended.get(model, NONE_ENDED) for step in ended_steps)
                if ended_steps
                else None,
                ended_us=sum(step.ended_us for step in ended_steps),
                in_flight=in_flight.get(model),
            )
            by_server[model] = tuple(
                figures(model, name, worked[name], [now[name][model]], objectives=objectives) for name in having
            )
        rates = {model: tuple(rates) for model, rates in self._rates.items()}
        return View(seen.taken_us, tuple(sources), gateway, models, by_server, rates)

    def _worked(self, name: str, model: str) -> Work | None:
        works = [step.works[name, model] for step in self._steps if (name, model) in step.works]
        return done.one_after_the_other(works) if works else None


def _parsed(said: SeenGateway) -> tuple[dict[str, Tally], dict[str, int]] | str:
    """What the gateway's page says, or what is wrong with it."""
    try:
        return parse_gateway(said.page)
    except (ValueError, OverflowError) as error:
        return f"its page has another form than Envoy's: {error}"
