"""A broker that answers as a test says: a thread that listens on a port of 127.0.0.1."""

from __future__ import annotations

import io
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, APIS
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that arrived."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    message: Any


Script = Callable[[Asked], bytes | None]
"""Returns the bytes to send, the frame's size included; None: close the connection."""


def encoded(message: Any) -> bytes:
    """Return kio's message as bytes."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def framed(message: Any, correlation_id: int) -> bytes:
    """Return the whole frame of kio's response."""
    flexible = message.__flexible__ and message.__api_key__ != API_VERSIONS.key
    body = struct.pack(">i", correlation_id) + (b"\0" if flexible else b"") + encoded(message)
    return struct.pack(">i", len(body)) + body


def schema(asked: Asked) -> Any:
    """Return the module with kio's classes of the response to `asked`."""
    from kio.index import load_payload_module
    from kio.static.constants import EntityType

    return load_payload_module(asked.key, asked.version, EntityType.response)


@dataclass
class ScriptedBroker:
    """Answers each request by `script`, on each connection; ApiVersions by itself, with `ranges` by API key."""

    script: Script
    ranges: dict[int, tuple[int, int]] = field(default_factory=lambda: {each.key: (0, each.latest) for each in APIS})
    tls: ssl.SSLContext | None = None
    answers_versions: bool = True
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress("127.0.0.1", self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # A thread in accept is woken by shutdown, not by close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            served = self.tls.wrap_socket(connection, server_side=True) if self.tls else connection
            with served, served.makefile("rb") as incoming:
                while size := incoming.read(4):
                    asked = _decoded(incoming.read(int.from_bytes(size, "big")))
                    self.asked.append(asked)
                    answer = self._answer(asked)
                    if answer is None:
                        return
                    served.sendall(answer)
        except OSError:
            return

    def _answer(self, asked: Asked) -> bytes | None:
        if asked.key == API_VERSIONS.key and self.answers_versions:
            return versions_frame(asked, self.ranges)
        return self.script(asked)


def versions_frame(asked: Asked, ranges: dict[int, tuple[int, int]], error_code: int = 0, version: int = 3) -> bytes:
    """Return the answer to ApiVersions, in the version asked for or an earlier one."""
    from datetime import timedelta

    from kio.schema.errors import ErrorCode

    kio = schema(Asked(asked.key, min(asked.version, version), asked.correlation_id, asked.client_id, asked.message))
    values: dict[str, Any] = {
        "error_code": ErrorCode(error_code),
        "api_keys": tuple(
            kio.ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()
        ),
        "throttle_time": timedelta(0),
    }
    known = kio.ApiVersionsResponse.__dataclass_fields__
    answer = kio.ApiVersionsResponse(**{name: value for name, value in values.items() if name in known})
    return framed(answer, asked.correlation_id)


def _decoded(frame: bytes) -> Asked:
    key, version = struct.unpack_from(">hh", frame)
    kind = load_request_schema(key, version)
    header, size = entity_reader(kind.__header_schema__)(frame, 0)
    message, _ = entity_reader(kind)(frame, size)
    return Asked(key, version, header.correlation_id, header.client_id, message)
