"""Remote Log in Airflow: what a scheduled run, a form, a page and an HTTP request call.

`operators` and `hooks` serve the DAGs, `read_service` and `page` the API server. `embedded` is an Airflow of its own
for `make up`, and `demo` shows the whole pipeline in it.
"""

__all__ = [
    "clusters",
    "demo",
    "demo_cluster",
    "embedded",
    "forms",
    "hooks",
    "links",
    "metrics_endpoint",
    "operators",
    "page",
    "plugin",
    "provider",
    "read_service",
    "rendering",
    "runs",
    "spark_tables",
    "web_app",
]
