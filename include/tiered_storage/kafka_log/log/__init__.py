"""A partition's log on the local disk, open for writing: append, roll, retain, truncate, recover.

`local_log` is the log that others use, `log_directory_writer` writes a directory of them. The files are those of a
broker.
"""
