"""The documentation's example of a DAG of your own is parsed and run as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dags.airflow_runs import AirflowHome
from support.airflow_home import PROJECT
from support.tiered_site import TIERED, TieredSite

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

EXAMPLES = PROJECT / "docs" / "examples"


def test_the_example_copies_its_topic_and_checks_it(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED})
    run = airflow.run("copy_one_topic", folder=EXAMPLES)
    assert run.tasks == {
        "load": "success",
        "plan": "success",
        "copy": "success",
        "commit[orders-0]": "success",
        "check": "success",
    }
    assert (site.finished("orders-0"), site.finished("payments-0")) == ([0, 10], [])
    assert "2 segments, 6 objects" in run.log

    again = airflow.run("copy_one_topic", folder=EXAMPLES)
    assert again.state == "success"
    assert (again.tasks["copy"], again.tasks["check"]) == ("skipped", "success")
