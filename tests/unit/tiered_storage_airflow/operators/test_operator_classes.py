"""How the operators' classes are built: as those of Airflow's own providers."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from airflow.sdk import BaseOperator

from tiered_storage_airflow import operators
from tiered_storage_airflow.operators.remote_log_operator import (
    DeletionPlanOperator,
    PlanningOperator,
    RemoteLogOperator,
    SelectingOperator,
    TopicReadOperator,
)
from tiered_storage_airflow.operators.spark_groups import SparkGroupsOperator

BASES = (
    RemoteLogOperator,
    SelectingOperator,
    PlanningOperator,
    TopicReadOperator,
    DeletionPlanOperator,
    SparkGroupsOperator,
)


def operator_classes() -> list[type[BaseOperator]]:
    """Return all operators of the package, but for what two of a module share."""
    modules = [
        importlib.import_module(f"{operators.__name__}.{each.name}")
        for each in pkgutil.iter_modules(operators.__path__)
    ]
    return [
        each
        for module in modules
        for name, each in inspect.getmembers(module, inspect.isclass)
        if issubclass(each, BaseOperator) and each.__module__ == module.__name__ and not name.startswith("_")
    ]


@pytest.mark.parametrize("operator", operator_classes(), ids=lambda operator: operator.__name__)
def test_an_operator_has_only_these_bases_of_ours_and_airflows(operator: type[BaseOperator]) -> None:
    inherited = [each for each in operator.__mro__[1:] if each.__module__.startswith("tiered_storage_airflow.")]
    shared = [each for each in inherited if each not in BASES]
    assert [
        each for each in shared if each.__module__ != operator.__module__ or not each.__name__.startswith("_")
    ] == []
    assert operator is RemoteLogOperator or RemoteLogOperator in inherited


@pytest.mark.parametrize("operator", operator_classes(), ids=lambda operator: operator.__name__)
def test_a_template_field_has_the_name_of_its_argument(operator: type[BaseOperator]) -> None:
    made = [vars(each)["__init__"] for each in operator.__mro__ if "__init__" in vars(each)]
    arguments = {name for each in made for name in inspect.signature(each).parameters}
    assert set(operator.template_fields) - arguments == set()
