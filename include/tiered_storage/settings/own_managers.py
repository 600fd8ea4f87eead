"""Storage and metadata managers of the user's own: the settings that name a class, and the options handed over to it.

As in Kafka, the options are all settings whose names begin with the manager's prefix. Our own classes take only the
options that are declared as settings; another class gets every option as text, without the prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tiered_storage.settings.properties.model import OlderName
from tiered_storage.settings.properties.reading import Properties, Property, showable


@dataclass(frozen=True, slots=True)
class Manager:
    """A manager that a setting names: the start of its settings' names, our class, and Kafka's prefix of its options.

    The prefix is also the name of the setting that has the options.
    """

    name: str
    our_class: str
    prefix: str


STORAGE_MANAGER = Manager(
    "remote.log.storage.manager",
    "tiered_storage.remote_log.storage.segment_objects.ObjectRemoteStorageManager",
    "rsm.config.",
)
METADATA_MANAGER = Manager(
    "remote.log.metadata.manager",
    "tiered_storage.remote_log.metadata.sql.store.SqlMetadataStore",
    "rlmm.config.",
)

TOPIC_METADATA_MANAGER = "tiered_storage.remote_log.metadata.topic.store.TopicMetadataStore"
"""Our class that has the segments' metadata in a topic of Kafka."""
KAFKAS_METADATA_MANAGER = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
"""Kafka's name for the same."""
COMMON_CLIENT_PREFIX = "remote.log.metadata.common.client."
"""What the options begin with, after rlmm.config., that say how the metadata topic's cluster is reached."""
METADATA_TOPIC_OPTION = "remote.log.metadata.topic.name"
"""The option, after rlmm.config., with the name of the metadata topic."""
METADATA_CACHE_OPTION = "remote.log.metadata.cache.directory"
"""The option, after rlmm.config., with the folder of the metadata topic's cache."""
METADATA_WRITE_OPTION = "remote.log.metadata.producer.message.timeout.ms"
"""The option, after rlmm.config., with how long a record of the metadata topic may wait for the brokers."""


@dataclass(frozen=True, slots=True)
class _Configured:
    """A manager as the sources configure it."""

    manager: Manager
    is_own: bool
    prefix: str

    @classmethod
    def by(cls, manager: Manager, sources: Sequence[Properties]) -> _Configured:
        given = {one.path[0]: str(one.value) for source in sources for one in source.properties if len(one.path) == 1}
        is_own = given.get(f"{manager.name}.class.name", manager.our_class) != manager.our_class
        return cls(manager, is_own, given.get(f"{manager.name}.impl.prefix") or manager.prefix)

    def claims(self, one: Property) -> bool:
        """Return whether `one` is an option of the manager that is not yet in its place."""
        name = one.path[0]
        is_option = len(one.path) == 1 and name.startswith(self.prefix) and name != self.prefix
        return is_option and (self.is_own or self.prefix != self.manager.prefix)

    def placed(self, one: Property) -> Property | str:
        """Return the option where the settings have it, or why it is refused."""
        option = one.path[0].removeprefix(self.prefix)
        if not self.is_own:
            return one.renamed(OlderName(one.path[0], self.manager.prefix + option))
        text = _as_text(one.value)
        if text is None:
            return f"{one.where}: {showable(one.path[0])} must be text, a number, true or false, or a list of these"
        return replace(one, path=(self.manager.prefix, option), value=text)


def place_options(sources: Sequence[Properties], known: Collection[str]) -> list[Properties]:
    """Return `sources` with the managers' options where the settings have them.

    Options of a user's class go below the setting that is named like Kafka's prefix. Options of our own class get
    Kafka's prefix in place of another. `known` names keep their meaning; a user's class gets them too.
    """
    managers = [_Configured.by(manager, sources) for manager in (STORAGE_MANAGER, METADATA_MANAGER)]

    def places(one: Property) -> Iterator[Property | str]:
        if one.path in {(each.manager.prefix,) for each in managers}:
            yield f"{one.where}: {one.path[0]} is only the start of names: give each option by its whole name"
            return
        is_known = one.path[0] in known
        claimed = [each for each in managers if each.claims(one)]
        if is_known or not claimed:
            yield one
        yield from (each.placed(one) for each in claimed if each.is_own or not is_known)

    return [_with(each, [placed for one in each.properties for placed in places(one)]) for each in sources]


def _with(source: Properties, placed: Sequence[Property | str]) -> Properties:
    problems = [each for each in placed if isinstance(each, str)]
    properties = [each for each in placed if isinstance(each, Property)]
    return replace(source, properties=properties, problems=[*source.problems, *problems])


def _as_text(value: object) -> str | None:
    """Return an option's value as Kafka writes it, None if it has no such text; a run's parameters have JSON values."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        texts = [_as_text(each) for each in value if not isinstance(each, list | tuple)]
        known = [text for text in texts if text is not None]
        return ",".join(known) if len(known) == len(value) else None
    return str(value) if isinstance(value, str | int | float) else None
