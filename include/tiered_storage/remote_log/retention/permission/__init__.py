"""What must hold before anything is deleted, and while a deletion continues.

`deletion_permissions` asks for the stop, the pair of store and metadata, rights and audit results. `clock_agreement`
checks the clock, and `object_checks` the objects of a segment.
"""

__all__ = ["clock_agreement", "deletion_permissions", "object_checks"]
