"""Everything that Remote Log can raise on purpose, in one tree.

    TieredStorageError
    ├── ConfigurationError             an invalid setting, argument or plan
    │   ├── UnknownPartitionError      a partition that neither tier has
    │   ├── AmbiguousPartitionError    a name that several topics had
    │   ├── UnsupportedTopicError      a topic that must not be tiered (compacted)
    │   └── UntrustedMessageError      a file of the work area without this remote log's signature
    ├── InvalidLogDirectoryError       a directory that is not a Kafka log directory, or incomplete
    │   ├── LogDirectoryLockedError    a broker, or another of our runs, holds `.lock`
    │   └── ForkedLogError             the local and the remote log have different batches at the same offsets
    ├── CorruptLogError                bytes that break Kafka's formats: names file, position and reason
    │   ├── CorruptRecordError         a record batch or a record
    │   │   └── UnsupportedMagicError  a batch of another generation than the caller reads
    │   └── CorruptIndexError          an index, a checkpoint or a snapshot, alone or against its log
    ├── OffsetOutOfRangeError          below the log start or past the log end: names the valid range
    │   └── RecordsDeletedError        the records were deleted during the read: the log start has moved past them
    ├── LeaderEpochError               a read gives a leader epoch that is not the partition's
    │   ├── FencedLeaderEpochError     a later leader has taken over
    │   ├── UnknownLeaderEpochError    a later leader than any known here
    │   └── DivergingEpochError        the records that the reader fetched last were truncated
    ├── ReadRefusedError               a valid read that was not served in time
    │   ├── ReaderBusyError            too many remote reads are waiting
    │   ├── ReadQuotaExceededError     more bytes per second than allowed
    │   └── ReadTimedOutError          the request's time limit has passed
    ├── AppendRefusedError             a batch that a log refuses from its producer, coordinator or leader
    │   ├── OutOfOrderSequenceError    its sequence number does not follow its producer's last one
    │   ├── InvalidProducerEpochError  its producer epoch is fenced
    │   ├── InvalidTimestampError      too far from the log's clock
    │   ├── InvalidTransactionStateError       not part of its producer's open transaction
    │   ├── TransactionCoordinatorFencedError  of a transaction coordinator that was replaced
    │   └── UnexpectedAppendOffsetError        it does not continue at the log's end
    ├── DeletionRefusedError           deletion is stopped or not allowed there
    ├── LineageContradictedError       the log of an outdated replica: a later leader truncated it
    ├── RemoteStorageError             the object store fails or refuses
    │   ├── RemoteStorageRefusedError  credentials or rights
    │   │   └── EncryptionKeyError     a key of the key ring is missing, unusable or another one
    │   ├── RemoteStorageFullError     no room at the target
    │   ├── RemoteObjectNotFoundError  a missing object
    │   ├── RemoteObjectCorruptError   an object whose bytes are not those that were sent
    │   │   └── RemoteChunkCorruptError    one chunk of an encoded segment: others may be readable
    │   ├── LaterVersionError          an object in the format of a later release: valid, but unreadable here
    │   └── CopyStuckError             a copy made no progress and was ended
    ├── SourceClusterError             the cluster that segments are read from
    │   ├── ClusterUnreachableError    no broker answered in time, or the connection was lost
    │   ├── ClusterRefusedError        the brokers refuse the login, the rights or the request
    │   └── MalformedAnswerError       an answer that breaks Kafka's protocol
    ├── TargetClusterError             the cluster that a topic is restored into
    └── RemoteMetadataError            the metadata store
        ├── MetadataUnavailableError   locked or out of reach, for a while
        ├── MetadataMissingError       the metadata store is missing, or belongs to another object store
        ├── MetadataCorruptError       the metadata store is damaged, or of a later version
        ├── MalformedMetadataRecordError   a record of the metadata topic that Kafka cannot have written
        ├── InvalidTransitionError     an invalid state change
        ├── LeaseHeldError             another owner works on the partition
        ├── LeaseLostError             another owner took over the lease: this attempt must stop
        ├── OutdatedMetadataError      the metadata are not at the store's generation: a backup, or a copy
        └── StoreMismatchError         store and metadata do not carry one another's UUID

`retriable`: whether the same call may succeed later without any change.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class TieredStorageError(Exception):
    """The root of the tree. A message reports what happened, where, and what to do."""

    retriable: ClassVar[bool] = False


class ConfigurationError(TieredStorageError):
    """An invalid setting, argument or plan."""


class UnknownPartitionError(ConfigurationError):
    """A partition that neither tier has."""


class AmbiguousPartitionError(ConfigurationError):
    """A partition's name that several topics had, of which a caller must name one by its id."""


class UnsupportedTopicError(ConfigurationError):
    """A topic that must not be tiered, such as a compacted one."""


class UntrustedMessageError(ConfigurationError):
    """A plan, task or result in the work area is unsigned, or was altered, moved or taken from another run."""


class InvalidLogDirectoryError(TieredStorageError):
    """A directory that is not a Kafka log directory, or lacks required files."""


class LogDirectoryLockedError(InvalidLogDirectoryError):
    """A broker or another run holds `.lock`."""

    retriable = True


class ForkedLogError(InvalidLogDirectoryError):
    """The local and the remote log have different batches at the same offsets: both were written separately."""


class CorruptLogError(TieredStorageError):
    """Bytes that break one of Kafka's formats, at `position` (bytes from the start) of `path`."""

    def __init__(self, path: Path | str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path, self.position, self.reason = str(path), position, reason

    def __str__(self) -> str:
        return f"{self.path}: at byte {self.position}: {self.reason}"


class CorruptRecordError(CorruptLogError):
    """A record batch or record that no broker can have written."""


class UnsupportedMagicError(CorruptRecordError):
    """A batch with a magic that the caller does not read."""


class CorruptIndexError(CorruptLogError):
    """An index, checkpoint or snapshot file that is corrupt, or contradicts its log."""


class OffsetOutOfRangeError(TieredStorageError):
    """`offset` lies outside [`start`, `end`), the offsets of the partition."""

    def __init__(self, partition: str, offset: int, start: int, end: int) -> None:
        super().__init__(partition, offset, start, end)
        self.partition, self.offset, self.start, self.end = partition, offset, start, end

    def __str__(self) -> str:
        return f"{self.partition}: offset {self.offset} is out of range; it has offsets {self.start} to {self.end - 1}"


class RecordsDeletedError(OffsetOutOfRangeError):
    """`offset` was deleted during the read; the log now begins at `start`: read on from there."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} was deleted while it was read; the log now begins at offset "
            f"{self.start}: continue from there"
        )


class LeaderEpochError(TieredStorageError):
    """A read gives a leader epoch that is not the partition's; `known` is the last epoch known here."""

    def __init__(self, partition: str, epoch: int, known: int) -> None:
        super().__init__(partition, epoch, known)
        self.partition, self.epoch, self.known = partition, epoch, known


class FencedLeaderEpochError(LeaderEpochError):
    """A leader later than the one that a read gives has taken over."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: leader epoch {self.epoch} is over, {self.known} leads: read with that epoch, and give "
            "the epoch of the last record you have, to learn whether it was truncated"
        )


class UnknownLeaderEpochError(LeaderEpochError):
    """A read gives a later leader epoch than any known here."""

    retriable = True

    def __str__(self) -> str:
        return (
            f"{self.partition}: leader epoch {self.epoch} is not known here, only {self.known}: try again after the "
            "next copy, or read without an epoch"
        )


class DivergingEpochError(LeaderEpochError):
    """The records that a reader fetched last were truncated: their `epoch` ended at `end_offset` (exclusive).

    If that epoch has no records left, `epoch` is the latest one before it that has.
    """

    def __init__(self, partition: str, offset: int, epoch: int, end_offset: int, known: int) -> None:
        super().__init__(partition, epoch, known)
        self.offset = offset
        self.end_offset = end_offset

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} does not continue the log of the last fetch: leader epoch "
            f"{self.epoch} ended at offset {self.end_offset}: drop your records from there on, and read again from "
            "there"
        )


class ReadRefusedError(TieredStorageError):
    """A read was not served in time; the same read may succeed a moment later."""

    retriable = True


class ReaderBusyError(ReadRefusedError):
    """The queue of remote reads is full (remote.log.reader.max.pending.tasks)."""


class ReadQuotaExceededError(ReadRefusedError):
    """The remote tier's read quota, in bytes per second, is used up."""


class ReadTimedOutError(ReadRefusedError):
    """The time limit of a read (remote.fetch.max.wait.ms) passed before its bytes arrived."""


class AppendRefusedError(TieredStorageError):
    """A log refuses a batch from its producer, coordinator or leader; nothing was appended."""


class OutOfOrderSequenceError(AppendRefusedError):
    """A batch's sequence number does not follow the last one of its producer."""


class InvalidProducerEpochError(AppendRefusedError):
    """A batch or marker has a fenced producer epoch: a newer instance of the producer has written."""


class InvalidTimestampError(AppendRefusedError):
    """A record's timestamp is further from the log's clock than the log's settings allow."""


class InvalidTransactionStateError(AppendRefusedError):
    """A batch is not part of its producer's open transaction."""


class TransactionCoordinatorFencedError(AppendRefusedError):
    """An end marker comes from a transaction coordinator that was replaced."""


class UnexpectedAppendOffsetError(AppendRefusedError):
    """Batches from a leader do not continue at the log's end."""


class DeletionRefusedError(TieredStorageError):
    """Deletion is refused: all deletions are stopped, or deletion is not allowed there."""


class LineageContradictedError(TieredStorageError):
    """A local log belongs to an outdated replica: a leader that it does not know truncated it."""


class RemoteStorageError(TieredStorageError):
    """The object store failed to do what was asked; a retry may succeed."""

    retriable = True


class RemoteStorageRefusedError(RemoteStorageError):
    """The object store refused access: wrong credentials or missing rights."""

    retriable = False


class EncryptionKeyError(RemoteStorageRefusedError):
    """The key ring lacks the key of a segment, or has another one under its id. The segment itself is not damaged."""


class RemoteStorageFullError(RemoteStorageError):
    """There is no room at the target."""


class RemoteObjectNotFoundError(RemoteStorageError):
    """An object is missing."""

    retriable = False


REPAIR_ADVICE = "'tiered-storage repair --deep' copies it again if the local log still has it"
"""What to do about a damaged segment of the store."""


class RemoteObjectCorruptError(RemoteStorageError):
    """An object whose bytes, size or checksum are not those that were sent."""

    retriable = False


class RemoteChunkCorruptError(RemoteObjectCorruptError):
    """A chunk of an encoded segment cannot be decoded; the other chunks may be readable."""


class LaterVersionError(RemoteStorageError):
    """A later release wrote `source`, in version `found` of its format; we read up to `known`.

    Never treated as damage: its content may have another meaning, so it is neither deleted nor repaired.
    """

    retriable = False

    def __init__(self, source: str, found: int, known: int) -> None:
        super().__init__(source, found, known)
        self.source, self.found, self.known = source, found, known

    def __str__(self) -> str:
        return (
            f"{self.source}: written by a later release, in version {self.found} of its format; this release reads up "
            f"to version {self.known}: upgrade; until then nothing of it is deleted or repaired"
        )


class CopyStuckError(RemoteStorageError):
    """A copy made no progress for too long and was ended; its finished segments are committed."""


class SourceClusterError(TieredStorageError):
    """The cluster that segments are read from failed to do what was asked; a retry may succeed."""

    retriable = True


class ClusterUnreachableError(SourceClusterError):
    """No broker answered before the time limit, or a broker closed the connection."""


class ClusterRefusedError(SourceClusterError):
    """The brokers refuse the login, lack a right of ours, or do not support a request."""

    retriable = False


class MalformedAnswerError(SourceClusterError):
    """A broker's answer breaks Kafka's protocol; the connection is closed, and a new one may serve."""


class TargetClusterError(TieredStorageError):
    """The cluster that a topic is restored into refused a record or did not answer; a retry may succeed."""

    retriable = True


class RemoteMetadataError(TieredStorageError):
    """The metadata store failed to do what was asked."""


class MetadataUnavailableError(RemoteMetadataError):
    """The metadata store is temporarily locked or out of reach."""

    retriable = True


class MetadataMissingError(RemoteMetadataError):
    """The metadata store is missing, or it is empty while the object store belongs to another one."""


class MetadataCorruptError(RemoteMetadataError):
    """The metadata store is damaged, or was written by a later version."""


class MalformedMetadataRecordError(RemoteMetadataError):
    """The value of a record of the metadata topic breaks its format, at `position` (bytes from the value's start)."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"the metadata record's value is malformed at byte {self.position}: {self.reason}"


class InvalidTransitionError(RemoteMetadataError):
    """An invalid state change of a remote segment."""


class LeaseHeldError(RemoteMetadataError):
    """Another owner holds the partition's lease."""

    retriable = True


class LeaseLostError(RemoteMetadataError):
    """Another owner took over our lease: all further changes of this attempt are refused."""


class OutdatedMetadataError(RemoteMetadataError):
    """The store has leases or segments that the metadata do not know: the metadata are from an old backup."""


class StoreMismatchError(RemoteMetadataError):
    """Store and metadata do not carry each other's UUID: nothing may be deleted."""
