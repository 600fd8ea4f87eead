"""Topic names, and the directory names that Kafka gives to partitions.

A topic's name has 1 to 249 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`, and is neither `.` nor `..`. Its
partition's directory is `{topic}-{partition}`; a suffix after a dot marks one that is being deleted or moved in:

    {topic}-{partition}.{unique id}-delete    deleted, and soon to be removed
    {topic}-{partition}.{unique id}-stray     of a topic that the cluster does not know
    {topic}-{partition}.{unique id}-future    being moved here from another log directory

Source: released Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tiered_storage.errors import ConfigurationError

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
"""The metadata topic of a broker with tiered storage of its own; Kafka does not count it as internal."""
OUR_METADATA_TOPIC = "__remote_log_metadata_of_remote_log"
"""The metadata topic of Remote Log, unless a setting names another one. Neither is ever tiered."""
RESERVED_PREFIX = "__"
"""The prefix of Kafka's own topics; a user's topic may begin with it too."""
MAX_TOPIC_LENGTH = 249
MAX_PARTITION = (1 << 31) - 1

_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_TOPIC_LENGTH}}}")
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})", re.DOTALL)


def is_topic_name(name: str) -> bool:
    """Return whether Kafka accepts `name` as a topic name."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) of the directory `name`; None if it is not of the form `topic-partition`."""
    parts = _PARTITION_DIRECTORY.fullmatch(name)
    if parts is None or not is_topic_name(parts["topic"]) or int(parts["partition"]) > MAX_PARTITION:
        return None
    return parts["topic"], int(parts["partition"])


def partition_directory_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory.

    Raises ConfigurationError if `topic` is not a topic name or `partition` not a partition number.
    """
    if not is_topic_name(topic):
        raise ConfigurationError(
            f"{topic!r} is not a topic name: it has 1 to {MAX_TOPIC_LENGTH} ASCII letters, digits, '.', '_' and '-'"
        )
    if not 0 <= partition <= MAX_PARTITION:
        raise ConfigurationError(f"{topic} cannot have a partition {partition}: they count from 0 to {MAX_PARTITION}")
    return f"{topic}-{partition}"


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names of `known` that differ from `name` only in case, or in dots and underscores, sorted."""
    return sorted({each for each in known if each != name and _plain(each) == _plain(name)})


def nearly_same(names: Iterable[str]) -> list[list[str]]:
    """Return the groups of several names that differ only in case, or in dots and underscores, sorted."""
    groups: dict[str, set[str]] = {}
    for each in names:
        groups.setdefault(_plain(each), set()).add(each)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def described_near(near: list[str]) -> str:
    """Return the text about near names for a message."""
    verb = "differs" if len(near) == 1 else "differ"
    return f"{', '.join(near)} {verb} only in case, or in dot and underscore"


def _plain(name: str) -> str:
    return name.lower().replace("_", ".")
