from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.restore.offset_map import MapHead, OffsetMap, OffsetMapWriter

SOURCE = {"topic": "orders", "topic_id": "HBaK2wDSCOQvkzFFKfH6nA"}
TARGET = {"topic": "orders", "cluster_id": "another"}


def head(**starts: int) -> MapHead:
    return MapHead(SOURCE, TARGET, {int(name[1:]): start for name, start in starts.items()})


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:]


@given(
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.booleans()), max_size=60),
    start=st.integers(0, 5),
    torn=st.integers(0, 40),
)
def test_added_offsets_are_found_and_a_second_run_continues_after_them(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, bool]], start: int, torn: int
) -> None:
    """Old offsets have gaps, as markers leave them; now and then the process ends, once with a torn last line."""
    path = tmp_path_factory.mktemp("map") / "map.jsonl"
    expected: dict[int, dict[int, int]] = {0: {}, 1: {}}
    old = {0: 0, 1: 0}
    writer = OffsetMapWriter.open(path, head(p0=start, p1=0))
    for partition, gap, ends in steps:
        old[partition] += gap
        expected[partition][old[partition]] = writer.progress[partition].next_new
        writer.add(partition, old[partition])
        if ends:
            writer.__exit__(None, None, None)
            with path.open("ab") as file:
                file.write(b'{"partition": 0, "old": 99, "new": 0, "count'[:torn])
            # What it would begin with now does not count any more.
            writer = OffsetMapWriter.open(path, head(p0=77, p1=77))
            assert writer.is_resumed
    writer.__exit__(None, None, None)
    found = OffsetMap.read(path)
    for partition, offsets in expected.items():
        first = 0 if partition else start
        assert list(offsets.values()) == list(range(first, first + len(offsets)))
        for each in range(old[partition] + 2):
            later = [new for at, new in offsets.items() if at >= each]
            assert found.new_offset(partition, each) == (later[0] if later else None)


def test_offsets_that_follow_one_another_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    with OffsetMapWriter.open(path, head(p0=5)) as writer:
        for old in (*range(100, 200), *range(201, 210)):
            writer.add(0, old)
    assert lines(path) == [
        '{"partition": 0, "old": 100, "new": 5, "count": 100}',
        '{"partition": 0, "old": 201, "new": 105, "count": 9}',
    ]


def test_two_runs_do_not_write_one_map(tmp_path: Path) -> None:
    with (
        OffsetMapWriter.open(tmp_path / "map.jsonl", head(p0=0)),
        pytest.raises(ConfigurationError, match="another rest"),
    ):
        OffsetMapWriter.open(tmp_path / "map.jsonl", head(p0=0))


def test_the_map_of_another_restore_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    OffsetMapWriter.open(path, head(p0=0)).__exit__(None, None, None)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="another restore"):
        OffsetMapWriter.open(path, MapHead(SOURCE, TARGET | {"cluster_id": "a third"}, {0: 0}))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x00\x01 a key without a newline", id="a key file"),
        pytest.param(b"k" * (3 << 20), id="a large file without a newline"),
        pytest.param(b"k" * (3 << 20) + b"\n{}\n", id="a long first line"),
        pytest.param(b'{"source": {', id="another beginning of JSON"),
        pytest.param(b'jwt_secret = "s3cr3t"\n', id="a file of secrets"),
        pytest.param(b'{"source":{"s3cr3t":1},"target":{},"starts":{"0":-5}}\n', id="a map from below zero"),
    ],
)
def test_a_file_that_is_not_a_map_is_never_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "map.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="line 1") as error:
        OffsetMapWriter.open(path, head(p0=0))
    assert path.read_bytes() == content
    assert "s3cr3t" not in repr(error.value)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None


def test_a_map_with_a_tail_that_is_no_torn_line_is_never_cut(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    OffsetMapWriter.open(path, head(p0=0)).__exit__(None, None, None)
    before = path.read_bytes() + b"k" * (2 << 20)
    path.write_bytes(before)
    with pytest.raises(ConfigurationError, match="line 2, at byte "):
        OffsetMapWriter.open(path, head(p0=0))
    assert path.read_bytes() == before


def test_neither_a_link_nor_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    link, dangling, pipe = (tmp_path / name for name in ("link", "dangling", "pipe"))
    link.symlink_to(tmp_path / "empty")
    dangling.symlink_to(tmp_path / "absent")
    os.mkfifo(pipe)
    for path, reason in ((link, "it is a link"), (dangling, "it is a link"), (pipe, "it is not a regular file")):
        with pytest.raises(ConfigurationError, match=reason):
            OffsetMapWriter.open(path, head(p0=0))
    assert (tmp_path / "empty").read_bytes() == b""
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("content", [b"", b"another's notes\n"])
def test_a_file_that_appears_just_before_ours_is_made_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "map.jsonl"

    def appears() -> None:
        path.write_bytes(content)

    with pytest.raises(ConfigurationError, match="File exists"):
        OffsetMapWriter.open(path, head(p0=0), appears)
    assert path.read_bytes() == content


@pytest.mark.parametrize("begun", [b"", b'{"source":{"topic":'])
def test_an_empty_file_and_one_with_a_torn_first_line_of_ours_become_the_map(tmp_path: Path, begun: bytes) -> None:
    path = tmp_path / "map.jsonl"
    path.write_bytes(begun)
    with OffsetMapWriter.open(path, head(p0=0)) as writer:
        assert not writer.is_resumed
        writer.add(0, 7)
    assert OffsetMap.read(path).new_offset(0, 7) == 0


@pytest.mark.parametrize("there", [None, b""])
def test_a_map_that_may_not_begin_leaves_everything_as_it_was(tmp_path: Path, there: bytes | None) -> None:
    path = tmp_path / "new" / "map.jsonl"
    if there is not None:
        path.parent.mkdir()
        path.write_bytes(there)

    def refuse() -> None:
        raise ConfigurationError("the topic holds records")

    with pytest.raises(ConfigurationError, match="holds records"):
        OffsetMapWriter.open(path, head(p0=0), refuse)
    assert path.parent.exists() == (there is not None)
    assert (path.read_bytes() if path.exists() else None) == there


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{}", "not a line of an offset"),
        ("\x00\xff", "not a line of an offset"),
        ('{"partition": 1, "old": 0, "new": 0, "count": 1}', "does not follow"),
        ('{"partition": 0, "old": 0, "new": 1, "count": 1}', "does not follow"),
        ('{"partition": 0, "old": 0, "new": 0, "count": 0}', "does not follow"),
        ('{"partition": 0, "old": -1, "new": 0, "count": 1}', "does not follow"),
    ],
)
def test_a_broken_line_is_reported_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "map.jsonl"
    OffsetMapWriter.open(path, head(p0=0)).__exit__(None, None, None)
    place = path.stat().st_size
    with path.open("a", encoding="latin-1") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigurationError, match=f"line 2, at byte {place}: .*{reason}"):
        OffsetMap.read(path)
    with pytest.raises(ConfigurationError, match=reason):
        OffsetMapWriter.open(path, head(p0=0))


def test_a_file_that_is_no_offset_map_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    path.write_bytes(b"somebody else's notes\n")
    with pytest.raises(ConfigurationError, match="line 1, at byte 0"):
        OffsetMapWriter.open(path, head(p0=0))
    assert path.read_bytes() == b"somebody else's notes\n"
    path.write_bytes(b'{"source": {}, "target": {}, "starts": {}, "format_version": 2}\n')
    with pytest.raises(ConfigurationError, match="version 2 "):
        OffsetMap.read(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="first line"):
        OffsetMap.read(path)
