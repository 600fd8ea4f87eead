"""The forms of the DAGs, which Airflow checks before a run begins.

`fields` has the fields that forms share, and the templates that pass them on; `topic_forms` has the forms with many
fields of their own. `allowed_settings` lists the settings that a form may set for one run.
"""

__all__ = ["allowed_settings", "fields", "topic_forms"]
