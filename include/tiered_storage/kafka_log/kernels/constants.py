"""Numbers of compiled code and its callers: sizes and bits of a batch's header, columns, progress and errors.

Plain integers: compiled code takes them as constants.
"""

from __future__ import annotations

# The header of a record batch; its layout is in records/batch_header.py.
BATCH_OVERHEAD = 61
"""Bytes before a batch's records."""
LOG_OVERHEAD = 12
"""Bytes up to and with the batch length, which does not count them."""
MAGIC = 2
CRC_END = 21
"""Bytes up to and with the crc, which covers everything after it."""

CODEC_BITS = 0b111
APPEND_TIME_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6

INT16_MAX = (1 << 15) - 1
INT32_MAX = (1 << 31) - 1
HIGHEST_OFFSET = (1 << 63) - 2
"""The last offset that a record can have: the next offset must fit an int64 too."""

# Results of a scan of headers.
HEADERS_SOUND = 0
BROKEN_HEADER = 1
BROKEN_OFFSETS = 2
TABLE_FULL = 3

# The parts of the slab that holds a chunk's columns: what each has per row.
OFFSETS = 0
TIMESTAMPS = 1
TIMESTAMP_TYPES = 2
CREATE_TIMES = 3
APPEND_TIMES = 4
APPEND_TIME_VALIDITY = 5
KEY_ENDS = 6
KEY_VALIDITY = 7
VALUE_ENDS = 8
VALUE_VALIDITY = 9
HEADER_ENDS = 10
LEADER_EPOCHS = 11
PRODUCER_IDS = 12
PRODUCER_EPOCHS = 13
SEQUENCES = 14
TRANSACTIONAL = 15
CONTROL = 16
VALUE_VIEWS = 17
# Buffers outside the slab, sized per byte or per header.
KEYS = 18
VALUES = 19
HEADER_KEYS = 20
HEADER_KEY_ENDS = 21
HEADER_VALUES = 22
HEADER_VALUE_ENDS = 23
HEADER_VALUE_VALIDITY = 24
PLACES = 25

PART_BITS = (64, 64, 8, 64, 64, 1, 32, 1, 32, 1, 32, 32, 64, 16, 32, 1, 1, 128)
"""Bits per row of the slab's parts. The ends of keys, values and headers begin with a 0 before the first row."""

# The state of the loop: the batch, the start of its next record (0: not begun), that record's number, and the least
# offset delta that it may have.
BATCH = 0
POSITION = 1
RECORD = 2
LOWEST_DELTA = 3
# The totals of a chunk.
ROWS = 4
KEY_BYTES = 5
VALUE_BYTES = 6
KEY_NULLS = 7
VALUE_NULLS = 8
HEADERS = 9
HEADER_KEY_BYTES = 10
HEADER_VALUE_BYTES = 11
HEADER_VALUE_NULLS = 12
STRANGE_HEADER_KEYS = 13
RECORD_BYTES = 14
PROGRESS_SIZE = 15

# Why the loop ended.
ALL_DONE = 0
FULL = 1
RUNS_OUT = 2
RECORD_TOO_LONG = 3
VARINT_TOO_LONG = 4
FIELD_TOO_LONG = 5
TOO_MANY_HEADERS = 6
HEADER_KEY_NULL = 7
LENGTH_WRONG = 8
OFFSET_OUT_OF_RANGE = 9
LEFT_OVER = 10
WRONG_CHECKSUM = 11
OUT_OF_WINDOW = 12

REASONS = {
    RUNS_OUT: "it runs past its end",
    RECORD_TOO_LONG: "its length does not fit its batch",
    VARINT_TOO_LONG: "a varint is longer than its type can be",
    FIELD_TOO_LONG: "a field is longer than its record",
    TOO_MANY_HEADERS: "its number of headers does not fit its bytes",
    HEADER_KEY_NULL: "a header has no key",
    LENGTH_WRONG: "its fields take fewer bytes than its length says",
    OFFSET_OUT_OF_RANGE: "its offset is not above those before it and within its batch",
    LEFT_OVER: "bytes follow the last record",
    OUT_OF_WINDOW: "its batch is not in the window that is said to hold it",
    WRONG_CHECKSUM: "the batch does not have the checksum that its header says",
}
"""The reasons for a corrupt record; the caller adds record and batch."""

# The columns of the metadata topic's records: int64, one after the other, each of all rows. Positions are bytes from
# the beginning of the values.
METADATA_SOUND = 0
"""1 if the record is sound; every other column of a malformed one is undefined."""
METADATA_KIND = 1
METADATA_TOPIC_ID = 2
"""The higher half; the lower one follows."""
METADATA_PARTITION = 4
METADATA_SEGMENT_ID = 5
"""The higher half; the lower one follows."""
METADATA_START_OFFSET = 7
METADATA_END_OFFSET = 8
METADATA_BROKER = 9
METADATA_MAX_TIMESTAMP = 10
METADATA_EVENT_TIMESTAMP = 11
METADATA_EPOCHS = 12
"""The position of the leader epochs, from their count on."""
METADATA_EPOCH_COUNT = 13
METADATA_FIRST_EPOCH = 14
"""The first entry's epoch; its start offset follows."""
METADATA_SIZE = 16
METADATA_CUSTOM = 17
"""The position of the custom metadata; their length follows, -1 if there are none."""
METADATA_STATE = 19
METADATA_TRANSACTION_INDEX_EMPTY = 20
METADATA_NAME = 21
"""The position of the topic's name; its length follows."""
METADATA_COLUMNS = 23
