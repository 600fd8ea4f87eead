"""Fetches of a follower with the transaction indexes that Kafka wrote of them.

UnifiedLog.appendAsFollower of release 4.3.1 was given each fetch at once, with a roll between two of them. It takes all
batches of a fetch before it computes the last stable offsets of the transactions that end in it, so some are later than
the offset after the marker.
"""

from __future__ import annotations

from support.transactions import ABORT, COMMIT, data, marker
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn

OTHER_BEGINS_LATER = (
    data(0, 7, 0, transactional=True)
    + marker(1, 7, ABORT)
    + b"".join(data(offset) for offset in range(2, 10))
    + data(10, 8, 0, transactional=True)
    + marker(11, 8, COMMIT)
)
OTHER_BEGINS_LATER_INDEX = bytes.fromhex("0000 0000000000000007 0000000000000000 0000000000000001 000000000000000a")
BEGINS_AGAIN = (
    data(0, 1, 0, transactional=True)
    + marker(1, 1, ABORT)
    + b"".join(data(offset, 1, offset - 1, transactional=True) for offset in range(2, 10))
    + data(10, 3, 0, transactional=True)
)
"""After its abort producer 1 begins again; the entry names the transaction of producer 3, which begins later."""
BEGINS_AGAIN_INDEX = bytes.fromhex("0000 0000000000000001 0000000000000000 0000000000000001 000000000000000a")
BEGUN_AGAIN_ABORTED = marker(11, 1, ABORT) + marker(12, 3, COMMIT) + data(13)
BEGUN_AGAIN_ABORTED_INDEX = bytes.fromhex("0000 0000000000000001 0000000000000002 000000000000000b 000000000000000a")
BEGUN_AGAIN_ABORT = AbortedTxn(1, 2, 11, 10)
