"""The page in Airflow's menu: where the data of each topic are.

`app` has its routes; each other module builds one page or part. Pages are rendered on the server, with the rights of
the read service, and load nothing from elsewhere.
"""

__all__ = ["app"]
