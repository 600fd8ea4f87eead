"""The forms of the DAGs, which Airflow checks before a run begins.

`fields` has the fields that forms share, and the templates that pass them on; forms with many fields of their own have
a module. `allowed_settings` lists the settings that a form may set for one run.
"""

__all__ = ["allowed_settings", "export_topic", "fields", "restore_topic"]
