"""A partition's log on the local disk, open for writing, in the files of a broker.

`local_log` appends to a log; `unified_log` below it reads, truncates and retains; `log_directory_writer` writes a whole
log directory. `recovery` opens a log after a crash.
"""

__all__ = ["local_log", "log_config", "log_directory_writer"]
