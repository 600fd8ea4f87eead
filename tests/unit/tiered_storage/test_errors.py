from __future__ import annotations

import re
from collections.abc import Iterator

from tiered_storage import errors
from tiered_storage.errors import TieredStorageError

ENTRY = re.compile(r"^ {4}(?P<indent>[ │├└─]*)(?P<name>\w+Error)(?: {2,}\S|$)")


def classes(error: type[TieredStorageError]) -> Iterator[tuple[str, str]]:
    """Yield each error below `error` that stands in errors.py, with its parent's name."""
    for each in error.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each.__name__, error.__name__
            yield from classes(each)


def drawn() -> Iterator[tuple[str, str]]:
    """Yield each error of the tree in the module's docstring, with its parent's name."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := ENTRY.match(line):
            depth = len(found["indent"]) // 4
            del above[depth:]
            if above:
                yield found["name"], above[-1]
            above.append(found["name"])


def test_the_tree_that_is_drawn_is_that_of_the_classes() -> None:
    assert dict(drawn()) == dict(classes(TieredStorageError))


def test_no_error_is_worth_a_second_try_without_saying_so() -> None:
    known = {each: getattr(errors, each).retriable for each, _ in classes(TieredStorageError)}
    assert {name for name, retriable in known.items() if retriable} == {
        "LogDirectoryLockedError",
        "RemoteStorageError",
        "RemoteStorageFullError",
        "SourceClusterError",
        "ClusterUnreachableError",
        "MalformedAnswerError",
        "TargetClusterError",
        "MetadataUnavailableError",
        "CopyStuckError",
        "LeaseHeldError",
        "ReadQuotaExceededError",
        "ReadRefusedError",
        "ReadTimedOutError",
        "ReaderBusyError",
        "UnknownLeaderEpochError",
    }
