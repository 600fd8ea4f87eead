"""The page in Airflow's menu: what of each topic lies where.

`app` has its routes; each other module makes the content of one page or part. Pages are made on the server, under the
rights of the read service, and load nothing from elsewhere.
"""

__all__ = ["app", "run_report"]
