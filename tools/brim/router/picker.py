"""The picker: an external processor of Envoy's that says which replica a request is to go to.

It speaks the endpoint-picker protocol of the Gateway API Inference Extension (proposal 004): the answer to a request's
headers or body sets the header ``x-gateway-destination-endpoint`` and, under ``envoy.lb``, the dynamic metadata of that name, to
the endpoint and one that a retry may take. Where no replica can be named it answers without, and the gateway balances.

A call lasts as long as its request does, so that its end is the request's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from brim.router.decisions import DecisionLog
from brim.router.metrics_page import ALL
from brim.router.pools import Placed, Pools
from brim.router.prompt import GRPC_HEAD, prompt_of_grpc, prompt_of_json, request_of
from brim.router.protocol import CLASS_HEADER, DESTINATION, HEAD_LENGTH_HEADER, LB_METADATA, MODEL_HEADER, SERVICE
from brim.router.view import LEAST_IMPORTANT, Request
from brim.router.watch import Watch, clock_us

PATH = re.compile(r"/v2/models/([^/?]+)(?:/versions/[^/?]+)?/(?:infer|generate|generate_stream)(?:\?.*)?")
LARGEST_HELD = 4 << 20
"""Of a body that comes in pieces; of what is longer the beginning counts."""
UNCHANGED = {
    "response_headers": ext_proc.HeadersResponse(),
    "response_body": ext_proc.BodyResponse(),
    "response_trailers": ext_proc.TrailersResponse(),
}
"""Answers to what is not looked at."""


class Picker:
    """The service. For one event loop."""

    def __init__(
        self,
        pools: Pools,
        watch: Watch,
        *,
        classes: Mapping[str, int] | None = None,
        decisions: DecisionLog | None = None,
    ) -> None:
        """Nothing is served yet.

        Args:
            pools: place the requests.
            watch: knows where the replicas answer.
            classes: class of callers -> its priority, 1 the most important.
            decisions: where every decision goes.
        """
        self._pools, self._watch = pools, watch
        self._classes = dict(classes or {})
        self._decisions = decisions
        self.picked: Counter[tuple[str, str, str]] = Counter()
        """Model, replica, reason -> requests."""
        self.unplaced = 0

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """For a server."""
        process = grpc.stream_stream_rpc_method_handler(
            self.process,
            request_deserializer=ext_proc.ProcessingRequest.FromString,
            response_serializer=ext_proc.ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": process})

    async def process(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """One request, from its headers to its end."""
        call = _Call(self)
        try:
            async for message in messages:
                for answer in call.answers(message):
                    yield answer
        finally:
            call.end()

    def place(self, headers: Mapping[str, str], body: bytes) -> tuple[Placed | None, str]:
        """Pick. The request under way, and the endpoints for it; None and nothing when no replica takes any."""
        found = PATH.fullmatch(headers.get(":path", ""))
        model = found[1] if found else headers.get(MODEL_HEADER, ALL)
        now_us = clock_us()
        placed = self._pools.pick(model, self._request(headers, body), now_us)
        if placed is None:
            self.unplaced += 1
            return None, ""
        decision = placed.decision
        self.picked[placed.pool, decision.name, decision.choice.reason] += 1
        if self._decisions is not None:
            self._decisions.write(decision, self._pools.settings)
        names = (decision.name, self._pools.router(placed.pool).next_best(decision))
        servers = (self._watch.servers[name] for name in names if name is not None)
        return placed, ",".join(server.endpoint(is_grpc=is_grpc(headers)) for server in servers)

    def end(self, placed: Placed) -> None:
        """A request has ended."""
        self._pools.end(placed, clock_us())

    def _request(self, headers: Mapping[str, str], body: bytes) -> Request:
        priority = self._classes.get(headers.get(CLASS_HEADER, ""), LEAST_IMPORTANT)
        if not body:
            return Request(priority=priority)
        head = headers.get(HEAD_LENGTH_HEADER, "")
        prompt = (
            prompt_of_grpc(body) if is_grpc(headers) else prompt_of_json(body, int(head) if head.isdecimal() else None)
        )
        return request_of(prompt, self._pools.settings.block_tokens, priority)


class _Call:
    """The messages of one request. Each is answered once, and the replica is named in the first answer that can."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self._placed: Placed | None = None
        self._named = False
        self._headers: dict[str, str] = {}
        self._duplex = False
        self._pieces: list[bytes] = []

    def answers(self, message: Any) -> list[Any]:
        kind = message.WhichOneof("request")
        if kind == "request_headers":
            return self._on_headers(message)
        if kind == "request_body":
            return self._on_body(message.request_body)
        if kind == "request_trailers":
            return [
                *self._let_go(ends=False),
                ext_proc.ProcessingResponse(request_trailers=ext_proc.TrailersResponse()),
            ]
        return [ext_proc.ProcessingResponse(**{kind: UNCHANGED[kind]})] if kind in UNCHANGED else []

    def end(self) -> None:
        if self._placed is not None:
            self._picker.end(self._placed)
            self._placed = None

    def _on_headers(self, message: Any) -> list[Any]:
        headers = message.request_headers
        self._headers = {
            one.key: (one.raw_value or one.value.encode()).decode(errors="replace") for one in headers.headers.headers
        }
        mode = message.protocol_config.request_body_mode
        self._duplex = mode == ProcessingMode.FULL_DUPLEX_STREAMED
        if headers.end_of_stream or mode == ProcessingMode.NONE:
            return [self._name("request_headers", ext_proc.HeadersResponse, b"")]
        # Of a body that is streamed both ways, the headers go on as soon as they are answered.
        return [] if self._duplex else [ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse())]

    def _on_body(self, body: Any) -> list[Any]:
        if not self._duplex:
            return [self._name("request_body", ext_proc.BodyResponse, body.body)]
        if self._named:
            return [_streamed(body.body, ends=body.end_of_stream)]
        self._pieces.append(body.body)
        enough = body.end_of_stream or sum(map(len, self._pieces)) >= LARGEST_HELD or self._has_message()
        return self._let_go(ends=body.end_of_stream) if enough else []

    def _has_message(self) -> bool:
        """Whether the first message of a gRPC call is there. A stream of them may never end."""
        held = b"".join(self._pieces)
        return (
            is_grpc(self._headers)
            and len(held) >= GRPC_HEAD.size
            and len(held) - GRPC_HEAD.size >= GRPC_HEAD.unpack_from(held)[1]
        )

    def _let_go(self, *, ends: bool) -> list[Any]:
        """The headers, and what was held back of the body."""
        if not self._duplex or self._named:
            return []
        pieces, self._pieces = self._pieces, []
        first = self._name("request_headers", ext_proc.HeadersResponse, b"".join(pieces))
        last = len(pieces) - 1
        return [first, *(_streamed(piece, ends=ends and place == last) for place, piece in enumerate(pieces))]

    def _name(self, field: str, answer: Any, body: bytes) -> Any:
        endpoints = ""
        if not self._named:
            self._named = True
            self._placed, endpoints = self._picker.place(self._headers, body)
        return _response(field, answer, endpoints)


def is_grpc(headers: Mapping[str, str]) -> bool:
    """Whether a request is a gRPC call."""
    return headers.get("content-type", "").startswith("application/grpc")


def _streamed(piece: bytes, *, ends: bool) -> Any:
    """A piece of a body that is streamed both ways, as it came."""
    mutation = ext_proc.BodyMutation(streamed_response=ext_proc.StreamedBodyResponse(body=piece, end_of_stream=ends))
    return ext_proc.ProcessingResponse(
        request_body=ext_proc.BodyResponse(response=ext_proc.CommonResponse(body_mutation=mutation))
    )


def _response(field: str, answer: Any, endpoints: str) -> Any:
    if not endpoints:
        return ext_proc.ProcessingResponse(**{field: answer()})
    option = HeaderValueOption(
        header=HeaderValue(key=DESTINATION, raw_value=endpoints.encode()),
        append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    common = ext_proc.CommonResponse(header_mutation=ext_proc.HeaderMutation(set_headers=[option]))
    response = ext_proc.ProcessingResponse(**{field: answer(response=common)})
    response.dynamic_metadata.update({LB_METADATA: {DESTINATION: endpoints}})
    return response
