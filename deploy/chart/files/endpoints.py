"""Keeps a file of all addresses behind a name, as Envoy's EDS has them, for the picker.

    python3 endpoints.py NAME FILE [PAUSE_S]

Needs nothing but Python. The file is written whole or not at all, and only when something has changed. A name that does not
resolve leaves the last good file in place.
"""

import json
import socket
import sys
import time
from pathlib import Path

HTTP, GRPC = ("http", 8000), ("grpc", 8001)
TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


def addresses(name):
    """Every address behind the name, in order; raises OSError when it does not resolve."""
    return sorted({found[4][0] for found in socket.getaddrinfo(name, HTTP[1], type=socket.SOCK_STREAM)})


def document(name, found):
    """Two hosts of each replica, one a protocol; both are asked for their health at the HTTP port."""
    hosts = [
        {
            "endpoint": {
                "address": {"socket_address": {"address": address, "port_value": port}},
                "health_check_config": {"port_value": HTTP[1]},
            },
            "metadata": {"filter_metadata": {"envoy.lb": {"protocol": protocol}}},
        }
        for address in found
        for protocol, port in (HTTP, GRPC)
    ]
    return {"resources": [{"@type": TYPE, "cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}]}


def write(path, text):
    """Put the file in place by a rename."""
    beside = Path(f"{path}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def main(name, path, pause_s="1"):
    """Runs until it is ended."""
    written = None
    while True:
        try:
            text = json.dumps(document(name, addresses(name)))
        except OSError as error:
            if written is None:
                text = json.dumps(document(name, []))
            else:
                sys.stderr.write(f"{name} does not resolve: {error}\n")
                text = written
        if text != written:
            write(path, text)
            written = text
        time.sleep(float(pause_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
