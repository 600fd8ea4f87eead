"""Which topics a run looks at: those of its form, or else of the Airflow Variable remote_log_topics, or else all.

So scheduled runs, whose form nobody fills in, are narrowed without an edit of a DAG file.
"""

from __future__ import annotations

TOPICS_VARIABLE = "remote_log_topics"

# Somebody who empties the Variable means no topic in particular; as an expression it would match none.
TOPICS = f"{{{{ params.topics or var.value.get('{TOPICS_VARIABLE}', '.*') or '.*' }}}}"
"""For the argument `topics` of operators: a template of a regular expression over whole topic names."""
