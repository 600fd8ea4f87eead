"""The embedded Airflow: all of it on this machine, on loopback only, with its state below one directory.

`services` starts its processes and `stopping` ends them, by the ids that `record` keeps. `environment` has the
variables that they run with, `credentials` their login, and `api_client` talks to the API server.
"""

__all__ = ["api_client", "environment", "java", "processes", "record", "services"]
