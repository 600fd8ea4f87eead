"""`airflow_settings.yaml`, the file of Astro's projects that names Airflow's connections, pools and variables.

    airflow:
      connections: [{conn_id, conn_type, conn_host, conn_schema, conn_login, conn_password, conn_port, conn_uri,
                     conn_extra}]
      pools:       [{pool_name, pool_slot, pool_description}]
      variables:   [{variable_name, variable_value}]

Each of the three may be empty or missing. An item left as Astro's own template has it counts as missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError

from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.properties.reading import showable
from tiered_storage.settings.properties.sources import not_yaml


def _as_json(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


def _without_empty_items(value: object) -> object:
    if value is None:
        return []
    return [item for item in value if not _is_of_template(item)] if isinstance(value, list) else value


def _is_of_template(item: object) -> bool:
    """Astro's template leaves each value empty, except an example inside conn_extra."""
    return isinstance(item, dict) and all(value in (None, "") or isinstance(value, dict) for value in item.values())


def _as_text(value: object) -> object:
    """YAML reads 42 as a number and yes as a truth, where Airflow keeps text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str | None, BeforeValidator(_as_text)]
Name = Annotated[str, Field(min_length=1)]


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ConnectionSettings(_Item):
    """A connection, by its parts or by `conn_uri`; `conn_extra` is the text of a JSON object."""

    conn_id: Name
    conn_type: Text = None
    conn_host: Text = None
    conn_schema: Text = None
    conn_login: Text = None
    conn_password: Text = None
    conn_port: int | None = None
    conn_uri: Text = None
    conn_extra: Annotated[str | None, BeforeValidator(_as_json)] = None


class PoolSettings(_Item):
    """A pool of `pool_slot` slots."""

    pool_name: Name
    pool_slot: PositiveInt
    pool_description: Annotated[str, BeforeValidator(lambda value: value or "")] = ""


class VariableSettings(_Item):
    """A variable, its value as text."""

    variable_name: Name
    variable_value: Text


class AirflowSettings(_Item):
    """Everything that the file names."""

    connections: Annotated[list[ConnectionSettings], BeforeValidator(_without_empty_items)] = []
    pools: Annotated[list[PoolSettings], BeforeValidator(_without_empty_items)] = []
    variables: Annotated[list[VariableSettings], BeforeValidator(_without_empty_items)] = []


def read_airflow_settings(path: Path) -> AirflowSettings:
    """Read and check the file; raises ConfigurationError, which names the file and every key that is wrong."""
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise not_yaml(path, error) from None
    if not isinstance(document, dict) or set(document) - {"airflow"}:
        raise ConfigurationError(
            f"{path}: has to hold one key, airflow, with connections, pools and variables below it"
        )
    try:
        settings = AirflowSettings.model_validate(document.get("airflow") or {})
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_explained(error)}") from None
    faults = [*_duplicates(settings), *_incomplete(settings.connections)]
    if faults:
        raise ConfigurationError(f"{path}: {'; '.join(faults)}")
    return settings


def _explained(error: ValidationError) -> str:
    return "; ".join(f"{_key(fault['loc'])}: {fault['msg']}" for fault in error.errors(include_url=False))


def _key(location: Iterable[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{showable(part)}" for part in location)
    return "airflow" + "".join(parts)


def _duplicates(settings: AirflowSettings) -> list[str]:
    named: dict[str, list[Any]] = {
        "connections: conn_id": [connection.conn_id for connection in settings.connections],
        "pools: pool_name": [pool.pool_name for pool in settings.pools],
        "variables: variable_name": [variable.variable_name for variable in settings.variables],
    }
    return [
        f"airflow.{key} {name} is there {count} times"
        for key, names in named.items()
        for name, count in Counter(names).items()
        if count > 1
    ]


def _incomplete(connections: Iterable[ConnectionSettings]) -> list[str]:
    faults = []
    for connection in connections:
        parts = connection.model_dump(exclude={"conn_id", "conn_uri"}, exclude_none=True)
        where = f"airflow.connections: {connection.conn_id}"
        if connection.conn_uri and parts:
            faults.append(f"{where} has conn_uri and also {', '.join(parts)}: keep one or the other")
        if not connection.conn_uri and not connection.conn_type:
            faults.append(f"{where} needs conn_type or conn_uri")
        if connection.conn_extra and not _is_json_object(connection.conn_extra):
            faults.append(f"{where}: conn_extra is not a JSON object")
    return faults


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
