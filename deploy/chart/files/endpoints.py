"""Keeps the files in which Envoy and the picker find the replicas: all addresses behind a name.

    python3 endpoints.py NAME ENVOY_JSON [--files-only] [--every SECONDS]

Needs nothing but Python. Which files there are to be says the gateway's configuration; each is written whole or not at all. A
name that does not resolve leaves the last good files in place. Beside Envoy it also lets the bounds on requests in flight, which
are those of one replica, be those of all.
"""

import json
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HTTP, GRPC, METRICS = ("http", 8000), ("grpc", 8001), 8002
TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
SERVING = "serving"
ADMIN_TIMEOUT_S = 5


def wanted(config):
    """Cluster -> its file, and its bound on requests in flight for one replica."""
    found = {}
    for cluster in config["static_resources"]["clusters"]:
        source = cluster.get("eds_cluster_config", {}).get("eds_config", {}).get("path_config_source")
        if source:
            bound = cluster["circuit_breakers"]["thresholds"][0]["max_requests"]
            found[cluster["name"]] = (Path(source["path"]), bound)
    return found


def addresses(name):
    """Every address behind the name, in order; raises OSError when it does not resolve."""
    return sorted({found[4][0] for found in socket.getaddrinfo(name, HTTP[1], type=socket.SOCK_STREAM)})


def document(cluster, found):
    """Two hosts of each replica, one a protocol; both are asked for their health at the HTTP port."""
    hosts = [
        {
            "endpoint": {
                "address": {"socket_address": {"address": address, "port_value": port}},
                "health_check_config": {"port_value": HTTP[1]},
            },
            "metadata": {
                "filter_metadata": {
                    "envoy.lb": {"protocol": protocol},
                    "brim": {
                        "replica": address,
                        "metrics": f"[{address}]:{METRICS}" if ":" in address else f"{address}:{METRICS}",
                    },
                }
            },
            "load_balancing_weight": 1,
        }
        for address in found
        for protocol, port in (HTTP, GRPC)
    ]
    return {"resources": [{"@type": TYPE, "cluster_name": cluster, "endpoints": [{"lb_endpoints": hosts}]}]}


def write(path, text):
    """Put the file in place by a rename, which is what Envoy watches for."""
    beside = path.with_name(f".new-{path.name}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def publish(clusters, found):
    """Write every file, and at last how many replicas there are."""
    for cluster, (path, _) in clusters.items():
        write(path, json.dumps(document(cluster, found)))
    for folder in {path.parent for path, _ in clusters.values()}:
        write(folder / SERVING, f"{len(found)}\n")


def allow_for(config, clusters, serving):
    """Let the bounds be those of so many replicas; raises OSError when Envoy does not answer."""
    where = config["admin"]["address"]["socket_address"]
    keys = {
        f"circuit_breakers.{cluster}.default.max_requests": bound * max(1, serving)
        for cluster, (_, bound) in clusters.items()
    }
    address = f"http://{where['address']}:{where['port_value']}/runtime_modify?{urllib.parse.urlencode(keys)}"
    with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=ADMIN_TIMEOUT_S) as answer:
        answer.read()


def main(name, config_path, *options):
    """Runs until it is ended."""
    files_only = "--files-only" in options
    pause_s = float(options[options.index("--every") + 1]) if "--every" in options else 1.0
    config = json.loads(Path(config_path).read_text(encoding="utf-8"))
    clusters = wanted(config)
    published, allowed = None, None
    while True:
        try:
            found = addresses(name)
        except OSError as error:
            if published:
                sys.stderr.write(f"{name} does not resolve: {error}\n")
            found = published or []
        if found != published:
            publish(clusters, found)
            published = found
        if allowed != len(found) and not files_only:
            try:
                allow_for(config, clusters, len(found))
                allowed = len(found)
            except OSError as error:
                sys.stderr.write(f"the gateway is not there yet: {error}\n")
        time.sleep(pause_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
