from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError, CorruptIndexError
from tiered_storage.kafka_log.files.meta_properties import MetaProperties

DIRECTORY_ID = "cxfmXdFdRF2-6WITmvYjdA"
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.properties"


@given(
    cluster_id=printable,
    node_id=st.integers(-(2**31), 2**31 - 1),
    directory_id=st.sampled_from([None, DIRECTORY_ID]),
    version=st.sampled_from([0, 1]),
)
def test_properties_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, cluster_id: str, node_id: int, directory_id: str | None, version: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "meta.properties"
    properties = MetaProperties(version, cluster_id, node_id, directory_id)

    properties.write(path)

    assert MetaProperties.read(path) == properties


def test_the_file_of_a_kraft_broker_is_read(path: Path) -> None:
    path.write_text(
        "#\n#Sat Nov 21 11:07:00 UTC 2026\n"
        "cluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
        f"directory.id={DIRECTORY_ID}\n"
        "node.id=1\nversion=1\n"
    )

    assert MetaProperties.read(path) == MetaProperties(1, "MkU3OEVBNTcwNTJENDM2Qg", 1, DIRECTORY_ID)


def test_the_file_of_a_zookeeper_broker_is_read(path: Path) -> None:
    path.write_text("broker.id=3\nversion=0\n")

    assert MetaProperties.read(path) == MetaProperties(0, None, 3, None)


def test_javas_escapes_comments_and_continued_lines_are_understood(path: Path) -> None:
    path.write_bytes(
        b"! a comment that does not continue \\\n"
        b"\n"
        b"  version : 1\r\n"
        b"cluster.id  a\\=b\\u00e9\\\n"
        b"      \\tc\n"
        b"node\\.id=\\\n"
        b"   4\n"
        b"unknown\n"
        b"node.id=\\"
    )

    with pytest.raises(CorruptIndexError, match=r"node\.id is not a number"):
        MetaProperties.read(path)

    path.write_bytes(path.read_bytes() + b"\n7")
    assert MetaProperties.read(path) == MetaProperties(1, "a=bé\tc", 7, None)


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        ("version=2\n", 0, "version 2 is unknown"),
        ("#\r\nversion=one\n", 3, "number of 32 bits"),
        ("version=1\ncluster.id=\\ud800\nnode.id=1\n", 10, "half of a character"),
        ("version=1\nnode.id=1\n", 20, "needs cluster.id"),
        ("version=1\n", 10, "needs cluster.id and node.id"),
        ("version=1\ncluster.id=\\\n  c\nnode.id=99999999999\n", 27, "not a number"),
        ("version=1\ncluster.id=c\nnode.id=2147483648\n", 23, "not a number of 32 bits"),
        (f"version=1\ncluster.id=c\nnode.id=1\ndirectory.id={DIRECTORY_ID}A\n", 33, "directory.id is not a UUID"),
        ("#" * 100_000, 65536, "continues past"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(path: Path, content: str, position: int, reason: str) -> None:
    path.write_bytes(content.encode())

    with pytest.raises(CorruptIndexError, match=reason) as raised:
        MetaProperties.read(path)

    assert (raised.value.path, raised.value.position) == (str(path), position)


def test_a_character_of_two_escapes_is_one(path: Path) -> None:
    path.write_text("version=1\ncluster.id=\\ud83d\\ude00\nnode.id=1\n")

    assert MetaProperties.read(path).cluster_id == "\N{GRINNING FACE}"


def test_characters_that_python_strips_from_numbers_are_ignored(path: Path) -> None:
    path.write_bytes(b"version=\x1d1\ncluster.id=c\nnode.id=7\x1c\n")

    assert MetaProperties.read(path).node_id == 7


def test_a_value_that_is_no_printable_ascii_is_not_written(path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cluster\.id"):
        MetaProperties(1, "a\nb", 1, None).write(path)

    assert not path.exists()


@pytest.mark.parametrize("node_id", [2**31, -(2**31) - 1])
def test_a_node_id_that_is_no_number_of_32_bits_is_not_written(path: Path, node_id: int) -> None:
    with pytest.raises(ConfigurationError, match=f"node id {node_id}"):
        MetaProperties(1, "c", node_id, None).write(path)

    assert not path.exists()
