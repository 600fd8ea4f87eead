"""RemoteLogReader without asyncio: plain calls and iterators, over an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa

from tiered_storage.kafka_log.columnar import RecordRange
from tiered_storage.kafka_log.record import Record
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.reading.log_reader import READ_UNCOMMITTED, RemoteLogReader
from tiered_storage.remote_log.reading.partition_view import PartitionView
from tiered_storage.remote_log.reading.read_values import FetchedBatches, FoundOffset, Isolation, OffsetSpec
from tiered_storage.remote_log.storage import IndexKind

Result = TypeVar("Result")


class BlockingLogReader:
    """The same reads as RemoteLogReader, with what each returns and raises; safe from several threads.

    `close` it, or use it in a `with`: its reader is closed with it. What iterates can be closed before its end; what is
    on its way ends with it.
    """

    def __init__(self, reader: RemoteLogReader) -> None:
        self._reader = reader
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="log reader", daemon=True)
        self._thread.start()

    def view(self, partition: TopicIdPartition) -> PartitionView:
        """As RemoteLogReader.view."""
        return self._run(self._reader.view(partition))

    def offsets(
        self, partition: TopicIdPartition, spec: OffsetSpec | int, isolation: Isolation = READ_UNCOMMITTED
    ) -> FoundOffset | None:
        """As RemoteLogReader.offsets."""
        return self._run(self._reader.offsets(partition, spec, isolation))

    def batches(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        deadline_ms: int | None = None,
    ) -> Generator[FetchedBatches, None, None]:
        """As RemoteLogReader.batches."""
        return self._iterate(
            self._reader.batches(
                partition, start_offset, end_offset=end_offset, isolation=isolation, deadline_ms=deadline_ms
            )
        )

    def records(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        deadline_ms: int | None = None,
    ) -> Generator[Record, None, None]:
        """Yield records one by one: without markers, and at READ_COMMITTED without those of aborted transactions."""
        for fetched in self.batches(
            partition, start_offset, end_offset=end_offset, isolation=isolation, deadline_ms=deadline_ms
        ):
            yield from fetched.records()

    def tables(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        *,
        end_offset: int | None = None,
        isolation: Isolation = READ_UNCOMMITTED,
        columns: Sequence[str] | None = None,
        within: RecordRange | None = None,
        deadline_ms: int | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As RemoteLogReader.tables."""
        return self._iterate(
            self._reader.tables(
                partition, start_offset, end_offset=end_offset, isolation=isolation, columns=columns, within=within,
                deadline_ms=deadline_ms,
            )
        )  # fmt: skip

    def segment_bytes(
        self, partition: TopicIdPartition, segment_id: str, start: int = 0, end_inclusive: int | None = None
    ) -> Generator[bytes, None, None]:
        """As RemoteLogReader.segment_bytes."""
        return self._iterate(self._reader.segment_bytes(partition, segment_id, start, end_inclusive))

    def index(self, partition: TopicIdPartition, segment_id: str, kind: IndexKind) -> bytes:
        """As RemoteLogReader.index."""
        return self._run(self._reader.index(partition, segment_id, kind))

    def close(self) -> None:
        """Close the reader, and end the thread; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._reader.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def _iterate(self, source: AsyncIterator[Result]) -> Generator[Result, None, None]:
        try:
            while True:
                try:
                    yield self._run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed():
                self._run(_close(source))


async def _next(source: AsyncIterator[Result]) -> Result:
    return await anext(source)


async def _close(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()
