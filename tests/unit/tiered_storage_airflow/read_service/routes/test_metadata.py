from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.read_service_site import ReadServiceSite
from support.remote_logs import NOW, ORDERS_0, SEGMENT_BYTES, held_by, topic_id
from tiered_storage.remote_log.model import RemoteLogSegmentId, SegmentState, TopicIdPartition

ORDERS = "/topics/orders/partitions/0"


def of(site: ReadServiceSite, path: str, **params: Any) -> Any:
    answer = site.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_partition_has_its_offsets_and_tiers(site: ReadServiceSite) -> None:
    found = of(site, ORDERS)
    offsets = ("log_start_offset", "earliest_local_offset", "latest_tiered_offset", "log_end_offset")
    assert [found[name] for name in offsets] == [0, 20, 29, 35]
    assert (found["remote_segments"], found["remote_bytes"], found["lag_offsets"]) == (3, 3 * SEGMENT_BYTES, 5)
    assert (found["local_segments"], found["local_bytes"]) == (2, SEGMENT_BYTES * 3 // 2)
    assert (found["topic_id"], found["local_problem"]) == (topic_id("orders"), None)
    assert of(site, "/topics/orders/partitions") == {"partitions": [found], "next": None}
    assert of(site, ORDERS, topic_id=topic_id("orders")) == found
    assert site.get(ORDERS, params={"topic_id": "A" * 22}).status_code == 404


def test_segments_come_in_order_a_part_at_a_time(site: ReadServiceSite) -> None:
    first = of(site, f"{ORDERS}/segments", limit=2)
    assert [(each["start_offset"], each["end_offset"]) for each in first["segments"]] == [(0, 9), (10, 19)]
    rest = of(site, f"{ORDERS}/segments", start=first["next"])
    assert [each["start_offset"] for each in rest["segments"]] == [20]
    assert rest["next"] is None
    assert of(site, f"{ORDERS}/segments/{first['segments'][0]['segment_id']}") == first["segments"][0]
    assert of(site, f"{ORDERS}/segments", state="COPY_SEGMENT_STARTED")["segments"] == []
    assert first["segments"][0]["max_timestamp"] == NOW + 9000


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("remote-log-index", {"first_offset": 0, "position": 0}),
        ("remote-offset-index", {"first_offset": 0, "position": 0}),
        ("remote-time-index", {"timestamp": NOW + 4000}),
        ("offset", {}),
        ("timestamp", {}),
        ("leader-epoch", {"epoch": 0, "start_offset": 0}),
        ("manifest", {}),
    ],
)
def test_indexes_are_given_entry_by_entry(site: ReadServiceSite, name: str, first: dict[str, int]) -> None:
    segment = site.segments()[0].segment_id.id
    found = of(site, f"{ORDERS}/segments/{segment}/indexes/{name}")
    assert found["count"] == len(found["entries"]) > 0
    assert first.items() <= found["entries"][0].items()
    assert found["size"] > 0
    part = of(site, f"{ORDERS}/segments/{segment}/indexes/{name}", start=found["count"] - 1, limit=1)
    assert (part["entries"], part["next"]) == (found["entries"][-1:], None)


def test_an_index_that_is_not_there_is_distinguished_from_a_lost_one(own_site: ReadServiceSite) -> None:
    path = f"{ORDERS}/segments/{own_site.segments()[0].segment_id.id}/indexes"
    assert own_site.get(f"{path}/transaction").status_code in {200, 404}
    assert own_site.get(f"{path}/nonsense").status_code == 422
    own_site.files.objects(".indexes")[0].unlink()
    lost = own_site.get(f"{path}/remote-log-index")
    assert (lost.status_code, lost.json()["title"]) == (502, "RemoteObjectNotFound")


def test_a_broken_index_is_reported(own_site: ReadServiceSite) -> None:
    bundle = own_site.files.objects(".indexes")[0]
    content = bundle.read_bytes()
    for broken in (content[:20], bytes(len(content)), content[:-1] + b"?", b""):
        bundle.write_bytes(broken)
        for name in ("remote-log-index", "offset", "manifest"):
            answer = own_site.get(f"{ORDERS}/segments/{own_site.segments()[0].segment_id.id}/indexes/{name}")
            assert answer.status_code in {200, 502}
            assert "Traceback" not in answer.text
            if answer.status_code == 502:
                assert bundle.name in answer.json()["detail"]


def test_offsets_have_names(site: ReadServiceSite) -> None:
    found = of(site, f"{ORDERS}/offsets")
    assert {name: each["offset"] for name, each in found.items()} == {
        "earliest": 0, "latest": 35, "max-timestamp": 34, "earliest-local": 20, "latest-tiered": 29,
    }  # fmt: skip
    assert found["max-timestamp"] == {
        "offset": 34, "timestamp": NOW + 34_000, "leader_epoch": 0, "local_problem": None,
    }  # fmt: skip
    assert of(site, f"{ORDERS}/offsets/latest", isolation="read_committed")["offset"] == 35
    assert site.get(f"{ORDERS}/offsets/last").status_code == 422


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(0, 0), (NOW, 0), (NOW + 6500, 7), (NOW + 7000, 7), (NOW + 25_000, 25), (NOW + 34_000, 34), (NOW + 34_001, None),
     (2**63 - 1, None)],
)  # fmt: skip
def test_offsets_are_found_by_time(site: ReadServiceSite, timestamp: int, offset: int | None) -> None:
    assert of(site, f"{ORDERS}/offsets/by-time", timestamp=timestamp)["offset"] == offset
    records = site.get(f"{ORDERS}/records", params={"timestamp": timestamp, "max_records": 1})
    assert records.status_code == 200
    assert records.text.startswith(f'{{"offset":{offset},') if offset is not None else records.text == ""


def test_an_offset_and_a_time_at_once_cannot_be_meant(site: ReadServiceSite) -> None:
    assert site.get(f"{ORDERS}/records", params={"timestamp": 5, "offset": 5}).status_code == 422
    assert site.get(f"{ORDERS}/offsets/by-time", params={"timestamp": -1}).status_code == 422


def test_a_local_tier_that_a_broker_holds_hides_nothing_remote(own_site: ReadServiceSite) -> None:
    from tiered_storage.kafka_log.files.directory_lock import DirectoryLock

    with DirectoryLock.acquire(own_site.files.log_directory):
        found = of(own_site, ORDERS)
        assert (found["log_end_offset"], found["local_problem"]) == (30, "LogDirectoryLocked")
        remote = own_site.get(f"{ORDERS}/records")
        assert len(remote.text.splitlines()) == 30
        assert remote.headers["local-problem"] == "LogDirectoryLocked"
        assert "log-end-offset" not in remote.headers
        # Whether there is an offset 30, nobody knows now: that it is the end, or out of range, would be wrong.
        for offset in (30, 31):
            unknown = own_site.get(f"{ORDERS}/records", params={"offset": offset})
            assert (unknown.status_code, unknown.headers["retry-after"]) == (503, "5")
            assert unknown.json()["retriable"] is True
        late = own_site.get(f"{ORDERS}/records", params={"timestamp": NOW + 31_000})
        assert late.status_code == 503


@pytest.mark.parametrize(
    ("path", "timestamp"),
    [("latest", None), ("max-timestamp", None), ("earliest-local", None), ("by-time", NOW + 31_000)],
)
def test_an_offset_that_a_hidden_local_tier_may_have_is_not_guessed(
    own_site: ReadServiceSite, path: str, timestamp: int | None
) -> None:
    from tiered_storage.kafka_log.files.directory_lock import DirectoryLock

    params = {} if timestamp is None else {"timestamp": timestamp}
    with DirectoryLock.acquire(own_site.files.log_directory):
        answer = own_site.get(f"{ORDERS}/offsets/{path}", params=params)
    assert (answer.status_code, answer.json()["title"]) == (503, "LogDirectoryLocked")


def test_offsets_that_a_hidden_local_tier_cannot_change_are_given_and_of_the_others_why_not(
    own_site: ReadServiceSite,
) -> None:
    from tiered_storage.kafka_log.files.directory_lock import DirectoryLock

    with DirectoryLock.acquire(own_site.files.log_directory):
        found = of(own_site, f"{ORDERS}/offsets")
        for name in ("earliest", "latest-tiered"):
            assert of(own_site, f"{ORDERS}/offsets/{name}") == found[name]
        assert of(own_site, f"{ORDERS}/offsets/by-time", timestamp=NOW + 7000)["offset"] == 7
    assert {name: (each["offset"], each["local_problem"]) for name, each in found.items()} == {
        "earliest": (0, None),
        "latest": (None, "LogDirectoryLocked"),
        "max-timestamp": (None, "LogDirectoryLocked"),
        "earliest-local": (None, "LogDirectoryLocked"),
        "latest-tiered": (29, None),
    }


def test_copies_of_the_same_offsets_stay_together_and_parts_come_to_an_end(own_site: ReadServiceSite) -> None:
    from collections.abc import Iterator
    from unittest import mock

    from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
    from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

    segments = own_site.segments()

    def twice(*_: object) -> Iterator[RemoteLogSegmentMetadata]:
        return (segment for segment in segments for _copy in range(2))

    start, sizes = 0, []
    with mock.patch.object(SqlRemoteLogMetadataManager, "list_remote_log_segments", twice):
        while start is not None:
            part = of(own_site, f"{ORDERS}/segments", start=start, limit=1)
            sizes.append(len(part["segments"]))
            start = part["next"]
    assert sizes == [2, 2, 2]


def begin_copy(site: ReadServiceSite, partition: TopicIdPartition) -> None:
    """Begin to copy a segment of a partition, so that it is known."""
    segment_id = RemoteLogSegmentId(partition, "B" * 21 + "Q")
    state = SegmentState.COPY_SEGMENT_STARTED
    begun = replace(site.segments()[0], segment_id=segment_id, custom_metadata=None, state=state, fencing_number=1)
    site.changed(
        lambda log: log.context.segments.add_remote_log_segment_metadata(begun, held_by(log, "any", partition))
    )


def test_lives_of_a_partition_stay_together_and_parts_come_to_an_end(own_site: ReadServiceSite) -> None:
    earlier = replace(ORDERS_0, topic_id="A" * 21 + "Q")
    begin_copy(own_site, earlier)
    part = of(own_site, "/topics/orders/partitions", limit=1)
    assert [each["topic_id"] for each in part["partitions"]] == sorted([earlier.topic_id, ORDERS_0.topic_id])
    assert part["next"] is None
    assert of(own_site, "/topics/orders/partitions", start=1) == {"partitions": [], "next": None}


def test_a_partition_that_came_a_moment_ago_is_found(own_site: ReadServiceSite) -> None:
    assert own_site.get("/topics/orders/partitions/1").status_code == 404
    begin_copy(own_site, replace(ORDERS_0, partition=1))
    assert own_site.get("/topics/orders/partitions/1").status_code == 200
