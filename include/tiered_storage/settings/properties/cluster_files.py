"""The settings files of several clusters, which are in the first cluster's folder and begin with its file's name.

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
CANARY_TOPIC = "gateway.canary.topic"
_CANARY_VARIABLE = "TIERED_STORAGE_GATEWAY_CANARY_TOPIC"
_QUEUES_VARIABLE = "TIERED_STORAGE_COPY_QUEUES"
LONGEST_NAME = 100
"""Of a cluster or a queue, in letters: a DAG's id, with both in it, has at most 250 in Airflow."""
_QUEUE = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}")
_TRUE, _FALSE = {"true", "t", "yes", "y", "on", "1"}, {"false", "f", "no", "n", "off", "0"}
"""How a file may write them: as the model of the settings takes them."""
_NAME = r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*"
"""A cluster's name: two underscores would end the name of a DAG."""


@dataclass(frozen=True, slots=True)
class DagSettings:
    """What a cluster's DAGs are made of: whether it has Airflow pools of its own, the queues that it copies in, and
    whether a gateway is checked.

    `problems` names what is wrong with them in its settings file; invalid values are ignored.
    """

    has_own_pools: bool
    copy_queues: tuple[str, ...]
    problems: tuple[str, ...] = ()
    has_canary: bool = False


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
    """Return the settings file of each cluster other than the first, by the cluster's name, in the order of the names.

    Raises OSError if the folder exists but cannot be listed.
    """
    first = first_cluster_file(environ)
    pattern = re.compile(rf"{re.escape(first.stem)}\.({_NAME}){re.escape(first.suffix)}")
    try:
        names = sorted(file.name for file in first.parent.iterdir())
    except FileNotFoundError:
        return {}
    return {match[1]: first.with_name(match[0]) for match in map(pattern.fullmatch, names) if match}


def read_dag_settings(file: Path, environ: Mapping[str, str]) -> DagSettings:
    """Return what the settings file of a cluster says of its DAGs, and what is wrong with that.

    Variables in `environ` override the file's queues and its canary topic. An invalid file raises nothing: every
    DAG file makes the DAGs of all clusters, and an import error would stop them all. Each task of the cluster fails and
    names every problem.
    """
    given, problems = _given(file)
    by_variable = environ.get(_QUEUES_VARIABLE)
    queues, are_valid = _queues(by_variable or given.get(COPY_QUEUES, ""))
    own_pools = str(given.get(OWN_POOLS, "false")).lower()
    if own_pools not in _TRUE | _FALSE:
        problems.append(f"{file}: {OWN_POOLS} is {own_pools!r:.60}: it must be true or false")
    if not are_valid:
        where = _QUEUES_VARIABLE if by_variable else f"{file}: {COPY_QUEUES}"
        problems.append(
            f"{where} is not a list of queues, whose names have letters, digits, dots, underscores and hyphens, at "
            f"most {LONGEST_NAME} of them"
        )
    has_canary = bool(environ.get(_CANARY_VARIABLE) or given.get(CANARY_TOPIC))
    return DagSettings(own_pools in _TRUE, queues, tuple(problems), has_canary)


def _queues(given: object) -> tuple[tuple[str, ...], bool]:
    """Return the valid names in a list, or in a text with commas between them, and whether all of it is valid."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list):
        return (), False
    found = dict.fromkeys(name for each in names if (name := str(each).strip()))
    valid = tuple(name for name in found if _QUEUE.fullmatch(name))
    return valid, len(valid) == len(found)


def _given(file: Path) -> tuple[Mapping[str, object], list[str]]:
    """Return the settings in the file, and why it has none if it is not valid. A file need not exist."""
    try:
        given = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - it makes text only
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{file}: cannot be read: {error.strerror}"]
    except (UnicodeDecodeError, yaml.YAMLError):
        return {}, [f"{file}: is not YAML"]
    if isinstance(given, dict):
        return given, []
    return {}, [] if given is None else [f"{file}: is not a mapping of settings"]
