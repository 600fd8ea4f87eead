"""Check the metadata store, whether it and the object store belong together, and what it reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain, islice

from tiered_storage.clock import Clock, as_date, machine_boot_time
from tiered_storage.doctor.check import Check, alone, note, ok, wrong
from tiered_storage.doctor.log_directories import check_decisions, check_identities
from tiered_storage.doctor.metadata_server import check_server
from tiered_storage.doctor.object_stores import check_folder
from tiered_storage.errors import MetadataMissingError, RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.remote_log.context import open_metadata, open_storage
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.outdated_metadata import why_outdated
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditResult, Safety
from tiered_storage.remote_log.metadata.sql.database.database_kinds import local_file
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.postgres_database import PostgresDatabase
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import later_version, schema_version
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import open_existing
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, ensure_in_use
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore, topic_store
from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement, has_own_clock
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.documents.store_generation import StoreGenerations
from tiered_storage.remote_log.storage.documents.store_identity import (
    ensure_store_identity,
    find_store_identity,
    read_store_identity,
)
from tiered_storage.remote_log.tiering_policy import NO_TOPICS, PATTERNS, Decisions, effective, refuse_compacted, seed
from tiered_storage.settings.settings import Settings

MOST_FAILURES_NAMED = 5
MOST_PARTITIONS_PROBED = 20
"""Any one of them shows that a store was emptied; each costs a request."""

CLOCKS_APART_MS = 300_000
"""The clocks of several hosts may differ by up to this, and a lease may be renewed when it has nearly expired."""

_NAME = "metadata"
_TOPIC = "metadata topic"


def check_metadata(settings: Settings, clock: Clock, options: ObjectStoreOptions) -> Iterator[Check]:
    """Yield findings on the metadata store; do not create a missing one or migrate an older one."""
    if settings.has_own_metadata_manager:
        yield from _check_own_class(settings, clock, options)
        return
    url, busy_timeout_ms = settings.rlmm_config_url.get_secret_value(), settings.metadata_busy_timeout_ms
    path = local_file(url)
    if path is None:
        with PostgresDatabase(url, busy_timeout_ms) as server:
            yield from check_server(server, settings, clock)
            yield from _check_tables(server, settings, clock, options)
        return
    if path.parent != settings.state_directory:
        yield from check_folder(_NAME, path.parent)
    if not path.exists() and not path.with_name(f"{path.name}-wal").exists():
        yield from _check_without(str(path), settings, options)
        return
    for each in (path, path.parent):
        # SQLite opens a file that it may not write for reading, and even begins write transactions.
        if each.exists() and not os.access(each, os.W_OK, effective_ids=True):
            message = f"user {os.geteuid()} may not write {each}, or it is mounted read-only"
            yield wrong(_NAME, message, "let this user write the file and its folder: SQLite writes beside it")
            return
    if (names := path.stat().st_nlink if path.exists() else 1) > 1:
        message = f"{path} is one file with {names} names (hard links): all of them open the same metadata"
        advice = (
            "remove all names but one: if SQLite opens another name, it does not find the -wal file and damages the "
            "database"
        )
        yield wrong(_NAME, message, advice)
    with open_existing(path, busy_timeout_ms) as file:
        yield from _check_tables(file, settings, clock, options)


def _check_own_class(settings: Settings, clock: Clock, options: ObjectStoreOptions) -> Iterator[Check]:
    class_name = settings.remote_log_metadata_manager_class_name
    try:
        opened = open_metadata(settings, clock)
    except MetadataMissingError as error:
        what = "the database beside the metadata topic" if settings.has_metadata_topic else "the metadata store"
        yield from _check_without(f"{what} of the class {class_name} ({error})", settings, options)
        return
    with opened as store:
        store.check_integrity()
        beside_topic = topic_store(store)
        if beside_topic is not None:
            yield ok(_NAME, f"{store.generation.where}: is intact; the segments are in a metadata topic")
            yield from alone(_TOPIC, lambda: _check_topic(beside_topic))
            if not beside_topic.state.is_readable():
                return
        else:
            yield ok(_NAME, f"{class_name} is your own class: it opens, and its metadata are intact")
        yield from _check_content(store, settings, clock, options)


def lacks_its_topic(store: MetadataStore) -> bool:
    """Return whether reading segments would create the metadata topic of `store`."""
    beside_topic = topic_store(store)
    return beside_topic is not None and beside_topic.lacks_its_topic


def _check_topic(store: TopicMetadataStore) -> Iterator[Check]:
    """Yield findings on the topic of `store`; do not create it. Raises what reading it raises."""
    if lacks_its_topic(store):
        yield note(_TOPIC, "no metadata topic belongs to these metadata yet: the first use of segments creates it")
        return
    store.state.catch_up()
    topic, skipped = store.state.topic, store.state.cache.skipped_count()
    yield ok(_TOPIC, f"{topic}: its records can be read, and {store.state.cache.path} has them all")
    if skipped:
        yield note(
            _TOPIC,
            f"{topic}: {skipped} of its records changed nothing",
            "'tiered-storage metadata status' lists them: look who else writes there",
        )


def _check_without(where: str, settings: Settings, options: ObjectStoreOptions) -> Iterator[Check]:
    yield note(_NAME, f"{where} does not exist yet: the first command or run creates it")
    yield from alone("pair", lambda: _check_pair(settings, options, None))
    yield from _check_topics(settings, ())


def _check_tables(database: Database, settings: Settings, clock: Clock, options: ObjectStoreOptions) -> Iterator[Check]:
    with database.reading() as connection:
        found = schema_version(connection)
    if found is None and database.EXISTS_WITHOUT_TABLES:
        yield from _check_without(f"a metadata store in {database.where}", settings, options)
        return
    yield from alone(_NAME, lambda: _check_database(database, found))
    if found != SCHEMA_VERSION:
        return
    with database.reading() as connection:
        ensure_in_use(connection, database.where)
    yield from _check_content(SqlMetadataStore(database, clock), settings, clock, options)


def _check_content(
    store: MetadataStore, settings: Settings, clock: Clock, options: ObjectStoreOptions
) -> Iterator[Check]:
    yield from alone("pair", lambda: _check_pair(settings, options, store))
    yield from alone("log.dirs", lambda: check_identities(settings, store.segments))
    topics = tuple(store.topics.list())
    yield from alone("topics", lambda: _check_topics(settings, topics))
    yield from alone("leases", lambda: _check_leases(settings, store, clock()))
    yield from alone("backup", lambda: _check_backup(store))
    yield from alone("clock", lambda: _check_clock(settings, options, store, clock))
    yield from alone("deletions", lambda: _check_deletions(store.safety))
    yield from alone("audit", lambda: _check_audit_results(store))


def _check_database(database: Database, found: str | None) -> Iterator[Check]:
    database.check_integrity()
    if found is None:
        yield wrong(_NAME, f"{database.where}: is not a metadata store of Remote Log", "correct rlmm.config.url")
        return
    if found > SCHEMA_VERSION:
        raise later_version(database.where, found, SCHEMA_VERSION)
    if found < SCHEMA_VERSION:
        message = (
            f"{database.where}: has schema version {found}; the next command or run migrates it to {SCHEMA_VERSION}"
        )
        yield note(_NAME, message, "end every process of the earlier version first, see docs/upgrading.md")
    database.check_writable()
    yield ok(_NAME, f"{database.where}: is intact and can be written to")


def _check_pair(settings: Settings, options: ObjectStoreOptions, store: MetadataStore | None) -> Iterator[Check]:
    if settings.has_own_storage_manager:
        return
    with closing(open_object_client(settings.rsm_config_url, options)) as client:
        bound = store.identity.bound_store_uuid() if store else None
        identity = find_store_identity(client) if bound is None else read_store_identity(client)
        if store is None and identity is not None:
            yield wrong(
                "pair",
                f"{client.root}: the store belongs to the metadata {identity.metadata_uuid}, which are missing",
                "set rlmm.config.url to them, put their backup back with 'tiered-storage metadata restore', or rebuild "
                "them with 'tiered-storage rebuild-metadata'; new metadata need another store",
            )
        elif store is None or (identity is None and bound is None):
            yield note(
                "pair",
                f"{client.root}: store and metadata are not bound to each other yet. The first copy binds them",
            )
        else:
            # A store that the metadata know is never marked again.
            known = bound if identity is None else bound or identity.store_uuid
            ensure_store_identity(client, store.identity.metadata_uuid, known)
            yield ok("pair", f"{client.root}: store and metadata carry one another's UUID")
            yield from _check_generation(client, store)
            yield from _check_objects(client, store)


def _check_clock(
    settings: Settings, options: ObjectStoreOptions, store: MetadataStore, clock: Clock
) -> Iterator[Check]:
    """Yield whether this machine's clock agrees with its last reading; the store check compares the store's clock."""
    with closing(open_storage(settings, options)) as storage:
        is_independent = has_own_clock(storage)
        skew = settings.clock_max_skew_ms
        agreement = ClockAgreement(clock, machine_boot_time, storage, store.clock_readings, skew, is_independent)
        why = agreement.why_refused()
    if why is None:
        yield ok("clock", "nothing shows that it jumped")
    else:
        yield wrong("clock", why)


def _check_backup(store: MetadataStore) -> Iterator[Check]:
    """Yield whether segments were copied after the last backup of the metadata."""
    backed_up_at = store.generation.backed_up_at()
    newest = max(
        (
            segment.event_timestamp
            for partition in store.segments.list_partitions()
            for segment in finished(store.segments.list_remote_log_segments(partition))
        ),
        default=0,
    )
    if newest <= (backed_up_at or 0):
        return
    last = "none was ever made" if backed_up_at is None else f"the last one is of {as_date(backed_up_at)}"
    yield note(
        "backup",
        f"segments were copied until {as_date(newest)}, after the last backup of the metadata: {last}",
        "run 'tiered-storage metadata backup FILE'. After a loss, 'tiered-storage rebuild-metadata' finds later copies "
        "in the store",
    )


def _check_objects(client: ObjectClient, store: MetadataStore) -> Iterator[Check]:
    """Yield the partitions whose newest finished segment lost its commit marker in the store."""
    for partition in islice(store.segments.list_partitions(), MOST_PARTITIONS_PROBED):
        known = finished(store.segments.list_remote_log_segments(partition))
        if not known:
            continue
        try:
            client.size(segment_object_names(known[-1].segment_id, known[-1].start_offset).commit_marker)
        except RemoteObjectNotFoundError as error:
            advice = "does anything else delete there? tiered-storage audit names all missing objects"
            yield wrong("pair", f"{partition}: the store has lost what was copied: {error}", advice)


def _check_generation(client: ObjectClient, store: MetadataStore) -> Iterator[Check]:
    generations = StoreGenerations(client)
    stored, known = generations.newest(), store.generation.read()
    if (why := why_outdated(store.generation.where, generations.place, known, stored)) is not None:
        yield wrong("pair", why)


def _check_topics(settings: Settings, rows: tuple[Topic, ...]) -> Iterator[Check]:
    known = [topic for topic in rows if topic.name not in NO_TOPICS]
    patterns = [f"all that match {row.topic_id}" for row in rows if row.name == PATTERNS and row.remote_storage_enable]
    decided = {topic.name for topic in known}
    seeds = [seed("", "", name, settings) for name in sorted(settings.topics) if name not in decided]
    topics = [*known, *seeds]
    refused: list[str] = []
    for topic in topics:
        try:
            resolved = effective(topic, settings)
            if topic.remote_storage_enable:
                refuse_compacted(topic.name, resolved)
        except TieredStorageError as error:
            refused.append(str(error))
    yield from (wrong("topics", why) for why in refused)
    yield from check_decisions(Decisions(rows, settings), settings, refused)
    copied = (topic.name for topic in topics if topic.remote_storage_enable)
    yield ok("topics", f"copied are: {_names(chain(copied, patterns))}")
    local = _names(topic.name for topic in topics if topic.local_deletion_allowed)
    remote = _names(topic.name for topic in topics if topic.remote_deletion_allowed)
    yield ok("topics", f"may be deleted from locally: {local}; remotely: {remote}")


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


def _check_leases(settings: Settings, store: MetadataStore, now: int) -> Iterator[Check]:
    """Yield the leases that expire later than this clock allows."""
    names = {each: str(each) for each in store.segments.partition_states()}
    for lease in store.leases.held():
        if lease.expires_at - now > settings.lease_duration_ms + CLOCKS_APART_MS:
            name = names.get(lease.topic_id_partition, str(lease.topic_id_partition))
            yield wrong(
                "leases",
                f"{name}: {lease.owner} holds it until {as_date(lease.expires_at)}, far longer than lease.duration.ms: "
                "its clock was ahead when it took the lease, or this one is behind; until then no run works on it",
                "set the clocks right, make sure that the holder no longer runs, then run tiered-storage leases end",
            )


def _check_deletions(safety: Safety) -> Iterator[Check]:
    stop = safety.stopped()
    if stop is None:
        yield ok("deletions", "they are not stopped")
    else:
        reason = f": {stop.reason}" if stop.reason else ""
        message = f"all deletions are stopped, by {stop.stopped_by}, at {as_date(stop.stopped_at)}{reason}"
        yield note("deletions", message, "run 'tiered-storage stop-deletions --lift' to lift the stop")
    failures = iter(safety.failures())
    for failure in islice(failures, MOST_FAILURES_NAMED):
        yield note(
            "deletions",
            f"{failure.segment_id} could not be deleted, {failure.attempts} times since "
            f"{as_date(failure.first_failed_at)}: {failure.error}",
            "solve what the error reports; each run of 'tiered-storage expire' tries again",
        )
    if more := sum(1 for _ in failures):
        yield note("deletions", f"{more} more segments could not be deleted")


def _check_audit_results(store: MetadataStore) -> Iterator[Check]:
    incarnations = {(each.cluster_id, each.topic_id): each.topic for each in store.segments.list_partitions()}
    results = [
        (topic, each)
        for incarnation, topic in sorted(incarnations.items())
        for each in store.safety.audit_results(*incarnation)
    ]
    results += [("the whole store", each) for each in store.safety.audit_results("", "")]
    found = [(topic, each) for topic, each in results if each.anomalies]
    for topic, result in found:
        yield wrong(
            "audit",
            _described(topic, result),
            "run 'tiered-storage audit' to list them, then see 'What an audit finds' in docs/operations.md",
        )
    if incarnations and not results:
        advice = "run 'tiered-storage audit', or let Airflow run audit_remote_log each night"
        yield note("audit", "nothing was ever audited", advice)
    elif results and not found:
        latest = max(each.audited_at for _, each in results)
        yield ok("audit", f"the last one, at {as_date(latest)}, found nothing")


def _described(topic: str, result: AuditResult) -> str:
    depth = "deep" if result.deep else "quick"
    message = f": {result.message}" if result.message else ""
    return f"{topic}: the {depth} audit at {as_date(result.audited_at)} found {result.anomalies} anomalies{message}"
