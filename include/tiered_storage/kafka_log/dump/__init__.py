"""Shows Kafka's files as DumpLogSegments does.

`file_dump` finds out what a file is and dumps it. Nothing is changed, so a broker may be running.
"""

__all__ = ["dump_event", "file_dump", "file_kind"]
