"""`make demo`: the product's main job from end to end, on parts that start and stop with it.

`run` triggers the DAGs in an embedded Airflow, on the log directory that `sample` writes or copies. `expectation` and
`comparison` hold every record that is read back against the log, `report` shows what came of it.
"""

__all__ = ()
