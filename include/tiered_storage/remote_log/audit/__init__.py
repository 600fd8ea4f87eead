"""Compares the store with the metadata and changes neither.

`audit` is the quick audit, `deep_audit` reads every byte of a segment. `results` records for each topic whether its
audit failed.
"""

__all__ = ["bundle_check", "checks", "job", "report"]
