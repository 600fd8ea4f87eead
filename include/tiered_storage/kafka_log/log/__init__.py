"""A partition's log on the local disk, open for writing: append, roll, retain, truncate, recover.

`local_log` appends to a log; `unified_log` below it reads, truncates and retains; `log_directory_writer` writes a whole
log directory. `recovery` opens a log after a crash. The files are those of a broker.
"""

__all__ = ["log_config", "log_directory_writer", "log_read"]
