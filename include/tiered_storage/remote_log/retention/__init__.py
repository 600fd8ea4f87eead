"""Local and total retention, and every other deletion.

`deletion_gate` decides whether anything may be deleted. `deletions` is what the manager offers; the other modules
plan, mark and delete.
"""
