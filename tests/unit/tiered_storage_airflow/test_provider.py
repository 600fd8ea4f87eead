"""The description of the provider names what there is."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest
from airflow.sdk import BaseHook

from tiered_storage_airflow import hooks, operators
from tiered_storage_airflow.provider import provider_info


def listed(kind: str) -> set[str]:
    return {name for each in provider_info()[kind] for name in each["python-modules"]}


def test_every_hook_is_listed() -> None:
    modules = [importlib.import_module(f"{hooks.__name__}.{name}") for name in hooks.__all__]
    assert {each.__name__ for each in modules if has_a_hook(each)} == listed("hooks")


@pytest.mark.parametrize("name", operators.__all__)
def test_every_module_of_operators_is_listed(name: str) -> None:
    assert f"{operators.__name__}.{name}" in listed("operators")


def has_a_hook(module: ModuleType) -> bool:
    found = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return any(issubclass(each, BaseHook) for each in found)
