"""What all commands share.

`session` has the common options and opens the remote log; `output` shows rows and messages on a terminal or as JSON.
`progress` shows how far a long job is; `plans` saves the plan of a dry run and reads it back; `service_process` is the
process of the service; `topic_table` shows topics, `topic_advice` what tiering them would cost, and `topic_refusals`
which of them must not be enabled.
"""

__all__ = ["output", "plans", "progress", "service_process", "session", "topic_advice", "topic_refusals", "topic_table"]
