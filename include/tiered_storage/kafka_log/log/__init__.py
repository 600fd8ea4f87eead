"""A partition's log on the local disk, open for writing: append, roll, retain, truncate, recover.

`local_log` appends to one, over `unified_log`, which reads, cuts and retains; `log_directory_writer` writes a directory
of them. `recovery` opens one again after a crash. The files are those of a broker.
"""

__all__ = ["log_config", "log_directory_writer", "log_read"]
