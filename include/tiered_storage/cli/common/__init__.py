"""What the commands share, whatever they do.

`session` has their common options and opens the remote log, `output` shows rows and messages on a terminal or as JSON,
`progress` how far a long job is. `plans` saves what a dry run planned and reads it back.
"""

__all__ = ["output", "plans", "progress", "session"]
