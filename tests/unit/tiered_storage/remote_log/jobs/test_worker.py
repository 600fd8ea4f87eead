from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.remote_logs import a_remote_log
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.worker import JOB_SECRETS, JobAccess
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

OPTIONS = ObjectStoreOptions(
    *("http://127.0.0.1:9000", "us-east-1", "an id", "a secret", "a token"),
    allow_http=True,
    roles=("arn:aws:iam::123456789012:role/one", "arn:aws:iam::123456789012:role/two"),
    role_arguments={"ExternalId": "an external id", "DurationSeconds": 900},
    ca_bundle="/etc/ours.pem",
    conditional_writes=False,
    properties={"azure_storage_account_key": "an account key"},
    configs={"account": "an option of a class of one's own"},
)


@pytest.fixture
def access(tmp_path: Path) -> JobAccess:
    with a_remote_log(tmp_path).open() as remote_log:
        return replace(remote_log.context, options=OPTIONS).access(JobFolder.of(remote_log.context.work, "runs/test/1"))


def test_a_worker_reaches_the_store_as_the_submitter_does(access: JobAccess) -> None:
    work_url, folder, store = access.arguments[1::2]
    [(name, secrets)] = access.environment.items()
    assert name == JOB_SECRETS
    received = JobAccess.parse(work_url, folder, store, secrets)
    assert received == access
    assert received.options == OPTIONS


def test_no_secret_shows_in_arguments_or_in_the_repr(access: JobAccess) -> None:
    shown = " ".join(access.arguments) + repr(access)
    given = ("an id", "a secret", "a token", "an external id", "an account key", "an option of a class of one's own")
    for secret in (*given, access.secrets.signing_key):
        assert secret not in shown
        assert secret in access.environment[JOB_SECRETS]


def test_a_driver_without_the_variable_gets_an_error_with_the_remedy(access: JobAccess) -> None:
    with pytest.raises(ConfigurationError, match=f"runs/test/1: {JOB_SECRETS}"):
        JobAccess.parse(access.work_url, access.folder, access.store.to_text(), "")
