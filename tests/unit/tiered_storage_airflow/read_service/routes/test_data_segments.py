from __future__ import annotations

import pytest

from support.read_service_site import ReadServiceSite

DATA = "/topics/orders/partitions/0/segments/{}/data"


def data_of(site: ReadServiceSite) -> str:
    return DATA.format(site.segments()[0].segment_id.id)


@pytest.fixture
def path(site: ReadServiceSite) -> str:
    return data_of(site)


@pytest.fixture
def whole(site: ReadServiceSite) -> bytes:
    return site.files.objects(".log")[0].read_bytes()


def test_the_whole_segment_is_what_kafka_wrote(site: ReadServiceSite, path: str, whole: bytes) -> None:
    answer = site.get(path)
    assert answer.status_code == 200
    assert answer.content == whole
    assert answer.headers["content-length"] == str(len(whole))
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["etag"] == f'"{site.segments()[0].segment_id.id}"'


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-99", 10, 99),
        ("Bytes = 10-99", 10, 99),
        ("bytes=100-", 100, -1),
        ("bytes=-7", -7, -1),
        ("bytes=-99999999", 0, -1),
        ("bytes=5-99999999999999999999", 5, -1),
    ],
)
def test_one_range_is_given_alone(
    site: ReadServiceSite, path: str, whole: bytes, header: str, start: int, end: int
) -> None:
    size = len(whole)
    first, last = start % size, end % size
    answer = site.get(path, headers={"Range": header})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{size}"
    assert answer.headers["content-length"] == str(last - first + 1)
    assert answer.content == whole[first : last + 1]


@pytest.mark.parametrize(
    "header",
    ["bytes=0-1,5-9", "bytes=9-5", "lines=0-5", "bytes=a-b", "bytes=", "bytes=-", "bytes=--5", "bytes=0-1-2", "0-5",
     "bytes=" + "9" * 5000 + "-", "bytes=\u0661-\u0662".encode().decode("latin-1")],
)  # fmt: skip
def test_several_or_invalid_ranges_return_the_whole(
    site: ReadServiceSite, path: str, whole: bytes, header: str
) -> None:
    answer = site.get(path, headers={"Range": header.encode("latin-1")})
    assert (answer.status_code, answer.content) == (200, whole)


@pytest.mark.parametrize("header", ["bytes=999999999-", "bytes=999999999-9999999999", "bytes=-0"])
def test_a_range_after_the_end_gets_the_size(site: ReadServiceSite, path: str, whole: bytes, header: str) -> None:
    answer = site.get(path, headers={"Range": header})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{len(whole)}"


def test_a_range_counts_only_for_the_bytes_that_the_client_knows(
    site: ReadServiceSite, path: str, whole: bytes
) -> None:
    etag = site.get(path).headers["etag"]
    same = site.get(path, headers={"Range": "bytes=0-4", "If-Range": etag})
    assert (same.status_code, same.content) == (206, whole[:5])
    for other in ('"another"', f"W/{etag}", "Sat, 01 Jan 2000 00:00:00 GMT"):
        answer = site.get(path, headers={"Range": "bytes=0-4", "If-Range": other})
        assert (answer.status_code, answer.content) == (200, whole)
    assert site.get(path, headers={"If-None-Match": etag}).status_code == 304


def test_head_reports_the_bytes_and_gives_none(site: ReadServiceSite, path: str, whole: bytes) -> None:
    from support.read_service_site import login

    answer = site.client.head(path, headers={**login("reader"), "Range": "bytes=2-3"})
    # Ranges are for GET alone.
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, str(len(whole)), b"")


@pytest.mark.parametrize(
    ("segment_id", "status"),
    [("A" * 22, 404), ("..%2F..%2F..%2Fetc%2Fpasswd", 404), ("x", 422), ("%00" * 22, 422), ("A" * 5000, 422)],
)
def test_invalid_segment_ids_are_not_found(site: ReadServiceSite, segment_id: str, status: int) -> None:
    answer = site.get(DATA.format(segment_id))
    assert answer.status_code == status
    assert "root:" not in answer.text


def test_bytes_that_rotted_are_no_whole_segment(own_site: ReadServiceSite) -> None:
    from support.remote_logs import flip_bit

    flip_bit(own_site.files.objects(".log")[0], 150)
    answer = own_site.get(data_of(own_site))
    assert answer.status_code == 502
    assert answer.json()["title"] == "RemoteObjectCorrupt"


def test_a_lost_object_is_no_deleted_segment(own_site: ReadServiceSite) -> None:
    own_site.files.objects(".log")[0].unlink()
    answer = own_site.get(data_of(own_site))
    assert answer.status_code == 502
    assert answer.json()["title"] == "RemoteObjectNotFound"


def test_a_segment_being_deleted_is_answered_with_gone(own_site: ReadServiceSite) -> None:
    from support.remote_logs import ORDERS_0, held_by
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.model import RemoteLogSegmentMetadataUpdate, SegmentState

    segment_id = own_site.segments()[0].segment_id

    def delete(log: RemoteLogManager) -> None:
        lease = held_by(log, "somebody", ORDERS_0)
        step = RemoteLogSegmentMetadataUpdate(segment_id, SegmentState.DELETE_SEGMENT_STARTED, 1)
        log.context.segments.update_remote_log_segment_metadata(step, lease)

    own_site.changed(delete)
    assert own_site.get(data_of(own_site)).status_code == 410


def test_segments_of_a_deleted_topic_and_below_the_log_start_are_gone(own_site: ReadServiceSite) -> None:
    from support.remote_logs import ORDERS_0, held_by
    from tiered_storage.remote_log.model import PartitionDeleteState, RemotePartitionDeleteMetadata

    first, second, _ = (DATA.format(segment.segment_id.id) for segment in own_site.segments())
    own_site.changed(lambda log: log.context.segments.advance_log_start_offset(ORDERS_0, 12, held_by(log, "somebody")))
    assert [own_site.get(path).status_code for path in (first, second)] == [410, 200]
    assert own_site.get(first.replace("/data", "/indexes/offset")).status_code == 410
    marked = RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, 1)
    own_site.changed(
        lambda log: log.context.segments.put_remote_partition_delete_metadata(marked, held_by(log, "somebody"))
    )
    assert own_site.get(second).status_code == 410
    assert own_site.get(second.replace("/data", "/indexes/offset")).status_code == 410
