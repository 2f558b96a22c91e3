"""``guard.lua`` in the Lua that Envoy uses, behind a stand-in for Envoy's handle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lupa.luajit21 import LuaRuntime

from brim.gateway.envoy_config import guard_source
from brim.gateway.limits import RequestLimits


@dataclass
class Verdict:
    """What the filter did: ``status`` is None when the request goes on to Triton."""

    status: int | None = None
    grpc_status: int | None = None
    text: str = ""
    log: list[str] = field(default_factory=list)
    set_headers: dict[str, str] = field(default_factory=dict)


class LuaGuard:
    def __init__(self, limits: RequestLimits | None = None) -> None:
        # Bytes in, bytes out: bodies are no text.
        self._lua = LuaRuntime(encoding=None)
        self._lua.execute(guard_source(limits or RequestLimits()).encode())
        self._ask = self._lua.eval(
            b"""function(headers, body, respond, log, changed)
              envoy_on_request({
                headers = function() return {
                  get = function(_, name) return headers[name] end,
                  remove = function(_, name) headers[name] = nil end,
                  replace = function(_, name, value) headers[name] = value; changed(name, value) end,
                } end,
                streamInfo = function() return { protocol = function() return headers['protocol'] end } end,
                clearRouteCache = function() end,
                body = function()
                  return { length = function() return #body end, getBytes = function() return body end }
                end,
                respond = function(_, answer, text) respond(answer[':status'], answer['grpc-status'], text) end,
                logErr = function(_, text) log(text) end,
              })
            end"""
        )

    def __call__(self, path: str, body: bytes, *, method: str = "POST", **headers: str) -> Verdict:
        verdict = Verdict()

        def respond(status: bytes, grpc_status: bytes | None, text: bytes) -> None:
            verdict.status, verdict.text = int(status), text.decode()
            verdict.grpc_status = int(grpc_status) if grpc_status else None

        def changed(name: bytes, value: bytes) -> None:
            verdict.set_headers[name.decode()] = value.decode()

        named: dict[str, Any] = {name.replace("_", "-"): value for name, value in headers.items()}
        table = {name.encode(): value.encode() for name, value in {":path": path, ":method": method, **named}.items()}
        self._ask(self._lua.table_from(table), body, respond, lambda text: verdict.log.append(text.decode()), changed)
        return verdict

    def http(self, body: bytes, header_length: str | None = None) -> Verdict:
        more = {} if header_length is None else {"inference_header_content_length": header_length}
        return self("/v2/models/m/infer", body, **more)

    def grpc(self, message: bytes) -> Verdict:
        frame = b"\x00" + len(message).to_bytes(4, "big") + message
        return self("/inference.GRPCInferenceService/ModelInfer", frame, content_type="application/grpc")
