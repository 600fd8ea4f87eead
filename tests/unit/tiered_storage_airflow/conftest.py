"""What is tested here imports Airflow, whose home has to be named before."""

from __future__ import annotations

from support import airflow_home

assert airflow_home.HOME.is_dir()
