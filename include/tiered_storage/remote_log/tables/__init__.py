"""Topics as tables: Arrow record batches with the columns of Spark's Kafka source, from the remote tier alone.

`query` has the queries, `planning` divides them into splits, `reading` reads a split; `columns` names the columns.
`exports` writes Parquet files, in the groups of `export_job`: `layout` defines their folders, `export_commit` replaces
an earlier export, `overwrite_guard` refuses to lose records, and `late_data` finds intervals to export again.
"""

__all__ = ["columns", "export_job", "exports", "late_data", "layout", "planning", "query", "reading"]
