from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.log.recovery.clean_shutdown import (
    CLEAN_SHUTDOWN,
    UNKNOWN_BROKER_EPOCH,
    read_clean_shutdown,
)


@pytest.mark.parametrize(
    ("content", "epoch"),
    [
        (b'{"version":0,"brokerEpoch":164}', 164),
        (b'{"version":0,"brokerEpoch":-1}', -1),
        (b"", UNKNOWN_BROKER_EPOCH),
        (b'{"version":0}', UNKNOWN_BROKER_EPOCH),
    ],
)
def test_the_mark_of_a_clean_shutdown_has_the_brokers_epoch(tmp_path: Path, content: bytes, epoch: int) -> None:
    path = tmp_path / CLEAN_SHUTDOWN
    path.write_bytes(content)
    assert read_clean_shutdown(path) == epoch


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not a JSON"),
        (b'{"version":0,}', "byte 13.*not a JSON"),
        (b"\xff", "not a JSON"),
        (b"[" * 4000, "not a JSON"),
        (b"[0, 1]", "its version is unknown"),
        (b'{"version":1,"brokerEpoch":3}', "version 1 is unknown"),
        (b'{"version":0,"brokerEpoch":"3"}', "brokerEpoch is not a number"),
        (b'{"version":0,"brokerEpoch":true}', "brokerEpoch is not a number"),
        (b" " * 5000, "continues past"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / CLEAN_SHUTDOWN
    path.write_bytes(content)
    with pytest.raises(CorruptIndexError, match=reason):
        read_clean_shutdown(path)
