"""Compare the store with the metadata, without changing either.

`audit` is the quick audit; `deep_audit` reads every byte of a segment. `checks` runs them and records
the result of each topic.
"""

__all__ = ["bundle_check", "checks", "job", "report"]
