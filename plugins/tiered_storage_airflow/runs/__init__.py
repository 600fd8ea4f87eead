"""What every run of a DAG has: its time window, lease owner and folder, checked arguments, and a summary.

`task_context` reads Airflow's context of a task, `scope` checks the arguments of operators. `summary` keeps what the
task did, and `stats` feeds Airflow's metrics.
"""

__all__ = ["scope", "stats", "summary", "task_context"]
