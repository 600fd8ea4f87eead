"""The command line, one file a group of commands.

`main` finds the commands and imports a file only when one of its commands runs. What they share is in `common`.
"""

__all__ = ["main"]
