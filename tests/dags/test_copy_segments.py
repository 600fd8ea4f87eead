from support.tiered_site import TIERED, TieredSite
from support.airflow_home import AirflowHome
import pytest

def run_here(self, context):
    from tiered_storage.remote_log.copy_worker import run_copy_group, group_count
    a = self.application_args
    url, job = a[1], a[3]
    import os
    for g in range(group_count(url, job)):
        run_copy_group(url, job, g)

def test_green(airflow: AirflowHome, site: TieredSite, monkeypatch) -> None:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    monkeypatch.setattr(SparkSubmitOperator, "execute", run_here)
    site.write_logs({"orders-0": 3, "orders-1": 2, "payments-0": 2, "other-0": 2})
    site.configure({"orders": TIERED, "payments": TIERED}, commit_batch_partitions=2)
    run = airflow.run("copy_segments")
    print(run)
    print(airflow.events_of(run))
    print(site.segments("orders-0"), site.finished("orders-0"), site.local("orders-0"))
    print(airflow.rendered(run))
    assert 0
