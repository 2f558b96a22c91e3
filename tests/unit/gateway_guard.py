"""The gateway's filter in the Lua that Envoy uses, behind a stand-in for Envoy's handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lupa.luajit21 import LuaRuntime

from brim.gateway.admission import Admission
from brim.gateway.envoy_config import filter_source
from brim.gateway.limits import RequestLimits
from brim.gateway.replicas import Replicas


@dataclass
class Verdict:
    """What the filter did: ``status`` is None when the request goes on to Triton."""

    status: int | None = None
    grpc_status: int | None = None
    text: str = ""
    reason: str = ""
    retry_after: str | None = None
    log: list[str] = field(default_factory=list)
    set_headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """What goes on in place of what came; None where that goes on."""
    handle: Any = None
    """Of the stream: while it is kept, the caller is there."""


class LuaStream:
    """A ``ModelStreamInfer`` call, piece by piece. Once nothing refers to it, its caller has left."""

    def __init__(self, lua: LuaRuntime, headers: Mapping[str, str], guard: LuaGuard) -> None:
        log: list[str] = []
        self.log = log  # Not through self, which Lua would keep alive.
        all_headers = {":path": "/inference.GRPCInferenceService/ModelStreamInfer", "content-type": "application/grpc"}
        table = {name.encode(): value.encode() for name, value in {**all_headers, **headers}.items()}
        self._call = lua.eval(
            b"""function(headers, log, clock)
              local metadata = {}
              local function handle()
                return {
                  headers = function() return {
                    get = function(_, name) if headers[name] then return headers[name] end end,
                    remove = function() end,
                  } end,
                  streamInfo = function() return { dynamicMetadata = function() return {
                    get = function(_, name) return metadata[name] end,
                    set = function(_, name, key, value)
                      metadata[name] = metadata[name] or {}; metadata[name][key] = value
                    end,
                  } end } end,
                  timestamp = function() return clock() end,
                  bodyChunks = function() return coroutine.yield end,
                  logWarn = function(_, text) log(text) end,
                  logErr = function(_, text) log(text) end,
                }
              end
              local function go_on(running, ...)
                local fine, fault = coroutine.resume(running, ...)
                assert(fine, fault)
              end
              local function piece(text, set)
                return {
                  length = function() return #text end,
                  getBytes = function(_, from, length) return text:sub(from + 1, from + length) end,
                  setBytes = set,
                }
              end
              local asks, answers = coroutine.create(envoy_on_request), coroutine.create(envoy_on_response)
              go_on(asks, handle())
              return {
                send = function(text)
                  local passed
                  go_on(asks, piece(text, function(_, bytes) passed = bytes end))
                  return passed
                end,
                begin_answers = function() go_on(answers, handle()) end,
                answer = function(text) go_on(answers, piece(text)) end,
                finish = function() go_on(answers, nil) end,
                noted = function(key) return metadata.brim[key] end,
              }
            end"""
        )(lua.table_from(table), lambda text: log.append(text.decode()), lambda: guard.now_ms)
        self._call[b"begin_answers"]()

    def send(self, text: bytes) -> bytes:
        """What goes on of a piece of the call's body."""
        passed: bytes = self._call[b"send"](text)
        return passed

    def answer(self, text: bytes) -> None:
        """A piece of what Triton sends back."""
        self._call[b"answer"](text)

    def finish(self) -> None:
        """Triton ends the stream."""
        self._call[b"finish"]()

    def noted(self, what: str) -> Any:
        """For the counters."""
        value = self._call[b"noted"](what.encode())
        return value.decode() if isinstance(value, bytes) else value


class LuaGuard:
    """The filter. ``now_ms`` is its clock."""

    def __init__(
        self,
        limits: RequestLimits | None = None,
        admitted: Mapping[str, Admission] | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self.now_ms = 1_000_000
        # Bytes in, bytes out: bodies are no text.
        self._lua = LuaRuntime(encoding=None)
        self._lua.execute(filter_source(limits or RequestLimits(), admitted or {}, replicas=replicas).encode())
        self._ask = self._lua.eval(
            b"""function(headers, body, respond, log, changed, replaced, clock)
              local metadata = {}
              local handle = {
                headers = function() return {
                  get = function(_, name) if headers[name] then return headers[name] end end,
                  remove = function(_, name) headers[name] = nil end,
                  replace = function(_, name, value) headers[name] = value; changed(name, value) end,
                } end,
                streamInfo = function() return {
                  protocol = function() return headers['protocol'] end,
                  dynamicMetadata = function() return {
                    get = function(_, name) return metadata[name] end,
                    set = function(_, name, key, value)
                      metadata[name] = metadata[name] or {}; metadata[name][key] = value
                    end,
                  } end,
                } end,
                timestamp = function() return clock() end,
                clearRouteCache = function() end,
                body = function()
                  return {
                    length = function() return #body end,
                    getBytes = function() return body end,
                    setBytes = function(_, bytes) replaced(bytes); return #bytes end,
                  }
                end,
                respond = function(_, answer, text)
                  respond(answer[':status'], answer['grpc-status'], answer['x-brim-reason'], answer['retry-after'], text)
                end,
                logErr = function(_, text) log(text) end,
              }
              envoy_on_request(handle)
              return handle
            end"""
        )
        self._end = self._lua.eval(
            b"""function(handle, status)
              handle.headers = function() return { get = function() return status end } end
              envoy_on_response(handle)
            end"""
        )

        self._answer = self._lua.eval(
            b"""function(handle, headers, text)
              local body = {
                length = function() return #text end,
                getBytes = function() return text end,
                setBytes = function(_, bytes) text = bytes; return #bytes end,
              }
              handle.headers = function() return {
                get = function(_, name) return headers[name] end,
                replace = function(_, name, value) headers[name] = value end,
              } end
              handle.body = function() return body end
              handle.bodyChunks = function()
                local given = 0
                return function() given = given + 1; return given <= 2 and {
                  length = function() return #text end,
                  getBytes = function() return given == 1 and text:sub(1, -9) or text:sub(-8) end,
                } or nil end
              end
              envoy_on_response(handle)
              local noted = handle.streamInfo().dynamicMetadata():get("brim").broken
              return headers[":status"], headers["x-brim-reason"] or "", headers["retry-after"] or "", noted or "", text
            end"""
        )

    def stream(self, **headers: str) -> LuaStream:
        """A ``ModelStreamInfer`` call."""
        return LuaStream(self._lua, {name.replace("_", "-"): value for name, value in headers.items()}, self)

    def answered(self, verdict: Verdict, status: int = 200) -> None:
        """The answer to a request begins."""
        self._end(verdict.handle, str(status).encode())
        verdict.handle = None

    def reworded(self, verdict: Verdict, status: int, content_type: str, text: str) -> tuple[str, ...]:
        """Status, reason, ``Retry-After``, noted fault and body of the answer to a request, where Triton gives this one."""
        table = {b":status": str(status).encode(), b"content-type": content_type.encode()}
        found = self._answer(verdict.handle, self._lua.table_from(table), text.encode())
        return tuple(one.decode() for one in found)

    def __call__(self, path: str, body: bytes, *, method: str = "POST", **headers: str) -> Verdict:
        verdict = Verdict()

        def respond(
            status: bytes, grpc_status: bytes | None, reason: bytes, retry_after: bytes | None, text: bytes
        ) -> None:
            verdict.status, verdict.text, verdict.reason = int(status), text.decode(), reason.decode()
            verdict.retry_after = retry_after.decode() if retry_after else None
            verdict.grpc_status = int(grpc_status) if grpc_status else None

        def changed(name: bytes, value: bytes) -> None:
            verdict.set_headers[name.decode()] = value.decode()

        named: dict[str, Any] = {name.replace("_", "-"): value for name, value in headers.items()}
        table = {name.encode(): value.encode() for name, value in {":path": path, ":method": method, **named}.items()}
        log = verdict.log
        verdict.handle = self._ask(
            self._lua.table_from(table),
            body,
            respond,
            lambda text: log.append(text.decode()),
            changed,
            lambda bytes_: setattr(verdict, "body", bytes_),
            lambda: self.now_ms,
        )
        return verdict

    def http(self, body: bytes, header_length: str | None = None) -> Verdict:
        more = {} if header_length is None else {"inference_header_content_length": header_length}
        return self("/v2/models/m/infer", body, **more)

    def grpc(self, message: bytes) -> Verdict:
        frame = b"\x00" + len(message).to_bytes(4, "big") + message
        return self("/inference.GRPCInferenceService/ModelInfer", frame, content_type="application/grpc")
