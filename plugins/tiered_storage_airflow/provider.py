"""The description of the Airflow provider: its hooks and operators, and a connection type with its form.

Airflow finds it by the entry point `apache_airflow_provider` of the installed package; it imports neither hooks nor
operators to show the form.
"""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "remote_storage"
_NAME = "Remote Log"
_HOOKS = ("remote_storage", "remote_log_metadata", "remote_log")
_OPERATORS = (
    "audit", "deletion", "expiry", "local_retention", "remote_log_metadata", "remote_storage", "repair", "restore",
    "tables",
)  # fmt: skip


def provider_info() -> dict[str, Any]:
    """Return the description, in the format of Airflow's provider_info.schema.json."""
    return {
        "package-name": "remote-log",
        "name": _NAME,
        "description": "Kafka tiered storage run from Airflow, with PySpark as its data pipeline",
        "integrations": [{"integration-name": _NAME, "tags": ["service"]}],
        "hooks": [_modules("hooks", _HOOKS)],
        "operators": [_modules("operators", _OPERATORS)],
        # The metadata's connection is of Airflow's own type postgres, and that of the brokers of type kafka.
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "tiered_storage_airflow.hooks.remote_storage.RemoteStorageHook",
                "hook-name": "Remote storage (Remote Log)",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "port", "schema", "extra"],
                    "relabeling": {
                        "login": "Access key ID, or Azure account",
                        "password": "Secret access key, or key of the account",
                    },
                    "placeholders": {"login": "empty: the standard chain of AWS (environment, profile, instance)"},
                },
                "conn-fields": {
                    "endpoint_url": _text(
                        "Endpoint",
                        "The address of an S3 API that is not Amazon's, or of Azure blobs, such as https://minio.example:9000",
                    ),
                    "region_name": _text("Region", "The bucket's region, such as eu-central-1"),
                    "role_arn": _text(
                        "Role", "The ARN of an AWS role to assume; several, with commas, are assumed one with the other"
                    ),
                    "aws_session_token": {
                        "label": "Session token",
                        "description": "Only for temporary keys",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                },
            }
        ],
        "extra-links": ["tiered_storage_airflow.links.ReportLink"],
    }


def _modules(package: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"tiered_storage_airflow.{package}.{name}" for name in names]}


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}
