"""Everything that Remote Log can raise on purpose, in one tree.

    TieredStorageError
    ├── ConfigurationError             a setting, an argument or a plan that cannot be meant
    │   ├── UnsupportedTopicError      a topic that must not be tiered (compacted)
    │   └── UntrustedMessageError      a file of the work area without this remote log's signature
    ├── InvalidLogDirectoryError       a directory that is not Kafka's, or not whole
    │   ├── LogDirectoryLockedError    a broker, or another of our runs, holds `.lock`
    │   └── ForkedLogError             a local log and the remote one have other batches at the same offsets
    ├── CorruptLogError                bytes that break Kafka's formats: names file, position and reason
    │   ├── CorruptRecordError         a record batch or a record
    │   │   └── UnsupportedMagicError  a batch of another generation than the caller reads
    │   └── CorruptIndexError          an index, a checkpoint or a snapshot, alone or against its log
    ├── OffsetOutOfRangeError          below the log start or past the log end: names the valid range
    │   └── RecordsDeletedError        they were deleted while they were read: the log begins further up by now
    ├── LeaderEpochError               a leader epoch that a read names is not the partition's
    │   ├── FencedLeaderEpochError     a later leader leads by now
    │   ├── UnknownLeaderEpochError    a later leader than any that is known here
    │   └── DivergingEpochError        what the reader fetched last was cut off
    ├── ReadRefusedError               a read that was not served in its time; nothing is wrong with what it asked for
    │   ├── ReaderBusyError            too many remote reads wait already
    │   ├── ReadQuotaExceededError     more bytes a second than are allowed
    │   └── ReadTimedOutError          the request's own time was up
    ├── AppendRefusedError             a batch that a log does not take from its producer, coordinator or leader
    │   ├── OutOfOrderSequenceError    its sequence number does not follow its producer's last one
    │   ├── InvalidProducerEpochError  of a producer epoch that is over
    │   ├── InvalidTimestampError      too far from the log's clock
    │   ├── InvalidTransactionStateError       not part of its producer's open transaction
    │   ├── TransactionCoordinatorFencedError  of a transaction coordinator that was replaced
    │   └── UnexpectedAppendOffsetError        it does not go on from the log's end
    ├── DeletionRefusedError           nothing may be deleted there now, by a person's word
    ├── LineageContradictedError       a local log that a later leader cut: an older replica's
    ├── RemoteStorageError             the object store, for a while or by refusal
    │   ├── RemoteStorageRefusedError  credentials or rights
    │   ├── RemoteStorageFullError     no room at the target
    │   ├── RemoteObjectNotFoundError  an object that should be there is not
    │   ├── RemoteObjectCorruptError   an object whose bytes are not those that were sent
    │   ├── LaterVersionError          an object that a later release wrote: it is sound, and not for us to judge
    │   └── CopyStuckError             no byte of a copy moved any more, so it was ended
    ├── TargetClusterError             the cluster that a topic is restored into
    └── RemoteMetadataError            the metadata store
        ├── MetadataUnavailableError   locked or out of reach, for a while
        ├── MetadataMissingError       no metadata store is there, or it is not the one that the object store belongs to
        ├── MetadataCorruptError       the metadata store itself is damaged or of a later version
        ├── InvalidTransitionError     a state change that the life cycle does not know
        ├── LeaseHeldError             another owner works on the partition
        ├── LeaseLostError             our lease was taken over: this attempt must stop
        ├── OutdatedMetadataError      the metadata are not at the store's generation: a backup, or a copy
        └── StoreMismatchError         store and metadata do not carry one another's UUID

`retriable` says whether the same call may succeed later with nothing changed by a person.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class TieredStorageError(Exception):
    """The root of the tree; its message names what, where, and what to do."""

    retriable: ClassVar[bool] = False


class ConfigurationError(TieredStorageError):
    """A setting, an argument or a plan that cannot be meant."""


class UnsupportedTopicError(ConfigurationError):
    """A topic that must not be tiered, as a compacted one."""


class UntrustedMessageError(ConfigurationError):
    """A plan, task or result in the work area is not signed, or was altered, moved or taken from another run."""


class InvalidLogDirectoryError(TieredStorageError):
    """A directory that is not a Kafka log directory, or lacks what we cannot do without."""


class LogDirectoryLockedError(InvalidLogDirectoryError):
    """`.lock` is held by a broker or by another run."""

    retriable = True


class ForkedLogError(InvalidLogDirectoryError):
    """A local log and the remote one have other batches at the same offsets: both were written on separately."""


class CorruptLogError(TieredStorageError):
    """Bytes that break one of Kafka's formats, at `position` (bytes from the start) of `path`."""

    def __init__(self, path: Path | str, position: int, reason: str) -> None:
        super().__init__(path, position, reason)
        self.path = str(path)
        self.position = position
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: at byte {self.position}: {self.reason}"


class CorruptRecordError(CorruptLogError):
    """A record batch, or a record in it, that cannot be what a broker wrote."""


class UnsupportedMagicError(CorruptRecordError):
    """A batch of a magic that the caller does not read."""


class CorruptIndexError(CorruptLogError):
    """An index, checkpoint or snapshot file that is broken, or that disagrees with its log."""


class OffsetOutOfRangeError(TieredStorageError):
    """`offset` lies outside [`start`, `end`), the offsets that the partition has."""

    def __init__(self, partition: str, offset: int, start: int, end: int) -> None:
        super().__init__(partition, offset, start, end)
        self.partition = partition
        self.offset = offset
        self.start = start
        self.end = end

    def __str__(self) -> str:
        return f"{self.partition}: offset {self.offset} is out of range; it has offsets {self.start} to {self.end - 1}"


class RecordsDeletedError(OffsetOutOfRangeError):
    """`offset` was deleted while it was read: the log begins at `start` by now, where the next read goes on."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} was deleted while it was read; the log begins at offset "
            f"{self.start} by now: go on from there"
        )


class LeaderEpochError(TieredStorageError):
    """A leader epoch that a read names is not the partition's: `known` is the epoch of the last leader known here."""

    def __init__(self, partition: str, epoch: int, known: int) -> None:
        super().__init__(partition, epoch, known)
        self.partition = partition
        self.epoch = epoch
        self.known = known


class FencedLeaderEpochError(LeaderEpochError):
    """A later leader than the one that a read names leads by now."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: leader epoch {self.epoch} is over, {self.known} leads: read with that epoch, and "
            "name that of the last record you have: so you learn whether it was cut off"
        )


class UnknownLeaderEpochError(LeaderEpochError):
    """A read names a later leader than any that is known here yet."""

    retriable = True

    def __str__(self) -> str:
        return (
            f"{self.partition}: leader epoch {self.epoch} is not known here yet, only {self.known}: try again when "
            "more was copied, or read without an epoch"
        )


class DivergingEpochError(LeaderEpochError):
    """What a reader fetched last was cut off: leader epoch `epoch`, of which it was, ended at `end_offset` (exclusive).

    Where that epoch left nothing, `epoch` is the one before it that did.
    """

    def __init__(self, partition: str, offset: int, epoch: int, end_offset: int, known: int) -> None:
        super().__init__(partition, epoch, known)
        self.offset = offset
        self.end_offset = end_offset

    def __str__(self) -> str:
        return (
            f"{self.partition}: offset {self.offset} is of another log than what was fetched before it: leader epoch "
            f"{self.epoch} ended at offset {self.end_offset}: drop what you have from there on, and go on from there"
        )


class ReadRefusedError(TieredStorageError):
    """A read was not served in its time; the same one may be a moment later."""

    retriable = True


class ReaderBusyError(ReadRefusedError):
    """As many remote reads wait as may (remote.log.reader.max.pending.tasks)."""


class ReadQuotaExceededError(ReadRefusedError):
    """More bytes were read from the remote tier than it may give in a second."""


class ReadTimedOutError(ReadRefusedError):
    """The time that a read had (remote.fetch.max.wait.ms) was up before its bytes were there."""


class AppendRefusedError(TieredStorageError):
    """A log does not take a batch from its producer, coordinator or leader; nothing was appended."""


class OutOfOrderSequenceError(AppendRefusedError):
    """A batch's sequence number does not follow the last one of its producer."""


class InvalidProducerEpochError(AppendRefusedError):
    """A batch or a marker has a producer epoch that is over: a newer instance of the producer has written."""


class InvalidTimestampError(AppendRefusedError):
    """A record's timestamp is further from the log's clock than the log's settings allow."""


class InvalidTransactionStateError(AppendRefusedError):
    """A batch is not part of the transaction that its producer has open."""


class TransactionCoordinatorFencedError(AppendRefusedError):
    """An end marker comes from a transaction coordinator that was replaced."""


class UnexpectedAppendOffsetError(AppendRefusedError):
    """Batches from a leader do not go on from the log's end."""


class DeletionRefusedError(TieredStorageError):
    """Nothing may be deleted there now: a person stopped all deletions, or does not allow them there."""


class LineageContradictedError(TieredStorageError):
    """A local log is an older replica's: a leader is known that it never heard of, and that cut it."""


class RemoteStorageError(TieredStorageError):
    """The object store did not do what was asked; it may later."""

    retriable = True


class RemoteStorageRefusedError(RemoteStorageError):
    """The object store refused us: credentials or rights."""

    retriable = False


class RemoteStorageFullError(RemoteStorageError):
    """There is no room at the target."""


class RemoteObjectNotFoundError(RemoteStorageError):
    """An object that should be there is not."""

    retriable = False


class RemoteObjectCorruptError(RemoteStorageError):
    """An object whose bytes, size or checksum are not those that were sent."""

    retriable = False


class LaterVersionError(RemoteStorageError):
    """A later release wrote `source`, in version `found` of its format; we read up to `known`.

    Never taken for damage: what such an object says could mean something else, so it is neither deleted nor mended.
    """

    retriable = False

    def __init__(self, source: str, found: int, known: int) -> None:
        super().__init__(source, found, known)
        self.source = source
        self.found = found
        self.known = known

    def __str__(self) -> str:
        return (
            f"{self.source}: written by a later release, in version {self.found} of its format; this one reads up to "
            f"version {self.known}: upgrade it; until then nothing of it is deleted or mended"
        )


class CopyStuckError(RemoteStorageError):
    """No byte of a copy moved for too long, so it was ended; what was finished by then is committed."""


class TargetClusterError(TieredStorageError):
    """The cluster that a topic is restored into refused a record, or did not answer; it may later."""

    retriable = True


class RemoteMetadataError(TieredStorageError):
    """The metadata store did not do what was asked."""


class MetadataUnavailableError(RemoteMetadataError):
    """The metadata store is locked or out of reach for a while."""

    retriable = True


class MetadataMissingError(RemoteMetadataError):
    """No metadata store is there, or an empty one beside an object store that belongs to another."""


class MetadataCorruptError(RemoteMetadataError):
    """The metadata store is damaged, or was written by a later version."""


class InvalidTransitionError(RemoteMetadataError):
    """A state change that the life cycle does not know."""


class LeaseHeldError(RemoteMetadataError):
    """Another owner holds the partition's lease."""

    retriable = True


class LeaseLostError(RemoteMetadataError):
    """Our lease was taken over: whatever this attempt still produces is refused."""


class OutdatedMetadataError(RemoteMetadataError):
    """The store knows of leases or segments that the metadata never heard of: they were restored from an old backup."""


class StoreMismatchError(RemoteMetadataError):
    """Store and metadata do not carry one another's UUID: nothing may be deleted."""
