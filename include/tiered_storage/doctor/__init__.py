"""Checks whether a remote log can work on this machine.

`examination` runs all checks; each other file checks one part alone: settings, directories, stores, metadata, rights,
the machine. A check changes nothing but its own probe objects.
"""

__all__ = ["check", "examination"]
