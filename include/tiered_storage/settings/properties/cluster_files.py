"""The settings files of several clusters, which stand beside the first cluster's file and bear its name.

    include/tiered_storage.yaml           the first cluster: TIERED_STORAGE_CONFIG, or the project's own file
    include/tiered_storage.west.yaml      the cluster `west`

Airflow parses its DAG files, which ask for these names, every few seconds: this module loads no other of ours.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

CONFIG_VARIABLE = "TIERED_STORAGE_CONFIG"
OWN_POOLS = "own.pools"
COPY_QUEUES = "copy.queues"
_QUEUES_VARIABLE = "TIERED_STORAGE_COPY_QUEUES"
_QUEUE = re.compile(r"[A-Za-z0-9._-]+")
_NAME = r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*"
"""A cluster's name: two underscores would end the name of a DAG."""


@dataclass(frozen=True, slots=True)
class DagSettings:
    """What a cluster's DAGs are made of: whether it has Airflow pools of its own, and the queues that it copies in."""

    has_own_pools: bool
    copy_queues: tuple[str, ...]


def project_root() -> Path:
    """Return the folder that holds include/; the working directory if the library is installed without it."""
    include = Path(__file__).resolve().parents[3]
    return include.parent if include.name == "include" else Path.cwd()


def configured_path(environ: Mapping[str, str]) -> Path | None:
    """Return the file that TIERED_STORAGE_CONFIG names."""
    named = environ.get(CONFIG_VARIABLE)
    return Path(os.path.abspath(Path(named).expanduser())) if named else None  # noqa: PTH100 - resolve() follows links


def first_cluster_file(environ: Mapping[str, str]) -> Path:
    """Return the settings file of the first cluster, which need not exist."""
    return configured_path(environ) or project_root() / "include" / "tiered_storage.yaml"


def other_clusters(environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the settings file of each cluster beside the first, by the cluster's name, in the order of the names."""
    first = first_cluster_file(environ)
    pattern = re.compile(rf"{re.escape(first.stem)}\.({_NAME}){re.escape(first.suffix)}")
    try:
        names = sorted(file.name for file in first.parent.iterdir())
    except FileNotFoundError:
        return {}
    return {match[1]: first.with_name(match[0]) for match in map(pattern.fullmatch, names) if match}


def read_dag_settings(file: Path, environ: Mapping[str, str]) -> DagSettings:
    """Return what the settings file of a cluster says of its DAGs; nothing for an invalid file.

    A variable in `environ` overrides the file's queues.
    """
    given = _given(file)
    queues = environ.get(_QUEUES_VARIABLE) or given.get(COPY_QUEUES)
    names = queues.split(",") if isinstance(queues, str) else queues if isinstance(queues, list) else ()
    found = dict.fromkeys(str(name).strip() for name in names)
    return DagSettings(
        str(given.get(OWN_POOLS)).strip().lower() == "true", tuple(name for name in found if _QUEUE.fullmatch(name))
    )


def _given(file: Path) -> Mapping[str, object]:
    """Return the settings in the file; none for an invalid file."""
    try:
        given = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - it makes text only
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        # Each task of the cluster fails with what is wrong with the file.
        return {}
    return given if isinstance(given, dict) else {}
