"""Brings topics back from the store: into a log directory that a broker starts from, or into a running cluster."""
