from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.records import USUAL_EXAMPLES
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.columns import SCHEMA
from tiered_storage.remote_log.tables.parquet import LocalFile, ParquetSizes, write_files

SIZES = ParquetSizes(row_group_bytes=400, row_group_rows=4, file_bytes=900)


def rows(values: Iterable[bytes | None]) -> pa.RecordBatch:
    """Rows with these values, at offsets 0, 1 and so on."""
    listed = list(values)
    columns = {
        "key": [None, *([b"key"] * (len(listed) - 1))] if listed else [],
        "value": listed,
        "topic": ["orders"] * len(listed),
        "partition": [3] * len(listed),
        "offset": list(range(len(listed))),
        "timestamp": [1_700_000_000_000_000 + number for number in range(len(listed))],
        "timestampType": [0] * len(listed),
        "headers": [[{"key": "trace", "value": None}] * (number % 2) for number in range(len(listed))],
    }
    return pa.RecordBatch.from_pydict(columns, SCHEMA)


def written(batches: Iterable[pa.RecordBatch], folder: Path, codec: str = "zstd") -> list[LocalFile]:
    folder.mkdir()
    return list(write_files(batches, lambda part: folder / f"{part}.parquet", codec, SIZES))


@settings(max_examples=USUAL_EXAMPLES, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=600), max_size=30), st.data())
def test_the_bytes_of_files_depend_on_the_rows_alone(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes | None], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    whole = rows(values)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=5)))
    pieces = [whole.slice(begin, end - begin) for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    at_once, in_pieces = written([whole], folder / "whole"), written(pieces, folder / "pieces")
    contents = [[file.path.read_bytes() for file in files] for files in (at_once, in_pieces)]
    assert contents[0] == contents[1]
    assert sum(file.rows for file in at_once) == len(values)
    assert [file.part for file in at_once] == list(range(len(at_once)))
    if at_once:
        found = pa.concat_tables([pq.read_table(file.path) for file in at_once])
        assert found.to_pylist() == whole.to_pylist()
        assert at_once[-1].last_offset == len(values) - 1
    for file in at_once:
        groups = pq.ParquetFile(file.path).metadata
        assert all(groups.row_group(number).num_rows <= SIZES.row_group_rows for number in range(groups.num_row_groups))


def test_a_row_group_ends_with_the_row_that_fills_it_and_a_file_with_its_group(tmp_path: Path) -> None:
    files = written([rows([b"." * 300] * 5)], tmp_path / "files")
    assert [(file.rows, file.first_offset, file.last_offset) for file in files] == [(4, 0, 3), (1, 4, 4)]
    metadata = pq.ParquetFile(files[0].path).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [2, 2]


def test_a_row_group_counts_the_bytes_of_headers(tmp_path: Path) -> None:
    whole = rows([b"value"] * 6)
    headers: list[list[tuple[str, bytes | None]] | None] = [
        [],
        [("k", b"." * 200)],
        [("key", None), ("k", b"." * 299)],
        None,
        [],
        [("k" * 300, b"")],
    ]
    cells = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    column = pa.array(cells, SCHEMA.field("headers").type)
    whole = whole.set_column(whole.schema.get_field_index("headers"), SCHEMA.field("headers"), column)
    for number, batch in enumerate((whole, pa.concat_batches([whole, whole]).slice(6))):
        [file] = written([batch], tmp_path / f"{number}")
        metadata = pq.ParquetFile(file.path).metadata
        assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [3, 3]


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "gzip", "none"])
def test_every_codec_is_read_again(tmp_path: Path, codec: str) -> None:
    [file] = written([rows([b"value"] * 3)], tmp_path / "files", codec)
    assert pq.read_table(file.path).num_rows == 3


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert written([], tmp_path / "files") == []
    assert list((tmp_path / "files").iterdir()) == []


def test_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"codec 'rar'.* zstd"):
        written([rows([b"value"])], tmp_path / "files", "rar")


def test_a_reader_that_fails_leaves_no_open_file(tmp_path: Path) -> None:
    def breaking() -> Iterable[pa.RecordBatch]:
        yield rows([b"value"] * 5)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        written(breaking(), tmp_path / "files")
