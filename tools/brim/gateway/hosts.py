"""What Envoy itself says of each replica's ports: the requests under way there, and whether it gets more."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from brim.errors import ServerFailed

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Host:
    """One address, over all clusters that have it.

    Attributes:
        under_way: requests and streams that have not ended.
        draining: no cluster gives it any more.
    """

    under_way: int
    draining: bool


def hosts(admin: str) -> dict[str, Host]:
    """Every upstream address as ``host:port``.

    Args:
        admin: ``host:port`` of Envoy's own pages.

    Raises:
        ServerFailed: the page does not answer.
    """
    try:
        with urllib.request.urlopen(f"http://{admin}/clusters?format=json", timeout=TIMEOUT_S) as answer:
            return hosts_in(json.loads(answer.read()))
    except (OSError, ValueError) as error:
        raise ServerFailed(
            f"the gateway's page of hosts does not answer: {error}", hint="is Envoy still there?"
        ) from error


def hosts_in(page: Mapping[str, Any]) -> dict[str, Host]:
    """The same from the page (``envoy.admin.v3.Clusters``)."""
    found: dict[str, Host] = {}
    for cluster in page.get("cluster_statuses", ()):
        for status in cluster.get("host_statuses", ()):
            socket = status["address"]["socket_address"]
            address = f"{socket['address']}:{socket['port_value']}"
            stats = {stat["name"]: int(stat.get("value", 0)) for stat in status.get("stats", ())}
            draining = status.get("health_status", {}).get("eds_health_status") == "DRAINING"
            before = found.get(address, Host(0, draining=True))
            found[address] = Host(before.under_way + stats.get("rq_active", 0), before.draining and draining)
    return found


def stat(admin: str, name: str) -> int:
    """One of Envoy's counters or gauges.

    Raises:
        ServerFailed: the page does not answer, or has none of this name.
    """
    try:
        query = urlencode({"filter": f"^{re.escape(name)}$"})
        with urllib.request.urlopen(f"http://{admin}/stats?{query}", timeout=TIMEOUT_S) as answer:
            return int(answer.read().decode().rpartition(":")[2])
    except (OSError, ValueError) as error:
        raise ServerFailed(f"the gateway does not tell {name}: {error}", hint="is Envoy still there?") from error
