"""Unary calls over gRPC with msgspec JSON as the message format; generic handlers, no generated code.

Owns: channels and servers of grpc.aio, deadlines, size limits, translation of gRPC's errors.
Does not own: what is said (`_services`), retries (the caller knows what a lost message means to it).
"""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
import msgspec

from penstock.model.errors import RetryableError, UserError

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A deployment carries the user's pickled functions and what they close over; gRPC's own 4 MB is too small."""

_SIZES = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)
_CLIENT = (
    *_SIZES,
    # A restarted peer on the same address is found at once; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Control traffic stays on the host or in the cluster, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
)

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class RpcError(RetryableError):
    """A call failed or its time ran out; the other side may or may not have seen the message."""

    def __init__(self, address: str, status: str, details: str) -> None:
        self.address, self.status = address, status
        # gRPC tells the same thing on the way down through its layers; the last one knows why.
        why = details.rpartition(": ")[2] if "last error: " in details else details
        super().__init__("C003", f"call to {address} failed: {status.lower().replace('_', ' ')}: {why}")


class Channel(Generic[Request, Answer]):
    """A connection to one method of one peer; opened on the first call and kept."""

    def __init__(self, address: str, method: str, answer: type[Answer]) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_CLIENT)
        self._call = self._channel.unary_unary(
            method,
            request_serializer=msgspec.json.encode,
            response_deserializer=msgspec.json.Decoder(answer).decode,
        )

    async def call(self, request: Request, *, seconds: float) -> Answer:
        """The peer's answer; RpcError when there is none within `seconds`."""
        try:
            answer: Answer = await self._call(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise RpcError(self.address, error.code().name, error.details() or "no details") from error
        return answer

    async def close(self) -> None:
        """Hang up; calls under way fail."""
        await self._channel.close(grace=None)


class Server:
    """A gRPC server with one service; `port` is known once it is made."""

    def __init__(self, host: str, port: int, *, share_port: bool = False) -> None:
        self._server = grpc.aio.server(options=(*_SIZES, ("grpc.so_reuseport", int(share_port))))
        try:
            self.port: int = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise UserError(
                "C004",
                f"cannot listen on {host}:{port}: the port is taken or the address is not of this machine",
                fix="give another --port (0: any free one) or --host",
            ) from error
        self.address = f"{host}:{self.port}"

    def add(
        self,
        method: str,
        request: type[Request],
        handle: Callable[[Request], Awaitable[Answer]],
    ) -> None:
        """Answer `/Service/Method` by `handle`; before `start`."""
        service, name = method.strip("/").split("/")

        async def unary(message: Request, _context: Any) -> Answer:
            return await handle(message)

        handler = grpc.unary_unary_rpc_method_handler(
            unary,
            request_deserializer=msgspec.json.Decoder(request).decode,
            response_serializer=msgspec.json.encode,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))

    async def start(self) -> None:
        """Take calls from now on."""
        await self._server.start()

    async def stop(self, *, grace_seconds: float = 0.2) -> None:
        """Take no more calls; those under way have `grace_seconds`."""
        await self._server.stop(grace_seconds)
