"""The embedded Airflow: all of it on this machine, on loopback only, with its state below one directory."""
