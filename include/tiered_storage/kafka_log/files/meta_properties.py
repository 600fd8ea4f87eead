"""`meta.properties`: the cluster and the broker that a log directory belongs to.

A Java properties file. Version 1 (KRaft) has `cluster.id`, `node.id` and mostly `directory.id`; version 0 (ZooKeeper)
has `broker.id`, and each of its other keys may be absent:

    version=1
    cluster.id=MkU3OEVBNTcwNTJENDM2Qg
    node.id=1
    directory.id=xsMTrxMGRlSGrhb3Dmq0Yg     a UUID as in kafka_uuid.py

Source: KIP-78, KIP-858; released Kafka; java.util.Properties for the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from tiered_storage.errors import ConfigurationError, CorruptIndexError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.files.small_files import read_small_file, replace_file
from tiered_storage.kafka_log.kernels.constants import INT32_MAX

META_PROPERTIES = "meta.properties"
MAX_BYTES = 64 << 10
_LEAST = -INT32_MAX - 1

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_CONTROL_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a log directory; `version` is 0 or 1, and version 1 always has a cluster id and a node id."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `path`; ignore unknown keys, as a broker does.

        Raises CorruptIndexError if the version is unknown, a required key is missing, or a value is malformed.
        """
        content = read_small_file(path, MAX_BYTES)
        values = _parse(path, content)
        version = _integer(path, "version", values.get("version", _Value(0, "0")))
        if version not in (0, 1):
            raise CorruptIndexError(path, values["version"].position, f"version {version} is unknown: take 0 or 1")
        node_key = "node.id" if version else "broker.id"
        cluster, node, directory = (values.get(key) for key in ("cluster.id", node_key, "directory.id"))
        absent = [key for key, value in (("cluster.id", cluster), (node_key, node)) if value is None]
        if version and absent:
            raise CorruptIndexError(path, len(content), f"version 1 needs {' and '.join(absent)}")
        if directory is not None:
            _check_directory_id(path, directory)
        return cls(
            version,
            None if cluster is None else cluster.text,
            None if node is None else _integer(path, node_key, node),
            None if directory is None else directory.text,
        )

    @property
    def names_owner(self) -> bool:
        """Whether it names a cluster or a broker: any text is a valid, empty properties file of version 0."""
        return self.cluster_id is not None or self.node_id is not None

    def write(self, path: Path) -> None:
        """Replace `path` by these properties, durably and atomically.

        Raises ConfigurationError if a value is not printable ASCII, or the node id is not a 32-bit number.
        """
        if self.node_id is not None and not _LEAST <= self.node_id <= INT32_MAX:
            raise ConfigurationError(f"node id {self.node_id}: take {_LEAST} to {INT32_MAX}")
        values = {
            "cluster.id": self.cluster_id,
            "node.id" if self.version else "broker.id": self.node_id,
            "directory.id": self.directory_id,
            "version": self.version,
        }
        lines = (f"{key}={_escaped(key, str(value))}\n" for key, value in values.items() if value is not None)
        replace_file(path, "".join(lines).encode("ascii"))


class _Value(NamedTuple):
    position: int
    """Of its line in the file, in bytes."""
    text: str


def _integer(path: Path, key: str, value: _Value) -> int:
    digits = value.text.strip()
    number = int(digits) if re.fullmatch(r"-?[0-9]{1,10}", digits) else None
    if number is None or not _LEAST <= number <= INT32_MAX:
        raise CorruptIndexError(path, value.position, f"{key} is not a number of 32 bits")
    return number


def _check_directory_id(path: Path, value: _Value) -> None:
    try:
        decode_uuid(value.text)
    except ConfigurationError:
        raise CorruptIndexError(path, value.position, "directory.id is not a UUID as Kafka writes it") from None


def _parse(path: Path, content: bytes) -> dict[str, _Value]:
    properties: dict[str, _Value] = {}
    for position, line in _logical_lines(content):
        key_and_value = _KEY_AND_VALUE.fullmatch(line)
        if key_and_value is None:
            raise CorruptIndexError(path, position, "this is not a line of a properties file")
        try:
            properties[_unescaped(key_and_value[1])] = _Value(position, _unescaped(key_and_value[2]))
        except UnicodeDecodeError:
            raise CorruptIndexError(path, position, "this line escapes half of a character") from None
    return properties


def _logical_lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield Java's logical lines, each with the position of its first byte.

    No comments and no blank lines; a line that ends with a backslash is joined with the next.
    """
    begun, position, end = "", 0, 0
    for natural_line in content.splitlines(keepends=True):
        start, end = end, end + len(natural_line)
        line = natural_line.decode("latin-1").rstrip("\r\n").lstrip(" \t\f")
        if not begun and (not line or line.startswith(("#", "!"))):
            continue
        position = position if begun else start
        if _CONTINUED.search(line):
            begun += line[:-1]
            continue
        yield position, begun + line
        begun = ""
    if begun:
        yield position, begun


def _unescaped(text: str) -> str:
    """Return `text` without escapes: they are UTF-16 units, two of which can make one character.

    Raises UnicodeDecodeError for half of one.
    """

    def character(escape: re.Match[str]) -> str:
        if escape[1]:
            return chr(int(escape[1], 16))
        return _CONTROL_CHARACTERS.get(escape[2], escape[2])

    return _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _escaped(key: str, value: str) -> str:
    if not (value.isascii() and value.isprintable()):
        raise ConfigurationError(f"{key} is {value!r}: it must be printable ASCII")
    return re.sub(r"([\\=:#! ])", r"\\\1", value)
