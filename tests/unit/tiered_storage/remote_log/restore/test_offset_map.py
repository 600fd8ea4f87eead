from __future__ import annotations

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
def test_what_was_added_is_found_and_a_second_run_goes_on_behind_it(
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
            behind = [new for at, new in offsets.items() if at >= each]
            assert found.new_offset(partition, each) == (behind[0] if behind else None)


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
    with pytest.raises(ConfigurationError, match="the map of another restore"):
        OffsetMapWriter.open(path, MapHead(SOURCE, TARGET | {"cluster_id": "a third"}, {0: 0}))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{}", "this is no line of an offset map"),
        ("\x00\xff", "this is no line of an offset map"),
        ('{"partition": 1, "old": 0, "new": 0, "count": 1}', "does not follow"),
        ('{"partition": 0, "old": 0, "new": 1, "count": 1}', "does not follow"),
        ('{"partition": 0, "old": 0, "new": 0, "count": 0}', "does not follow"),
        ('{"partition": 0, "old": -1, "new": 0, "count": 1}', "does not follow"),
    ],
)
def test_a_broken_line_is_told_with_its_place(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "map.jsonl"
    OffsetMapWriter.open(path, head(p0=0)).__exit__(None, None, None)
    place = path.stat().st_size
    with path.open("a", encoding="latin-1") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigurationError, match=f"at byte {place}: .*{reason}"):
        OffsetMap.read(path)
    with pytest.raises(ConfigurationError, match=reason):
        OffsetMapWriter.open(path, head(p0=0))


def test_what_is_no_map_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.jsonl"
    path.write_bytes(b"somebody else's notes\n")
    with pytest.raises(ConfigurationError, match="at byte 0: this is no offset map"):
        OffsetMapWriter.open(path, head(p0=0))
    assert path.read_bytes() == b"somebody else's notes\n"
    path.write_bytes(b'{"source": {}, "target": {}, "starts": {}, "format_version": 2}\n')
    with pytest.raises(ConfigurationError, match="version 2 of an offset map is not known here: upgrade"):
        OffsetMap.read(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="it has no first line"):
        OffsetMap.read(path)
