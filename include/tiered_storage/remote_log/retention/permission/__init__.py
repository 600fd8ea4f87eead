"""What must hold before anything is deleted, and while a deletion continues.

`deletion_permissions` asks for the stop, the pair of store and metadata, rights and audit results; `clock_agreement`
checks the clock, and `object_checks` the objects of a segment. `retention.object_deletion` and
`retention.expiry_marking` ask them under the partition's lease, and add what only they know: grace times, marks in the
future, other copies.
"""

__all__ = ["clock_agreement", "deletion_permissions", "object_checks"]
