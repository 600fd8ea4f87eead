"""The deletion of a partition's oldest records by a person's word (Kafka's DeleteRecords, for both tiers).

Our log start moves to the offset asked for; what lies wholly below it goes in the background, as what total retention
ends does. A segment that holds the offset stays until its last record is below our log start.
"""

from __future__ import annotations

from tiered_storage.errors import ConfigurationError, OffsetOutOfRangeError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.reader import TieredReader
from tiered_storage.remote_log.retention.expiry import ExpiryPlan, Reason, ending_below

TO_THE_END = -1
"""The offset that stands for the end of what is stable, as in Kafka."""


def plan_record_deletion(
    partition: TopicIdPartition, before: int, context: RemoteLogContext, now: int
) -> ExpiryPlan | None:
    """Return the end of all records of `partition` before the offset `before`; None where there are none.

    TO_THE_END stands for all that are stable. Raises ConfigurationError for any other negative offset, and
    OffsetOutOfRangeError for one past the end, both with the offsets that the partition has.
    """
    log = TieredReader(context.source, context.segments, context.storage).open(partition)
    start, end = log.log_start_offset, log.log_end_offset
    if before < TO_THE_END:
        raise ConfigurationError(
            f"{partition}: {before} is no offset: give one from {start} to {end}, or {TO_THE_END} for the end"
        )
    if before > end:
        raise OffsetOutOfRangeError(str(partition), before, start, end + 1)
    new_log_start = end if before == TO_THE_END else before
    going = ending_below(list(context.segments.list_remote_log_segments(partition)), new_log_start)
    if not going and new_log_start <= start:
        return None
    return ExpiryPlan(partition, max(new_log_start, start), now, going, Reason.RECORDS)
