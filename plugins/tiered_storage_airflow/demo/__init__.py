"""`make demo`: the product's main job from end to end, on parts that start and stop with it.

`run` triggers the DAGs in an embedded Airflow, on the log directory that `sample` writes or copies. `expectation` and
`comparison` compare every record that is read back with the log, `report` shows the result.
"""

__all__ = ("expectation", "gateway", "run")
