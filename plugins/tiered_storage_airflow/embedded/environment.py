"""The environment in which each process of the embedded Airflow runs, and where its files lie.

Everything lies below one state directory, so that the project's root stays clean and one command removes it all:

    {state}/airflow/                AIRFLOW_HOME, mode 0700
        airflow.db                  Airflow's own SQLite database, unless DATABASE_VARIABLE names another
        secrets.json                what the services share, mode 0600
        passwords.json              the login, mode 0600
        read_rights.yaml            who may see which topics, where the settings name no such file
        services.json, services.lock
        logs/                       of tasks and of DAG files
        logs/services/*.log         of the services themselves
    {state}/java/                   a JAVA_HOME, where the machine has none
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tiered_storage.settings.properties.cluster_files import CONFIG_VARIABLE, other_clusters, read_dag_settings
from tiered_storage.settings.properties.sources import environment_variable
from tiered_storage.settings.settings import Settings
from tiered_storage_airflow.embedded.credentials import Credentials, passwords_path, rights_path
from tiered_storage_airflow.embedded.settings_file import read_airflow_settings

PROJECT_ROOT = Path(__file__).resolve().parents[3]
LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8080
DATABASE_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
"""Names Airflow's own database, such as a PostgreSQL of the user's. It may hold a password."""
_ASYNC_DATABASE_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"
SPARE_TASKS = 3
"""How many tasks may run beyond the slots of all pools: `stop_deletions`, in none of our pools, never waits."""

# Variables of another project, or another Spark, would take precedence over the pinned ones of this project.
FOREIGN_VARIABLES = frozenset(
    {"PYTHONPATH", "PYTHONHOME", "SPARK_HOME", "PYSPARK_DRIVER_PYTHON", "PYSPARK_DRIVER_PYTHON_OPTS"}
)


@dataclass(frozen=True, slots=True)
class EmbeddedAirflow:
    """One embedded Airflow: where its state lies, what it runs, and the port on loopback that it answers on.

    `config` is the file of Remote Log's settings, None if the tasks have to find it as the command line does;
    `airflow_settings` is the file of connections, pools and variables.
    """

    state: Path
    config: Path | None = None
    port: int = DEFAULT_PORT
    dags_folder: Path = PROJECT_ROOT / "dags"
    plugins_folder: Path = PROJECT_ROOT / "plugins"
    airflow_settings: Path = PROJECT_ROOT / "airflow_settings.yaml"
    has_own_rights: bool = False
    """Whether its own rights file counts, because the settings name none."""

    @classmethod
    def of(cls, settings: Settings, port: int = DEFAULT_PORT) -> Self:
        """Return the one that runs with `settings`."""
        own_rights = settings.read_service_rights_file is None
        return cls(settings.state_directory, settings.config_path, port, has_own_rights=own_rights)

    @property
    def home(self) -> Path:
        """AIRFLOW_HOME."""
        return self.state.resolve() / "airflow"

    @property
    def own_database(self) -> str:
        """The URL of the database that it uses unless the user names one."""
        return f"sqlite:///{self.home / 'airflow.db'}"

    @property
    def service_logs(self) -> Path:
        """The directory of the services' own logs."""
        return self.home / "logs" / "services"

    @property
    def url(self) -> str:
        """The address of the user interface and of the API, without a slash at its end."""
        return f"http://{LOOPBACK}:{self.port}"


def airflow_environment(
    airflow: EmbeddedAirflow, credentials: Credentials, java_home: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of Airflow's processes: `environ`, overridden by what `airflow` needs.

    Variables such as AIRFLOW_CONN_* and AIRFLOW_VAR_* pass through: they bring secrets in.
    DATABASE_VARIABLE passes through unless it is empty.
    """
    inherited = {name: value for name, value in environ.items() if name not in FOREIGN_VARIABLES}
    ours = {
        "PATH": f"{virtual_environment_bin()}:{environ.get('PATH', '/usr/bin:/bin')}",
        "JAVA_HOME": str(java_home),
        # Spark's driver and its user interface listen there only.
        "SPARK_LOCAL_IP": LOOPBACK,
        # A task's calls to the API never leave the machine, whatever proxy it uses for the rest.
        **dict.fromkeys(("NO_PROXY", "no_proxy"), _no_proxy(environ)),
    }
    named = {CONFIG_VARIABLE: str(airflow.config.resolve())} if airflow.config else {}
    if airflow.has_own_rights:
        named[environment_variable("read.service.rights.file")] = str(rights_path(airflow.home))
    parallelism = _slots(airflow.airflow_settings, inherited | named) + SPARE_TASKS
    return (
        inherited | _airflow_settings(airflow, credentials, parallelism) | _database(airflow, inherited) | ours | named
    )


def _database(airflow: EmbeddedAirflow, environ: Mapping[str, str]) -> dict[str, str]:
    url = environ.get(DATABASE_VARIABLE)
    if not url:
        return {DATABASE_VARIABLE: airflow.own_database}
    if not url.startswith(("postgresql:", "postgresql+psycopg:")) or environ.get(_ASYNC_DATABASE_VARIABLE):
        return {}
    # Airflow would ask for asyncpg, which is not installed; psycopg serves both.
    return {_ASYNC_DATABASE_VARIABLE: f"postgresql+psycopg:{url.split(':', 1)[1]}"}


def virtual_environment_bin() -> Path:
    """The directory of the project's own `python`, `airflow` and `spark-submit`."""
    return Path(sys.executable).parent


def _airflow_settings(airflow: EmbeddedAirflow, credentials: Credentials, parallelism: int) -> dict[str, str]:
    options = {
        "core": {
            "dags_folder": str(airflow.dags_folder.resolve()),
            "plugins_folder": str(airflow.plugins_folder.resolve()),
            "load_examples": "False",
            "executor": "LocalExecutor",
            "parallelism": str(parallelism),
            "dags_are_paused_at_creation": "True",
            "fernet_key": credentials.fernet_key,
            "execution_api_server_url": f"{airflow.url}/execution/",
            "auth_manager": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
            "simple_auth_manager_users": "admin:admin",
            "simple_auth_manager_all_admins": "False",
            "simple_auth_manager_passwords_file": str(passwords_path(airflow.home)),
        },
        "api": {
            "host": LOOPBACK,
            "port": str(airflow.port),
            "base_url": airflow.url,
            "secret_key": credentials.api_secret_key,
        },
        "api_auth": {"jwt_secret": credentials.jwt_secret},
        # Airflow finds a new DAG file within seconds, and parses a changed one again at once.
        "dag_processor": {"refresh_interval": "5"},
        "logging": {
            "colored_console_log": "False",
            "file_task_handler_new_folder_permissions": "0o700",
            "file_task_handler_new_file_permissions": "0o600",
        },
    }
    environment = {
        f"AIRFLOW__{section.upper()}__{option.upper()}": value
        for section, values in options.items()
        for option, value in values.items()
    }
    return {"AIRFLOW_HOME": str(airflow.home), **environment}


def _slots(airflow_settings: Path, environ: Mapping[str, str]) -> int:
    """Return how many tasks all pools of the file let run at once, with those that further clusters have of their own.

    Raises ConfigurationError if the file is not valid.
    """
    sets_of_pools = 1 + sum(read_dag_settings(file, {}).has_own_pools for file in other_clusters(environ).values())
    return sets_of_pools * sum(pool.pool_slot for pool in read_airflow_settings(airflow_settings).pools)


def _no_proxy(environ: Mapping[str, str]) -> str:
    named = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    return ",".join([*filter(None, named.split(",")), LOOPBACK, "localhost"])
