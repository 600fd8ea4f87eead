from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tiered_storage.regular_files import NotRegularFileError, open_regular, open_unbuffered, regular_descriptor

OPENED: list[Callable[[Path], object]] = [
    open_regular,
    open_unbuffered,
    lambda path: regular_descriptor(path, os.O_RDWR | os.O_CREAT),
]


@pytest.mark.parametrize("opened", OPENED)
def test_anything_but_a_regular_file_is_refused_at_once(tmp_path: Path, opened: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (tmp_path / "fifo", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(NotRegularFileError, match=f"'{path}'"):
            opened(path)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        opened(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_regular_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        for opened in (open_regular, open_unbuffered):
            with opened(tmp_path / name) as file:
                assert (file.read(), file.name) == (b"content", tmp_path / name)
