"""The routes that return bytes and records."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from tiered_storage.remote_log.read.read_values import FetchEpochs
from tiered_storage_airflow.read_service.access import access_of
from tiered_storage_airflow.read_service.partitions import ReadDep, SegmentPath, readable_segment, unless_deleted
from tiered_storage_airflow.read_service.problem import plain, title_of
from tiered_storage_airflow.read_service.record_forms import Form
from tiered_storage_airflow.read_service.record_stream import RecordStream
from tiered_storage_airflow.read_service.routes.exception_handlers import PROBLEM
from tiered_storage_airflow.read_service.routes.schemas import IsolationName, IsolationQuery
from tiered_storage_airflow.read_service.streaming import PiecesResponse

_ONE_RANGE = re.compile(r"bytes[ \t]*=[ \t]*([0-9]*)[ \t]*-[ \t]*([0-9]*)[ \t]*", re.IGNORECASE)
_MOST_DIGITS = 20


class RangeNotSatisfiableError(Exception):
    """A range that begins after the end, or has no bytes."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first and last byte (inclusive) that `header` requests of `size` bytes; None: all of them.

    A range that ends after the last byte is truncated. Raises RangeNotSatisfiableError.
    """
    found = _ONE_RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None:
        return None
    first, last = found.groups()
    if max(len(first), len(last)) > _MOST_DIGITS or not (first or last):
        return None
    if not first:
        return _suffix(int(last), size)
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise RangeNotSatisfiableError
    return int(first), min(int(last), size - 1) if last else size - 1


def _suffix(length: int, size: int) -> tuple[int, int]:
    if length == 0 or size == 0:
        raise RangeNotSatisfiableError
    return max(0, size - length), size - 1


LARGEST = 2**63 - 1
LAST_EPOCH = 2**31 - 1
MOST_RECORDS = 10_000_000
MOST_BYTES = 1 << 30

_BINARY = {"schema": {"type": "string", "format": "binary"}}
BYTES: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        200: {"description": "All bytes.", "content": {Form.BATCHES.media_type: _BINARY}},
        206: {"description": "The requested range of bytes.", "content": {Form.BATCHES.media_type: _BINARY}},
        304: {"description": "The client already has these bytes."},
        416: {"description": "The range begins after the end.", "content": PROBLEM},
    },
}
RECORDS: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        200: {"description": "Records.", "content": {form.media_type: _BINARY for form in Form}},
        416: {"description": "The offset is below the log start or past the end.", "content": PROBLEM},
    },
}

router = APIRouter()


@router.head("/topics/{topic}/partitions/{partition}/segments/{segment_id}/data", include_in_schema=False)
@router.get("/topics/{topic}/partitions/{partition}/segments/{segment_id}/data", tags=["bytes"], **BYTES)
async def segment_data(
    request: Request,
    asked: ReadDep,
    segment_id: SegmentPath,
    range_header: Annotated[str | None, Header(alias="Range")] = None,
    if_range: Annotated[str | None, Header(alias="If-Range")] = None,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match")] = None,
) -> Response:
    """Return the bytes of a remote segment as Kafka wrote them: all, or one range (206). Several ranges return all."""
    segment = await readable_segment(asked, segment_id)
    access = access_of(request)
    access.segment = segment_id
    etag = f'"{segment_id}"'
    headers = {"Accept-Ranges": "bytes", "ETag": etag, "Cache-Control": "private, no-cache"}
    if if_none_match is not None and {"*", etag, f"W/{etag}"} & {each.strip() for each in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    is_asked = request.method == "GET"
    try:
        found = parse_range(range_header if is_asked and if_range in {None, etag} else None, segment.size)
    except RangeNotSatisfiableError as error:
        no_such = {"Content-Range": f"bytes */{segment.size}"}
        raise plain(416, f"the segment has {segment.size} bytes", no_such) from error
    start, end = found or (0, segment.size - 1)
    headers["Content-Length"] = str(end - start + 1)
    if found:
        headers["Content-Range"] = f"bytes {start}-{end}/{segment.size}"
    status, media_type = 206 if found else 200, Form.BATCHES.media_type
    if not is_asked:
        return Response(status_code=status, headers=headers, media_type=media_type)
    access.took(segment.start_offset, segment.end_offset, None)
    pieces = unless_deleted(asked, segment, asked.service.tiers.segment_bytes(asked.partition, segment_id, start, end))
    return PiecesResponse(
        asked.service, pieces, asked.ensure_right, status_code=status, headers=headers, media_type=media_type
    )


@router.get("/topics/{topic}/partitions/{partition}/records", tags=["records"], **RECORDS)
async def records(
    request: Request,
    asked: ReadDep,
    offset: Annotated[
        int | None, Query(description="The first offset; without it or a timestamp, the log start.", ge=0, le=LARGEST)
    ] = None,
    timestamp: Annotated[
        int | None, Query(description="Begin with the first record at or after this time (ms).", ge=0, le=LARGEST)
    ] = None,
    current_leader_epoch: Annotated[
        int | None,
        Query(description="The leader epoch that the reader considers current.", ge=0, le=LAST_EPOCH),
    ] = None,
    last_fetched_epoch: Annotated[
        int | None,
        Query(description="The leader epoch of the reader's last record before `offset`.", ge=0, le=LAST_EPOCH),
    ] = None,
    max_records: Annotated[int, Query(description="The most records.", ge=1, le=MOST_RECORDS)] = 1000,
    max_bytes: Annotated[
        int,
        Query(description="About the most bytes of batches; the first batch is always included.", ge=1, le=MOST_BYTES),
    ] = 16 << 20,
    form: Annotated[
        Form, Query(alias="format", description="JSON lines, an Arrow stream, or Kafka's batches.")
    ] = Form.JSON,
    isolation: IsolationQuery = IsolationName.READ_UNCOMMITTED,
) -> Response:
    """Return records, from whichever tier has them, up to the present end at the isolation level."""
    service = asked.service
    if offset is not None and timestamp is not None:
        raise plain(422, "query offset: give an offset or a timestamp, not both")
    if last_fetched_epoch is not None and offset is None:
        raise plain(422, "query last_fetched_epoch: it needs an offset: give that too")
    readable = await service.tiers.readable_range(
        asked.partition,
        isolation.level,
        offset=offset,
        timestamp=timestamp,
        epochs=FetchEpochs(current_leader_epoch, last_fetched_epoch),
    )
    snapshot = readable.snapshot
    access = access_of(request)
    access.first_offset = readable.start
    batches = service.tiers.batches(asked.partition, readable.start, readable.end, isolation.level)
    stream = RecordStream(batches, max_records, max_bytes, form, service, access)
    headers = {"Log-Start-Offset": str(snapshot.log_start_offset)}
    # If the local tier cannot be read, the log's end is unknown, and the records are those of the remote tier.
    if snapshot.hidden is None:
        headers["Log-End-Offset"] = str(readable.end)
    else:
        headers["Local-Problem"] = title_of(snapshot.hidden)
    return PiecesResponse(service, stream.pieces(), asked.ensure_right, headers=headers, media_type=form.media_type)
