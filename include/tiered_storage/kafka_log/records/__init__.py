"""Record batches of magic 2: header, records, control records, codecs; and the messages before them.

`batch_table` holds the headers of many batches as columns, `segment_scan` fills it from a segment. Nothing here opens
a file by its name.
"""

__all__ = [
    "batch_header",
    "batch_read",
    "batch_table",
    "compression",
    "control_record",
    "legacy_message",
    "record",
    "record_batch",
    "segment_scan",
    "sound_part",
]
