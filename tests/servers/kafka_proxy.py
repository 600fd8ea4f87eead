"""A proxy before a broker that cuts or garbles answers, as a broken network or machine would."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_reader

from servers.postgres_proxy import accepting
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, FETCH
from tiered_storage.kafka_wire.connections.frames import Cursor, body_of
from tiered_storage.kafka_wire.fetch import FetchDecoder, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import read_fetch

_LIBRDKAFKA = (b"librdkafka", b"confluent-kafka")
"""What it calls itself."""
_TAGS_AFTER_RECORDS = 3
"""Bytes after the records of an answer about one partition: three empty sections of tagged fields."""


@dataclass(slots=True)
class FetchedFrame:
    """An answer to a Fetch of one partition, to be changed in place: `data` has its size before it.

    `times` is how many answers about the partition were changed before.
    """

    data: bytearray
    version: int
    request: Any
    times: int

    @property
    def records(self) -> memoryview:
        """The bytes of its batches, to be changed in place."""
        [topic] = self.request.topics
        [partition] = topic.partitions
        position = FetchPosition("", partition.partition, 0, topic_id=encode_uuid(topic.topic_id.bytes))
        frame = memoryview(self.data)[4:]
        answer = FetchDecoder([position])(frame, FETCH, self.version, *struct.unpack(">i", frame[:4]))
        end = len(frame) - _TAGS_AFTER_RECORDS
        return frame[end - len(answer.partitions[0].records) : end]

    @property
    def entry(self) -> memoryview:
        """The bytes about its partition, to be changed in place: number, error code, three offsets, and the rest."""
        frame = memoryview(self.data)[4:]
        cursor = body_of(frame, FETCH, self.version, *struct.unpack(">i", frame[:4]))
        [found] = read_fetch(cursor, self.version).entries
        return frame[found.start : found.end]


Fault = Callable[[FetchedFrame], None]


@dataclass(slots=True)
class KafkaProxy:
    """Forwards connections to the broker at `broker`. See `kafka_proxy`.

    `faults` change answers to Fetch that have records, by the partition's number, and spare those to requests for
    `spared_bytes` or less. `changes` change whole answers, with their size before them, by the key of what they answer;
    not those to librdkafka, which a garbled one may crash. A shorter answer than announced is the connection's last.
    """

    address: str
    broker: str = ""
    faults: dict[int, Fault] = field(default_factory=dict)
    spared_bytes: int = 0
    changes: dict[int, Callable[[bytearray], None]] = field(default_factory=dict)
    _times: Counter[int] = field(default_factory=Counter)

    def serve(self, client: socket.socket) -> None:
        """Forward one connection until either side ends it."""
        host, _, port = self.broker.rpartition(":")
        keys: dict[int, int] = {}
        is_spared = threading.Event()
        fetches: dict[int, tuple[int, Any]] = {}
        with client, socket.create_connection((host, int(port))) as server:

            def ask() -> None:
                with suppress(OSError, EOFError):
                    while True:
                        frame = _frame(client)
                        key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                        keys[correlation_id] = key
                        if key == API_VERSIONS.key and any(name in frame for name in _LIBRDKAFKA):
                            is_spared.set()
                        _remember_fetch(frame, fetches)
                        server.sendall(frame)
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)

            asking = threading.Thread(target=ask)
            asking.start()
            with suppress(OSError, EOFError):
                while True:
                    frame = _frame(server)
                    size = len(frame)
                    change = self.changes.get(keys.pop(struct.unpack_from(">i", frame, 4)[0], -1))
                    self._garble(frame, fetches)
                    if change is not None and not is_spared.is_set():
                        change(frame)
                    client.sendall(frame)
                    if len(frame) < size:
                        break
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            asking.join()

    def _garble(self, data: bytearray, fetches: dict[int, tuple[int, Any]]) -> None:
        found = fetches.pop(struct.unpack_from(">i", data, 4)[0], None)
        if found is None:
            return
        version, request = found
        if request.max_bytes <= self.spared_bytes:
            return
        [partition] = [each.partition for topic in request.topics for each in topic.partitions]
        fault = self.faults.get(partition)
        frame = FetchedFrame(data, version, request, self._times[partition])
        if fault is not None and len(frame.records):
            self._times[partition] += 1
            fault(frame)


@contextmanager
def kafka_proxy() -> Iterator[KafkaProxy]:
    """Yield a proxy; set its `broker` before anybody connects: that one must know the address to advertise."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = KafkaProxy(f"127.0.0.1:{listener.getsockname()[1]}")
        with accepting(listener, made.serve):
            yield made


def _frame(connected: socket.socket) -> bytearray:
    """Read one frame, with its size. Raises EOFError at the end."""
    head = _exactly(connected, 4)
    return head + _exactly(connected, *struct.unpack(">i", head))


def _exactly(connected: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        received = connected.recv(min(1 << 20, size - len(data)))
        if not received:
            raise EOFError
        data += received
    return data


def _remember_fetch(frame: bytearray, fetches: dict[int, tuple[int, Any]]) -> None:
    cursor = Cursor(memoryview(frame), 4)
    key, version, correlation_id = cursor.int16(), cursor.int16(), cursor.int32()
    if key != FETCH.key:
        return
    cursor.string(flexible=False)
    cursor.skip_tagged_fields()
    request, _ = entity_reader(load_request_schema(key, version))(memoryview(frame).toreadonly(), cursor.position)
    fetches[correlation_id] = version, request
