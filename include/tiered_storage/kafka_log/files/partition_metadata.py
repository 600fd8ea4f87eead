"""`partition.metadata`: the topic id of a partition's directory.

    version: 0
    topic_id: cxfmXdFdRF2-6WITmvYjdA      as in kafka_uuid.py

Source: KIP-516; released Kafka.
"""

from __future__ import annotations

import re
from pathlib import Path

from tiered_storage.errors import ConfigurationError, CorruptIndexError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.files.small_files import read_small_file, replace_file

PARTITION_METADATA = "partition.metadata"
MAX_BYTES = 4096

_CONTENT = re.compile(rb"version: (?P<version>[0-9]+)\r?\ntopic_id: (?P<topic_id>[^\r\n]*)(?:\r?\n)?")


def read_topic_id(path: Path) -> str | None:
    """Return the topic id in `path`, in Kafka's text form, or None if the file is missing (before Kafka 2.8).

    Raises CorruptIndexError if the file has other content, another version, or a reserved id.
    """
    if not path.is_file():
        return None
    content = _CONTENT.fullmatch(read_small_file(path, MAX_BYTES))
    if content is None:
        raise CorruptIndexError(path, 0, "these are not the two lines `version` and `topic_id`")
    if int(content["version"]) != 0:
        raise CorruptIndexError(path, 0, f"version {int(content['version'])} is unknown: 0 was expected")
    topic_id = content["topic_id"].decode("latin-1")
    try:
        decode_uuid(topic_id)
    except ConfigurationError:
        reason = "topic_id is not a UUID as Kafka writes it, or one that it reserves"
        raise CorruptIndexError(path, content.start("topic_id"), reason) from None
    return topic_id


def write_topic_id(path: Path, topic_id: str) -> None:
    """Replace `path` by a file with `topic_id`, durably and atomically.

    Raises ConfigurationError if `topic_id` is not a UUID in Kafka's text form.
    """
    decode_uuid(topic_id)
    replace_file(path, f"version: 0\ntopic_id: {topic_id}".encode())
