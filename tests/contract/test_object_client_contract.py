"""The contract of ObjectClient, checked with every kind of store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from support.remote_segments import reused_chunks, segment_bytes
from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.storage.clients.object_client import delete_object, discard_unfinished

if TYPE_CHECKING:
    from contract.object_stores import StoreUnderTest
    from tiered_storage.remote_log.storage.clients.object_client import ObjectClient

MIB = 1 << 20
NAME = "some/folder/an object.bin"
THIS_CENTURY = (978_307_200_000, 4_102_444_800_000)
"""In ms since 1970."""


def put(client: ObjectClient, name: str, content: bytes, chunk_size: int = MIB) -> None:
    client.put(name, len(content), reused_chunks(content, chunk_size))


@pytest.mark.parametrize("size", [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 16 * MIB])
@pytest.mark.parametrize("chunk_size", [MIB, 3 * MIB + 1])
def test_a_put_object_is_read_back_with_its_facts(client: ObjectClient, size: int, chunk_size: int) -> None:
    content = segment_bytes(size)
    written = client.put(NAME, size, reused_chunks(content, chunk_size))
    assert (written.size, written.crc32c) == (size, crc32c(content))
    assert client.size(NAME) == size
    assert client.get_range(NAME, 0, size) == content


@pytest.mark.parametrize("size", [0, 5, 9 * MIB])
def test_at_most_allows_a_smaller_object_than_announced(client: ObjectClient, size: int) -> None:
    content = segment_bytes(size)
    announced = size + 12 * MIB
    written = client.put(NAME, announced, reused_chunks(content, MIB), at_most=True)
    assert (written.size, written.crc32c) == (size, crc32c(content))
    assert client.get_range(NAME, 0, client.size(NAME)) == content
    with pytest.raises(RemoteObjectCorruptError):
        client.put("another", 3, reused_chunks(b"four", 4), at_most=True)
    with pytest.raises(RemoteObjectCorruptError):
        client.put("another", 5, reused_chunks(b"four", 4))
    assert [found.name for found in client.list()] == [NAME]


def test_an_object_is_replaced_whole(client: ObjectClient) -> None:
    put(client, NAME, b"a longer first content")
    put(client, NAME, b"second")
    assert client.get_range(NAME, 0, client.size(NAME)) == b"second"


def test_a_move_overwrites_its_target(client: ObjectClient) -> None:
    put(client, "new/first", b"first")
    client.move("new/first", NAME)
    put(client, "new/second", b"second")
    client.move("new/second", NAME)
    assert client.get_range(NAME, 0, client.size(NAME)) == b"second"
    assert [found.name for found in client.list()] == [NAME]
    with pytest.raises(RemoteObjectNotFoundError, match="new/second"):
        client.move("new/second", "elsewhere")
    with pytest.raises(ConfigurationError):
        client.move(NAME, "../elsewhere")
    assert [found.name for found in client.list()] == [NAME]


def test_a_range_past_the_end_is_corrupt(client: ObjectClient) -> None:
    put(client, NAME, b"0123456789")
    assert client.get_range(NAME, 8, 2) == b"89"
    for start, length in [(8, 3), (10, 1), (500, 10)]:
        with pytest.raises(RemoteObjectCorruptError, match="an object"):
            client.get_range(NAME, start, length)


def test_a_missing_object_is_not_found(client: ObjectClient) -> None:
    with pytest.raises(RemoteObjectNotFoundError, match="no/such"):
        client.get_range("no/such", 0, 10)
    with pytest.raises(RemoteObjectNotFoundError, match="no/such"):
        client.size("no/such")
    delete_object(client, "no/such")
    discard_unfinished(client, ["no/such"])
    assert list(client.list()) == []
    assert list(client.list("no")) == []


def test_many_objects_are_deleted_at_once_and_missing_ones_are_no_error(client: ObjectClient) -> None:
    names = [f"{folder}/{number:03}" for folder in ("some", "other/folder") for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: put(client, name, b"x"), [*names, "some/staying"]))

    assert client.delete_many([*names, "no/such", "some/no such"]) == {}
    assert [found.name for found in client.list()] == ["some/staying"]
    assert client.delete_many(names) == {}
    assert client.delete_many([]) == {}


def test_an_invalid_name_stops_a_deletion_before_it_begins(client: ObjectClient) -> None:
    put(client, NAME, b"x")
    with pytest.raises(ConfigurationError, match="not a valid"):
        client.delete_many([NAME, "../x"])
    assert client.size(NAME) == 1


def test_only_the_first_creation_writes(client: ObjectClient) -> None:
    assert client.create("identity.json", b"first")
    assert not client.create("identity.json", b"second")
    assert client.get_range("identity.json", 0, 5) == b"first"


def test_only_one_of_many_concurrent_creations_writes(client: ObjectClient, store: StoreUnderTest) -> None:
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda i: client.create("identity.json", b"%d" % i), range(8)))
    # Without conditional writes, each of those that read their own content back took itself for the first.
    assert sum(won) == 1 or (not store.options.conditional_writes and any(won))
    assert won[int(client.get_range("identity.json", 0, 1))]


def test_a_listing_streams_more_than_one_page(client: ObjectClient) -> None:
    names = [f"many/{i:04}" for i in range(1100)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda name: client.create(name, b""), names))
    assert sorted(found.name for found in client.list()) == names


def test_a_listing_has_the_time_of_each_write(client: ObjectClient) -> None:
    put(client, NAME, b"x")
    (first,) = client.list("some")
    put(client, NAME, b"yz")
    (second,) = client.list("some")
    assert [(found.name, found.size) for found in (first, second)] == [(NAME, 1), (NAME, 2)]
    assert THIS_CENTURY[0] < first.last_modified <= second.last_modified < THIS_CENTURY[1]


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a/.", "a\0b", "a\nb", "a\\..\\b", "x" * 1025]
)
def test_names_outside_the_store_are_refused(client: ObjectClient, name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a valid"):
        put(client, name, b"x")
    with pytest.raises(ConfigurationError, match="not a valid"):
        client.get_range(name, 0, 1)
    with pytest.raises(ConfigurationError, match="not a valid"):
        delete_object(client, name)
    with pytest.raises(ConfigurationError, match="not a valid"):
        client.create(name, b"x")
    assert list(client.list()) == []


@pytest.mark.parametrize("name", ["run=scheduled__2026-11-21T11:00:00+00:00/plan.jsonl", "a b/ü%20?#.txt", "a/*/[x]"])
def test_names_with_unusual_characters_are_kept(client: ObjectClient, name: str) -> None:
    put(client, name, b"content")
    assert client.get_range(name, 0, 7) == b"content"
    assert [found.name for found in client.list()] == [name]
    delete_object(client, name)
    assert list(client.list()) == []


def test_a_listing_may_begin_after_a_name(client: ObjectClient) -> None:
    names = ["log/0/00010-a.log", "log/0/00020-b.log", "log/0/state/3.json", "log/1/00000-c.log"]
    for name in names:
        put(client, name, b"x")

    assert sorted(found.name for found in client.list("log/0", "log/0/00010-a.log")) == names[1:3]
    assert sorted(found.name for found in client.list("log/0", "log/0/00015")) == names[1:3]
    assert list(client.list("log/0", "log/0/t")) == []
