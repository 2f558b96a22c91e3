"""Looks at servers that were never there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.live.seen import Seen, SeenGateway, SeenServer

S = 1_000_000
ROW_NS = 2_000_000


def totals(
    model: str = "net",
    *,
    sizes: Mapping[int, int] | None = None,
    queue_us: int = 0,
    failed: int = 0,
    version: str = "1",
) -> dict[str, Any]:
    """An entry of Triton's statistics: so many batches of each size since the start, each row a request, 2 ms a batch."""
    sizes = dict(sizes or {})
    rows = sum(size * count for size, count in sizes.items())
    executions = sum(sizes.values())
    return {
        "name": model,
        "version": version,
        "inference_count": rows,
        "execution_count": executions,
        "inference_stats": {
            "success": {"count": rows, "ns": rows * ROW_NS},
            "fail": {"count": failed, "ns": 0},
            "queue": {"count": rows, "ns": queue_us * 1_000},
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": {"count": count, "ns": 0},
                "compute_infer": {"count": count, "ns": count * ROW_NS},
                "compute_output": {"count": count, "ns": 0},
            }
            for size, count in sizes.items()
        ],
    }


def server(at_s: float, *entries: dict[str, Any], page: Sequence[str] | None = (), instances: int = 1) -> SeenServer:
    """What a server with these totals says."""
    taken_us = round(at_s * S)
    counts = {entry["name"]: instances for entry in entries}
    return SeenServer(taken_us, {"model_stats": list(entries)}, counts, None if page is None else tuple(page))


def look(at_s: float, gateway: Sequence[str] | str | None = None, **servers: SeenServer | str) -> Seen:
    """One look."""
    taken_us = round(at_s * S)
    front = gateway if gateway is None or isinstance(gateway, str) else SeenGateway(taken_us, tuple(gateway))
    return Seen(taken_us, servers, front)


def ended_line(
    count: int,
    *,
    model: str = "net",
    name: str = "",
    code: str = "200",
    grpc: str = "",
    reason: str = "",
    flags: str = "",
) -> str:
    """A counter of the gateway's."""
    labels = f'model="{model}",class="{name}",code="{code}",grpc_status="{grpc}",reason="{reason}",flags="{flags}"'
    return f"envoy_brim_requests{{{labels}}} {count}"


def duration_lines(
    within_ms: Mapping[float, int], *, model: str = "net", code: str = "200", grpc: str = ""
) -> list[str]:
    """A histogram of the gateway's: bound in milliseconds -> so many up to it; the highest is all of them."""
    labels = f'model="{model}",class="",code="{code}",grpc_status="{grpc}"'
    bounds = {**{f"{bound:g}": count for bound, count in within_ms.items()}, "+Inf": max(within_ms.values())}
    return [f'envoy_brim_request_duration_bucket{{{labels},le="{bound}"}} {count}' for bound, count in bounds.items()]


def text_page(
    *,
    tokens: int = 0,
    ends: Mapping[str, int] | None = None,
    ttft: Mapping[float, int] | None = None,
    tpot: Mapping[float, int] | None = None,
    kv: float = 0.0,
    running: int = 0,
    waiting: int = 0,
    model: str = "net",
) -> list[str]:
    """What a language model's host has on Triton's page. Histograms: bound in seconds -> so many up to it."""
    mine = f'model="{model}",version="1",process="7"'
    lines = [
        f"brim_llm_requests_running{{{mine}}} {running}",
        f"vllm:num_requests_running{{{mine}}} {running}",
        f"brim_llm_requests_waiting{{{mine}}} {waiting}",
        f"brim_llm_kv_cache_usage_ratio{{{mine}}} {kv}",
        f"brim_llm_output_tokens_total{{{mine}}} {tokens}",
    ]
    lines += [f'brim_llm_requests_total{{{mine},end="{end}"}} {count}' for end, count in (ends or {}).items()]
    for name, buckets in (("time_to_first_token", ttft), ("time_per_output_token", tpot)):
        if buckets:
            count = max(buckets.values())
            full = f"brim_llm_{name}_seconds"
            lines += [f'{full}_bucket{{{mine},le="{bound:g}"}} {upto}' for bound, upto in buckets.items()]
            lines += [f'{full}_bucket{{{mine},le="+Inf"}} {count}', f"{full}_count{{{mine}}} {count}"]
            lines += [f"{full}_sum{{{mine}}} {count * 0.01}"]
    return lines
