"""Hooks: where Airflow's connections meet the library. Each opens what it opens inside a task's execute."""
