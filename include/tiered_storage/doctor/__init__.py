"""Check whether a remote log can work on this machine.

`examination` runs all checks; each other module checks one part: settings, directories, stores, metadata, rights, the
machine. A check changes nothing except its own probe objects.
"""

__all__ = ["check", "examination"]
