"""Check the metadata topic, beside the SQL store that has the rest."""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.doctor.check import Check, note, ok
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore

_NAME = "metadata topic"


def lacks_its_topic(store: MetadataStore) -> bool:
    """Return whether reading segments would create the metadata topic of `store`."""
    return isinstance(store, TopicMetadataStore) and store.state.recorded() is None


def check_metadata_topic(store: TopicMetadataStore) -> Iterator[Check]:
    """Yield findings on the topic of `store`; do not create it. Raises what reading it raises."""
    if lacks_its_topic(store):
        yield note(_NAME, "no metadata topic belongs to these metadata yet: the first use of segments creates it")
        return
    store.state.catch_up()
    topic, skipped = store.state.topic, store.state.cache.skipped_count()
    yield ok(_NAME, f"{topic}: its records can be read, and {store.state.cache.path} has them all")
    if skipped:
        yield note(
            _NAME,
            f"{topic}: {skipped} of its records changed nothing",
            "'tiered-storage metadata status' lists them: look who else writes there",
        )
