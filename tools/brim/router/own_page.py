"""The picker's own metrics page."""

from __future__ import annotations

from collections.abc import Iterable

from brim.router.picker import Picker
from brim.router.pools import Pools
from brim.router.watch import Watch

WATCHED = {
    "scrape": "Metrics pages of replicas that were read.",
    "scrape_failed": "Metrics pages that were not there, late, or too long.",
    "restart": "Times that a model was seen to have started anew, so that its prefixes were forgotten.",
    "gateway": "Times that Envoy said who is well.",
    "gateway_failed": "Times that it did not.",
    "file_read": "Changes of the file of replicas that were taken over.",
    "file_refused": "Changes of it that could not be read; the replicas stayed as they were.",
}


def own_page(picker: Picker, pools: Pools, watch: Watch) -> str:
    """In Prometheus' text format. Models and replicas are those of the pools, so the number of series is bounded."""
    lines = _family("brim_picker_replicas", "gauge", "Replicas known.", [({}, len(pools.names))])
    lines += _family(
        "brim_picker_picks_total",
        "counter",
        "Requests placed, by model, replica and reason.",
        [
            ({"model": model, "replica": replica, "reason": reason}, count)
            for (model, replica, reason), count in sorted(picker.picked.items())
            if replica in pools.names
        ],
    )
    lines += _family(
        "brim_picker_unplaced_total",
        "counter",
        "Requests for which no replica was named, so that the gateway balances them.",
        [({}, picker.unplaced)],
    )
    places = [(model, pools.router(model), name) for model in pools.models for name in pools.names]
    lines += _family(
        "brim_picker_in_flight",
        "gauge",
        "Requests placed that have not ended.",
        [({"model": model, "replica": name}, router.in_flight(name)) for model, router, name in places],
    )
    lines += _family(
        "brim_picker_prefix_blocks",
        "gauge",
        "Blocks of prompts that a replica is thought to hold.",
        [({"model": model, "replica": name}, router.prefix_blocks(name)) for model, router, name in places],
    )
    for what, help_ in WATCHED.items():
        lines += _family(f"brim_picker_{what}_total", "counter", help_, [({}, watch.counts[what])])
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help_: str, samples: Iterable[tuple[dict[str, str], int]]) -> list[str]:
    lines = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        written = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        lines.append(f"{name}{{{written}}} {value}" if written else f"{name} {value}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
