"""A server that answers inferences as a replica would, tells who it is, and has a metrics page: ``NAME DELAY_S``, ports chosen.

Prints ``{"http": port, "grpc": port}`` when it listens. ``POST /told`` sets what its page says; requests in flight show as running.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

PAGE = """brim_llm_requests_waiting{{model="story",process="{process}"}} {waiting}
brim_llm_requests_running{{model="story",process="{process}"}} {running}
brim_llm_kv_cache_usage_ratio{{model="story",process="{process}"}} {usage}
nv_inference_pending_request_count{{model="sorter",version="1"}} {waiting}
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name, delay_s = "", 0.0
    told: ClassVar[dict[str, float]] = {"waiting": 0, "usage": 0.0, "process": 1}
    in_flight = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        page = PAGE.format(running=self.in_flight, **self.told) if self.path == "/metrics" else "{}"
        self._answer(page.encode())

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/told":
            self.told.update(json.loads(body))
            return self._answer(b"{}")
        with self.lock:
            Handler.in_flight += 1
        try:
            time.sleep(float(self.headers.get("x-delay-s", self.delay_s)))
            picked = self.headers.get("x-gateway-destination-endpoint", "")
            self._answer(json.dumps({"replica": self.name, "picked": picked, "bytes": len(body)}).encode())
        finally:
            with self.lock:
                Handler.in_flight -= 1

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Callers leave."""


if __name__ == "__main__":
    Handler.name, Handler.delay_s = sys.argv[1], float(sys.argv[2])
    # Two ports, as a replica has.
    with Server(("127.0.0.1", 0), Handler) as first, Server(("127.0.0.1", 0), Handler) as second:
        threading.Thread(target=second.serve_forever, daemon=True).start()
        ports = {"http": first.server_address[1], "grpc": second.server_address[1]}
        sys.stdout.write(f"{json.dumps(ports)}\n")
        sys.stdout.flush()
        first.serve_forever()
