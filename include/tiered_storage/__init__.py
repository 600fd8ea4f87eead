"""Kafka tiered storage beside any cluster: the library, without Airflow, Spark or a web framework.

`remote_log` is the product, `kafka_log` has the bytes that Kafka itself writes, and `settings` what a user sets. `cli`
is the command line, and `doctor` checks a setup.
"""

__all__ = [
    "cli",
    "clock",
    "disk_space",
    "doctor",
    "errors",
    "gateway",
    "kafka_log",
    "kafka_wire",
    "own_classes",
    "private_files",
    "process",
    "redaction",
    "regular_files",
    "remote_log",
    "settings",
]

__version__ = "0.1.0"
