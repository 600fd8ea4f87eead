"""Topics as tables: what is copied of a topic, as Arrow record batches with the columns of Spark's Kafka source.

    query.py           what is asked for: a topic, partitions, offsets, times, the isolation
    predicates.py      comparisons with columns, as far as a query takes them in
    planning.py        which ranges of which remote segments hold it, along the lineage; by whoever reaches the metadata
    splits.py          those ranges cut and grouped into splits of about one size, for workers
    columns.py         the columns, and how decoded ones become them
    chunks.py          the chunks of a range, fetched from the store one ahead of the other
    reading.py         a split to record batches, chunk after chunk; by workers, which reach the store alone

and the export of a table to Parquet files:

    layout.py          what lies where in an exported table, and whose it is
    parquet.py         records to files whose bytes depend on the records alone
    export_job.py      the export of an interval as a job in groups, export_worker.py one group of it
    overwrite_guard.py  what an interval has already, and must not lose
    late_data.py  which intervals were exported before all of them was copied, and can be exported again
    commit.py          how an interval's files take the place of those of an earlier run, all or nothing

Only the remote tier is read: a table ends where copying has come to. Nothing here imports Spark.
"""
