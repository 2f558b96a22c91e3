"""Requests over gRPC from greenlets. The library's own gevent support has to be on before the first channel is made."""

from __future__ import annotations

import socket
from contextlib import closing, suppress

import gevent
import grpc
from grpc.experimental import gevent as grpc_gevent  # type: ignore[attr-defined]

from brim.errors import CouldNotTell, ServerFailed
from brim.measure.accounting import Outcome, Reply
from brim.measure.openloop_run import CHANNELS, INFER, LIVE, LONGEST_TEXT, grpc_reply
from brim.server.endpoint import LOOPBACK
from brim.units import US_PER_S
from brim_loadtest.job import Job
from brim_loadtest.line import REASON_HEADER, TENANT_HEADER, class_headers, tenant_name
from brim_loadtest.payload import References, outputs_over_grpc
from brim_loadtest.schedule import Arrival
from brim_loadtest.tally import Ended

CONNECT_TIMEOUT_S = 10.0
SILENT_S = 0.3
TICK_S = 0.01
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Channels with equal arguments share one connection unless told otherwise.
    ("grpc.use_local_subchannel_pool", 1),
]


def make_cooperative() -> None:
    """Switch the library's gevent support on. Before any channel is made."""
    grpc_gevent.init_gevent()


def check_cooperative() -> None:
    """Call somebody who does not answer, and see that other greenlets run meanwhile.

    Without the library's gevent support one call stops every caller of the process until it is over (locustio/locust
    issues 1800 and 2339), and the run would measure that.

    Raises:
        CouldNotTell: nothing else ran while the call waited.
    """
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while True:
            gevent.sleep(TICK_S)
            ticks += 1

    ticking = gevent.spawn(tick)
    try:
        with closing(socket.create_server((LOOPBACK, 0))) as silent:
            address = f"{LOOPBACK}:{silent.getsockname()[1]}"
            with grpc.insecure_channel(address, options=OPTIONS) as channel, suppress(grpc.RpcError):
                channel.unary_unary(LIVE, None, None)(b"", timeout=SILENT_S)
    finally:
        ticking.kill()
    # A busy machine runs few of the thirty; a blocked one runs none.
    if ticks < 2:
        raise CouldNotTell(
            f"gRPC calls stop all other callers of their process: {ticks} of {SILENT_S / TICK_S:.0f} ticks passed beside one",
            hint="grpcio has to come with its gevent support (grpc.experimental.gevent); reinstall it with `make env`",
        )


class GrpcLine:
    """A few channels to one address, taken in turn."""

    def __init__(self, job: Job, references: References) -> None:
        """Nothing is opened yet."""
        self._address = job.grpc
        self._references = references
        self._rows = job.payload.grpc
        self._channels: list[grpc.Channel] = []
        self._calls: list[grpc.UnaryUnaryMultiCallable[bytes, bytes]] = []
        self._metadata = [tuple(class_headers(one, with_timeout=False).items()) for one in job.schedule.callers]
        self._deadline_s = [
            None if one.deadline_us is None else one.deadline_us / US_PER_S for one in job.schedule.callers
        ]

    def open(self) -> None:
        """One question on each channel, so that no connection is made while the clock runs.

        Raises:
            ServerFailed: nothing answers there.
        """
        self._channels = [grpc.insecure_channel(self._address, options=OPTIONS) for _ in range(CHANNELS)]
        self._calls = [channel.unary_unary(INFER, None, None) for channel in self._channels]
        try:
            for channel in self._channels:
                channel.unary_unary(LIVE, None, None)(b"", timeout=CONNECT_TIMEOUT_S)
        except grpc.RpcError as error:
            raise ServerFailed(
                f"{self._address}: no server answers over gRPC: {error.code().name}: {error.details()}",
                hint="--grpc-port tells where the server's gRPC side is; --protocol http goes without",
            ) from error

    def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            channel.close()

    def ask(self, arrival: Arrival) -> Ended:
        """Make one call and wait for its end; a caller that leaves cancels it."""
        metadata = self._metadata[arrival.caller]
        if arrival.tenant:
            metadata = (*metadata, (TENANT_HEADER, tenant_name(arrival.tenant)))
        call = self._calls[arrival.number % CHANNELS].future(
            self._rows[arrival.row], timeout=self._deadline_s[arrival.caller], metadata=metadata
        )
        try:
            answer = call.result()
        except grpc.RpcError:
            return Ended(grpc_reply(call.code().name, call.details() or ""), _reason(call))
        except BaseException:
            call.cancel()  # type: ignore[no-untyped-call]
            raise
        try:
            fault = self._references.fault(arrival.row, outputs_over_grpc(answer))
        except ValueError as error:
            fault = f"not an answer of KServe v2: {error}"
        if fault:
            return Ended(Reply(Outcome.FAILED, f"wrong: {fault}"[:LONGEST_TEXT]), wrong=True, answer_bytes=len(answer))
        return Ended(Reply(Outcome.ANSWERED), answer_bytes=len(answer))


def _reason(call: grpc.Call) -> str:
    for metadata in (call.initial_metadata(), call.trailing_metadata()):
        for name, value in metadata or ():
            if name == REASON_HEADER:
                return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""
