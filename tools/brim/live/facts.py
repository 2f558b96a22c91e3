"""One model in words: what the overview has no column for."""

from __future__ import annotations

from collections.abc import Mapping

from brim.live.columns import BLANK, at_most_text, count_text, percent_text
from brim.live.figures import AtGateway, Figures, Latency, Text
from brim.units import US_PER_S


def facts(model: Figures) -> list[tuple[str, str]]:
    """Name and text of each, in the order of reading. What cannot be known is left out."""
    found = [
        ("versions", ", ".join(model.versions) or "none is loaded"),
        (
            "answered",
            f"{model.requests:,} requests; {model.inferences:,} rows in {model.executions:,} batches "
            f"in the last {count_text(round(model.wall_us / US_PER_S, 1))} s",
        ),
    ]
    if model.failed or model.failures:
        found.append(("failed in Triton", f"{model.failed:,}" + _in_brackets(model.failures or {})))
    if model.latency is not None:
        where = "at the gateway" if model.latency.source == "gateway" else "by the model itself"
        found.append((f"latency {where}", _latency_text(model.latency)))
    if model.gateway is not None:
        found += _of_gateway(model.gateway)
    if model.text is not None:
        found += _of_text(model.text)
    if model.restarted:
        found.append(("began anew", "its counters did: what it had done before is not in these figures"))
    return found


def counts_text(counts: Mapping[str, int]) -> str:
    """Name and count of those that happened, the commonest first."""
    happened = sorted(((name, count) for name, count in counts.items() if count), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in happened) or "none"


def _in_brackets(counts: Mapping[str, int]) -> str:
    return f" ({counts_text(counts)})" if any(counts.values()) else ""


def _latency_text(latency: Latency) -> str:
    p50, p99 = (at_most_text(us) for us in (latency.p50_us, latency.p99_us))
    return f"p50 {p50} ms, p99 {p99} ms of {latency.answers:,}"


def _of_gateway(gateway: AtGateway) -> list[tuple[str, str]]:
    rate = "" if gateway.offered_per_s is None else f"{count_text(gateway.offered_per_s)}/s: "
    found = [("ended at the gateway", rate + counts_text(gateway.outcomes))]
    if gateway.reasons:
        found.append(("refused because", counts_text(gateway.reasons)))
    if len(gateway.classes) > 1:
        found += [(f"class {name or BLANK}", counts_text(counts)) for name, counts in gateway.classes.items()]
    return found


def _of_text(text: Text) -> list[tuple[str, str]]:
    found = [("seats", f"{count_text(text.running)} running, KV cache {percent_text(text.kv_usage)}")]
    if text.ttft is not None:
        found.append(("first token", _latency_text(text.ttft)))
    if text.tpot is not None:
        found.append(("each further token", _latency_text(text.tpot)))
    found.append(
        ("tokens", f"{count_text(text.tokens_per_s)}/s delivered, {count_text(text.prompt_tokens_per_s)}/s of prompts")
    )
    if text.prefix_hit_ratio is not None:
        found.append(("prefix cache", f"{percent_text(text.prefix_hit_ratio)} of the prompts' tokens"))
    if text.preemptions:
        found.append(("preempted", f"{text.preemptions:,}"))
    if text.ends:
        found.append(("texts ended", counts_text(text.ends)))
    if text.refusals:
        found.append(("refused by the host", counts_text(text.refusals)))
    return found
