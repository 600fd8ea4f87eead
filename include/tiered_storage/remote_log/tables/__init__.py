"""Topics as tables: Arrow record batches with the columns of Spark's Kafka source, from the remote tier alone.

`query` is what is asked for, `planning` cuts it into splits, `reading` reads a split; `columns` names the columns.
`exports` writes Parquet files, in the groups of `export_job`: `layout` says what lies where, `commit` replaces an
earlier export, `overwrite_guard` refuses to lose records, `late_data` finds intervals to export again.
"""

__all__ = ["columns", "export_job", "exports", "late_data", "layout", "planning", "query", "reading"]
