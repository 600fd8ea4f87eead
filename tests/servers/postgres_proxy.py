"""Stand-ins for a PostgreSQL server: a proxy with TLS, or with faults, and a server that refuses logins.

The server of the package knows no TLS and speaks English.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

_SSL_REQUEST = 80877103
_CLEARTEXT_PASSWORD = b"R" + struct.pack("!ii", 8, 3)


class PostgresProxy:
    """Forwards connections to a server's port, encrypted as `tls` says, until it loses one. See `proxy`."""

    def __init__(self, listener: socket.socket, port: int, tls: ssl.SSLContext | None) -> None:
        self.port: int = listener.getsockname()[1]
        self.loses_commit: Literal["", "question", "answer"] = ""
        """Whether the connection is lost right before the next COMMIT reaches the server, or right after it."""
        self.cuts_before = 0
        """The number of the message, from 1, before which the connection is lost; then 0. 0: none."""
        self.crash: Callable[[], None] | None = None
        """What happens before that message instead, which is then passed on if that is possible."""
        self.has_crashed = threading.Event()
        self.change: Callable[[bytes], bytes] = bytes
        """Returns what is passed on of an answer, perhaps later; a shorter one is the connection's last."""
        self._server_port = port
        self._tls = tls

    def serve(self, client: socket.socket) -> None:
        """Forward one connection until either side ends it."""
        if self._tls is not None:
            assert struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))[1] == _SSL_REQUEST
            client.sendall(b"S")
            client = self._tls.wrap_socket(client, server_side=True)
        with socket.create_connection(("127.0.0.1", self._server_port)) as server:
            is_lost = threading.Event()

            def ask() -> None:
                with suppress(OSError):
                    while (asked := client.recv(65_536)) and not self._is_cut(asked):
                        if self.loses_commit and b"COMMIT\0" in asked:
                            self.loses_commit = ""
                            is_lost.set()
                        server.sendall(asked)
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)

            asking = threading.Thread(target=ask)
            asking.start()
            with suppress(OSError):
                while (answer := server.recv(65_536)) and not is_lost.is_set():
                    changed = self.change(answer)
                    client.sendall(changed)
                    if len(changed) < len(answer):
                        break
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
            asking.join()

    def _is_cut(self, asked: bytes) -> bool:
        if self.loses_commit == "question" and b"COMMIT\0" in asked:
            self.loses_commit = ""
            return True
        is_next, self.cuts_before = self.cuts_before == 1, max(0, self.cuts_before - 1)
        if is_next and self.crash is not None:
            self.crash()
            self.has_crashed.set()
            return False
        return is_next


@contextmanager
def proxy(port: int, tls: ssl.SSLContext | None = None) -> Iterator[PostgresProxy]:
    """Yield a proxy before the server at `port` of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = PostgresProxy(listener, port, tls)
        with accepting(listener, made.serve):
            yield made


@contextmanager
def refusing_server(
    sqlstate: str, message: str, severity: str = "FATAL", *, asks_password: bool = True
) -> Iterator[int]:
    """Yield the port of a server that refuses every login with `message`, after it asked for the password or before."""
    fields = {"S": severity, "V": "FATAL", "C": sqlstate, "M": message}
    body = b"".join(f"{name}{value}\0".encode() for name, value in fields.items()) + b"\0"

    def refuse(client: socket.socket) -> None:
        with client:
            _receive(client)
            if asks_password:
                client.sendall(_CLEARTEXT_PASSWORD)
                client.recv(1)
                _receive(client)
            client.sendall(b"E" + struct.pack("!i", len(body) + 4) + body)

    with socket.create_server(("127.0.0.1", 0)) as listener, accepting(listener, refuse):
        yield listener.getsockname()[1]


def _receive(client: socket.socket) -> None:
    """Read a message without its type; a wish for TLS is refused."""
    while True:
        (length,) = struct.unpack("!i", client.recv(4, socket.MSG_WAITALL))
        body = client.recv(length - 4, socket.MSG_WAITALL)
        if length != 8 or struct.unpack("!i", body)[0] < 1 << 26:
            return
        client.sendall(b"N")


@contextmanager
def accepting(listener: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Serve each connection to `listener` in a thread of its own while the block runs."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_served, args=(serve, client), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _served(serve: Callable[[socket.socket], None], client: socket.socket) -> None:
    # A client that does not trust the certificate breaks the handshake off. A server may be away.
    with client, suppress(OSError, struct.error):
        serve(client)
