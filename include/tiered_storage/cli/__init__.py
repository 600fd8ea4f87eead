"""The command line, one module a group of commands.

`main` finds the commands and imports a module only when one of its commands runs. `common` has what they share.
"""

__all__ = ["main"]
