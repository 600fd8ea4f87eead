from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.command_line import mentions
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    copy,
    offsets_read,
    segments_of,
    with_context,
)
from tiered_storage.errors import (
    ConfigurationError,
    LogDirectoryLockedError,
    MetadataMissingError,
    RemoteStorageError,
    StoreMismatchError,
    UnknownPartitionError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.metadata.generation import GuardedTopics
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.source.fetch_source import FetchSource
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.documents.store_generation import StoreGenerations
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings.settings import load_settings


def test_all_parts_are_opened_and_closed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(ObjectRemoteStorageManager, "close", lambda _: closed.append("storage"))
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        assert remote_log.context.segments is remote_log.context.store.segments
        assert remote_log.context.leases is remote_log.context.store.leases
        assert isinstance(remote_log.context.topics, GuardedTopics)
        assert remote_log.context.topics.topics is remote_log.context.store.topics
        assert remote_log.context.work.url == (tmp_path / "state" / "work").as_uri()
        assert closed == []

    assert closed == ["storage"]


def test_opened_parts_are_closed_if_a_later_part_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(SqlMetadataStore, "close", lambda _: closed.append("metadata"))
    monkeypatch.setattr(ObjectRemoteStorageManager, "close", lambda _: closed.append("storage"))
    files = a_remote_log(tmp_path)
    files.store.mkdir()
    (files.store / "store.json").write_text('{"format_version": 1, "store_uuid": "a", "metadata_uuid": "another"}')

    with pytest.raises(StoreMismatchError):
        files.open()

    assert closed == ["metadata", "storage"]


def test_the_way_to_the_store_is_that_of_the_settings_and_else_of_the_environment(tmp_path: Path) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "key", "AWS_ENDPOINT_URL": "https://theirs", "AWS_REGION": "us-east-1"}
    settings = load_settings(a_remote_log(tmp_path).config, environ={})

    assert store_options(settings, environ) == ObjectStoreOptions("https://theirs", "us-east-1", "key")
    ours = load_settings(
        tmp_path / "settings.yaml",
        environ={},
        overrides={
            "rsm.config.endpoint": "http://ours",
            "rsm.config.region": "eu-central-1",
            "rsm.config.allow.http": True,
        },
    )
    assert store_options(ours, environ) == ObjectStoreOptions(
        "http://ours", "eu-central-1", "key", None, None, allow_http=True
    )


@pytest.mark.parametrize("endpoint", ["https://user:hush@host", "user:hush@host:9000", "https://key:hu/sh@host"])
def test_an_endpoint_with_credentials_is_refused_and_not_shown(tmp_path: Path, endpoint: str) -> None:
    settings = load_settings(a_remote_log(tmp_path).config, environ={})
    with pytest.raises(ConfigurationError, match=r"^AWS_ENDPOINT_URL, .* contains credentials: ") as error:
        store_options(settings, {"AWS_ENDPOINT_URL": endpoint})
    assert "host" not in str(error.value)
    assert "hu" not in str(error.value)


# -------------------------------------------------------------------------------- which store belongs to which metadata


def test_the_first_copy_marks_the_store_as_that_of_the_metadata(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        assert remote_log.context.store.identity.bound_store_uuid() is None
        begin(remote_log)
        bound = remote_log.context.store.identity.bound_store_uuid()
        remote_log.context.bind_store()

        assert bound is not None
        assert remote_log.context.store.identity.bound_store_uuid() == bound
        assert bound in (files.store / "store.json").read_text()


def test_another_metadata_store_may_not_use_the_store(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties["rlmm.config.url"] = f"sqlite:///{tmp_path}/other.db"

    with pytest.raises(MetadataMissingError, match="belongs"):
        files.open()
    assert not (tmp_path / "other.db").exists()


def test_an_empty_store_in_the_place_of_ours_is_noticed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(2)
    shutil.rmtree(files.store)

    with files.open() as remote_log, pytest.raises(StoreMismatchError, match="disk mounted"):
        begin(remote_log)


def test_a_custom_store_is_not_bound_to_the_metadata(tmp_path: Path) -> None:
    class Other:
        """Not one of ours."""

    with a_remote_log(tmp_path).open() as opened:
        remote_log = with_context(opened, storage=Other())
        remote_log.context.bind_store()

    assert not (tmp_path / "state" / "remote").exists()


# --------------------------------------------------------------------------------------------------- finding partitions


def test_a_partition_is_found_by_its_name_where_it_is_local_or_else_remote(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        assert remote_log.find_partition("orders", 0) == ORDERS_0
        for topic, number in [("orders", 1), ("clicks", 0)]:
            with pytest.raises(ConfigurationError, match=f"{topic}-{number} is neither in log.dirs"):
                remote_log.find_partition(topic, number)

    files.properties["log.dirs"] = []
    with files.open() as remote_log:
        assert remote_log.find_partition("orders", 0) == ORDERS_0


@pytest.mark.parametrize(
    ("setting", "value", "place"),
    [
        ("bootstrap.servers", "kafka-1:9092", "the cluster at kafka-1:9092 (bootstrap.servers)"),
        ("cluster.connection", "lab", "the cluster of the connection lab (cluster.connection)"),
    ],
)
def test_a_partition_that_a_cluster_does_not_show_names_it_and_the_right_that_may_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, place: str
) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties |= {"log.dirs": [], setting: value}
    monkeypatch.setattr(FetchSource, "named", lambda *_: [])
    monkeypatch.setattr(FetchSource, "names", lambda _: iter(()))

    with files.open() as remote_log:
        assert remote_log.find_partition("orders", 0) == ORDERS_0
        with pytest.raises(UnknownPartitionError) as refused:
            remote_log.find_partition("clicks", 0)
        unmatched = remote_log.context.why_nothing_matches(Selection("clicks"))

    grant = "kafka-acls.sh --add --allow-principal User:... --operation Describe --topic"
    assert mentions(str(refused.value), "clicks-0", place, f"{grant} clicks;")
    assert mentions(unmatched, f"{grant} NAME;")


def test_a_topic_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    _remake_topic(files, "BBBBBBBBBBBBBBBBBBBBBA")
    remade = replace(ORDERS_0, topic_id="BBBBBBBBBBBBBBBBBBBBBA")
    with files.open() as remote_log:
        assert remote_log.find_partition("orders", 0) == remade
        assert {segment.topic_id_partition for segment in copy(remote_log).committed} == {remade}
        assert len(segments_of(remote_log, ORDERS_0)) == 3
        assert offsets_read(remote_log, 0, remade) == list(range(35))

    files.properties["log.dirs"] = []
    with files.open() as remote_log, pytest.raises(ConfigurationError, match=r"orders-0 had several .*BBBBBB"):
        remote_log.find_partition("orders", 0)


def test_an_incarnation_of_a_topic_is_found_by_its_id(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    _remake_topic(files, "BBBBBBBBBBBBBBBBBBBBBA")
    remade = replace(ORDERS_0, topic_id="BBBBBBBBBBBBBBBBBBBBBA")
    with files.open() as remote_log:
        assert remote_log.find_partition("orders", 0, ORDERS_0.topic_id) == ORDERS_0
        assert remote_log.find_partition("orders", 0, remade.topic_id) == remade
        with pytest.raises(UnknownPartitionError):
            remote_log.find_partition("orders", 0, "CCCCCCCCCCCCCCCCCCCCCA")


def test_a_partition_is_found_while_a_broker_has_its_directory(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    _remake_topic(files, "BBBBBBBBBBBBBBBBBBBBBA")
    with files.open() as remote_log, DirectoryLock.acquire(files.log_directory):
        assert remote_log.find_partition("orders", 0).topic_id == "BBBBBBBBBBBBBBBBBBBBBA"
        with pytest.raises(LogDirectoryLockedError):
            list(remote_log.context.source.names())


def test_only_who_asks_for_it_takes_a_local_partition_for_a_remote_one_of_its_topic(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    (files.log_directory / "meta.properties").unlink()
    with files.open() as remote_log:
        assert remote_log.find_partition("orders", 0, whose_cluster_is_lost=True) == ORDERS_0
        alone = remote_log.find_partition("orders", 0)
    assert (alone.topic_id, alone == ORDERS_0) == (ORDERS_0.topic_id, False)


def test_a_name_that_two_clusters_have_is_refused(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    other = tmp_path / "elsewhere" / "logs"
    shutil.copytree(files.log_directory, other)
    properties = other / "meta.properties"
    properties.write_text(properties.read_text().replace("test-cluster", "another-cluster"))
    _remake_topic(replace(files, root=tmp_path / "elsewhere"), "BBBBBBBBBBBBBBBBBBBBBA")
    files.properties["log.dirs"] = [str(files.log_directory), str(other)]
    with files.open() as remote_log:
        with pytest.raises(ConfigurationError, match=r"orders-0.*log\.dirs.*another-cluster"):
            remote_log.find_partition("orders", 0)
        assert copy(remote_log).is_whole

    files.properties["log.dirs"] = []
    with files.open() as remote_log, pytest.raises(ConfigurationError, match=r"several .*another-cluster"):
        remote_log.find_partition("orders", 0)


def test_nothing_expires_while_a_local_log_that_should_be_there_cannot_be_read(tmp_path: Path) -> None:
    """What it holds of later leaders decides how far expiry may go."""
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.bytes": 1}})
    with files.open() as remote_log:
        [plan], unreadable = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert (plan.new_log_start, unreadable) == (30, [])

        files.log_directory.rename(tmp_path / "elsewhere")
        plans, [finding] = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert (plans, finding.partition) == ([], "orders-0")
        assert str(files.log_directory) in finding.message
        done, [finding] = remote_log.deletions.mark_expired([plan], "expire")
        assert (done, finding.partition) == ((), "orders-0")

    files.properties["log.dirs"] = []
    with files.open() as remote_log:
        [plan], unreadable = remote_log.deletions.plan_expiry(EVERYTHING, NOW)
        assert (plan.new_log_start, unreadable) == (20, []), "the bytes that are only local do not count"


def test_only_the_partitions_that_were_selected_are_copied(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", number): 1 for number in range(3)})
    with files.open() as remote_log:
        plan = remote_log.plan_copy(Selection("orders", frozenset({0, 2, 7})))
    assert [segment.topic_id_partition.partition for segment in plan.segments] == [0, 2]


def test_only_the_partitions_that_were_selected_are_looked_at_and_deleted_from(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "retention.bytes": 1, "local.retention.bytes": 0}}
    files = a_copied_remote_log(tmp_path, {("orders", number): 1 for number in range(3)}, topics=topics)
    second = Selection("orders", frozenset({1}))
    with files.open() as remote_log:
        trims, _ = remote_log.deletions.plan_local_retention(second, NOW)
        assert [str(plan.topic_id_partition) for plan in trims] == ["orders-1"]
        expiries, _ = remote_log.deletions.plan_expiry(second, NOW)
        assert [str(plan.topic_id_partition) for plan in expiries] == ["orders-1"]
        remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, NOW)[0], "expire")
        deleted = remote_log.deletions.delete_marked("expire", second).deleted
        assert [str(segment.topic_id_partition) for segment in deleted] == ["orders-1"]
        for damaged in files.objects(".log"):
            damaged.write_bytes(b"")
        assert remote_log.checks.audit(second).objects == 0
        assert remote_log.checks.audit(Selection("orders", frozenset({0}))).objects == 3


def test_a_partition_that_cannot_be_looked_at_is_reported_where_it_was_selected(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", number): 1 for number in range(2)})
    (files.partition_directory(number=1) / "partition.metadata").write_text("no metadata")
    with files.open() as remote_log:
        for number, expected in ((0, []), (1, ["orders-1"])):
            chosen = Selection("orders", frozenset({number}))
            assert [finding.partition for finding in remote_log.plan_copy(chosen).unreadable] == expected
            _, unreadable = remote_log.deletions.plan_local_retention(chosen, NOW)
            assert [finding.partition for finding in unreadable] == expected


def test_leases_are_kept_while_somebody_else_works(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        tasks = begin(remote_log).tasks
        with remote_log.keep_leases(task.lease for task in tasks):
            files.clock.now += remote_log.context.settings.lease_duration_ms - 1
        files.clock.now += remote_log.context.settings.lease_duration_ms - 1

        assert [finding.partition for finding in begin(remote_log, "another run").left] == ["orders-0"]


def _remake_topic(files: RemoteLogFiles, topic_id: str) -> None:
    (files.partition_directory() / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def test_a_plan_needs_no_store_that_is_in_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_copied_remote_log(tmp_path)
    files.append(2)

    def away(_: StoreGenerations) -> list[object]:
        raise RemoteStorageError("away")

    with files.open() as remote_log:
        remote_log.context.bind_store()
        monkeypatch.setattr(StoreGenerations, "newest", away)
        assert len(remote_log.plan_copy().segments) == 1
