"""Local and total retention, and every other deletion.

`deletion_gate` decides whether anything may be deleted, by the rights, the verdicts, the clock and the versions of
formats. `deletions` is what the manager offers; the other modules plan, mark and delete.
"""
