"""Targets: what is shown of a log directory in which one file holds any bytes, and of KRaft's control records."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from fuzz.directory_targets import sound_files
from fuzz.segments import mended
from fuzz.target import Target
from support.files import files_in
from tiered_storage.cli.dump import dump
from tiered_storage.errors import CorruptLogError, TieredStorageError
from tiered_storage.kafka_log.dump.control_record_fields import describe_control_record
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.log.recovery.log_leftovers import clear_leftovers
from tiered_storage.kafka_log.records.record import Record

_MEND, _JSON, _RECORDS = 1, 2, 4
_BOOTSTRAP = "bootstrap.checkpoint"
_ABORTS = "orders-0/00000000000000000000.txnindex"
_LEFT = (
    "00000000000000000000.log.swap",
    "00000000000000000003.log.swap",
    "00000000000000000003.index.swap",
    "00000000000000000000.log.cleaned",
    "00000000000000000005.log.deleted",
    "00000000000000000003.timeindex.tmp",
)


def dump_directory(content: bytes) -> None:
    """Replace one file by `content`, which begins with two bytes of choices; show all files, as text or as JSON."""
    if len(content) < 2:
        return
    name, flags, root = _names()[content[0] % len(_names())], content[1], _work_directory() / "logs"
    changed = _lay_out(root, name, content[2:], flags)
    before = files_in(root)
    shown, said = _dump(root, as_json=bool(flags & _JSON), records=bool(flags & _RECORDS))
    assert len(shown) + len(said) < 1 << 24, "more is shown than any such files can hold"
    if flags & _JSON:
        _check_lines(shown, root)
    _read(lambda: read_log_directory(root), changed)
    assert files_in(root) == before, "a file was changed"


def clear(content: bytes) -> None:
    """Write `content`, which begins with two bytes of choices, to a broker's unfinished file; clear all or nothing."""
    if len(content) < 2:
        return
    name, root = f"orders-0/{_LEFT[content[0] % len(_LEFT)]}", _work_directory() / "left"
    changed = _lay_out(root, name, content[2:], content[1])
    before = files_in(root)
    if not _read(lambda: clear_leftovers(changed.parent), changed):
        assert files_in(root) == before, "a file was changed for a broken one"
        return
    assert not [path.name for path in changed.parent.iterdir() if path.name in _LEFT]
    assert clear_leftovers(changed.parent) == ()


def describe(content: bytes) -> None:
    """The first byte is the type of the control record, the second its key's version; the rest is its value."""
    if len(content) < 2:
        return
    for key in (struct.pack(">hh", content[1], content[0]), content[:4], None):
        for value in (content[2:], None):
            fields = describe_control_record(Record(0, 0, key, value))
            assert ("endTxnMarker" in fields) != ("controlType" in fields)
            assert "control" not in fields or len(json.dumps(fields["control"])) <= 64 * (len(content) + 4)


def _dump(root: Path, *, as_json: bool, records: bool) -> tuple[str, str]:
    """Return what the command writes to its standard output, and to its standard error."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as shown,
        contextlib.redirect_stderr(io.StringIO()) as said,
        contextlib.suppress(typer.Exit),
    ):
        dump([root], records, as_json)
    return shown.getvalue(), said.getvalue()


def _check_lines(shown: str, root: Path) -> None:
    for line in shown.splitlines():
        found = json.loads(line)
        if found["type"] == "problem":
            assert found["file"].startswith(str(root)), f"a problem of another file: {found}"
            assert found["position"] >= 0
            assert found["message"]


def _read(read: Callable[[], object], changed: Path) -> bool:
    """Say whether `read` gives a value; where it does not, its error names the file that was changed."""
    try:
        read()
    except TieredStorageError as error:
        assert str(changed) in str(error), f"an error of another file: {error}"
        assert not isinstance(error, CorruptLogError) or error.position >= 0
        return False
    return True


def _lay_out(root: Path, name: str, content: bytes, flags: int) -> Path:
    """Write a sound log directory, but for one file; return that one's path."""
    if ".log" in name and flags & _MEND:
        content = b"".join(mended(content, with_codecs=False))
    shutil.rmtree(root, ignore_errors=True)
    (root / "orders-0").mkdir(parents=True)
    for each, sound in {**sound_files(), name: content}.items():
        (root / each).write_bytes(sound)
    return root / name


@functools.cache
def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _work_directory() -> Path:
    return Path(_temporary_directory().name)


@functools.cache
def _names() -> tuple[str, ...]:
    return (*sound_files(), _BOOTSTRAP, _ABORTS)


def _dump_seeds() -> Iterable[bytes]:
    for number, name in enumerate(_names()):
        for flags in (_JSON, _RECORDS, _MEND | _JSON | _RECORDS):
            yield bytes([number, flags]) + sound_files().get(name, b"")


def _left_seeds() -> Iterable[bytes]:
    logs = [content for name, content in sound_files().items() if name.endswith(".log")]
    for number in range(len(_LEFT)):
        for content in (b"", logs[0], logs[0] + logs[1]):
            yield bytes([number, 0]) + content


def _control_seeds() -> Iterable[bytes]:
    voter = b"\0\0\0\1" + bytes(range(16))
    endpoint = b"\2" + b"\x0bCONTROLLER" + b"\x0alocalhost" + b"\x23\x84\0"
    yield bytes([0, 0]) + bytes(6)
    yield bytes([2, 0]) + b"\0\0\0\0\0\1\3\0\0\0\1\0\0\0\0\2\0\2\0\0\0\2\0\0"
    yield bytes([2, 0]) + b"\0\1\0\0\0\1\2" + voter + b"\0\2" + voter + b"\0\0"
    yield bytes([3, 0]) + bytes(11)
    yield bytes([4, 0]) + bytes(3)
    yield bytes([5, 0]) + b"\0\0\0\1\0"
    yield bytes([6, 0]) + b"\0\0\2" + voter + endpoint + b"\0\0\0\1\0\0\1\7\3abc"


DUMP_TARGETS = (
    Target("dump", dump_directory, _dump_seeds),
    Target("leftovers", clear, _left_seeds),
    Target("kraft_control_record", describe, _control_seeds),
)
