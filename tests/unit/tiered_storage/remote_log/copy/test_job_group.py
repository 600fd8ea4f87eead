from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import a_remote_log, begin, offsets_read
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.worker import described_job
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions, options_of


def test_a_worker_needs_no_more_than_what_its_submitter_hands_it(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        job = remote_log.write_copy_job("runs/test/1", begin(remote_log))
        access = remote_log.context.access(job.files)
        assert described_job(access).groups == 1
        assert run_copy_groups(access, [0], files.clock) == 3
        assert remote_log.commit_copy(job.outcomes()).is_whole
        assert offsets_read(remote_log, 0) == list(range(35))


def test_a_job_that_is_not_there_is_named(tmp_path: Path) -> None:
    with a_remote_log(tmp_path).open() as remote_log:
        access = remote_log.context.access(JobFolder.of(remote_log.context.work, "runs/test/1"))
    with pytest.raises(RemoteObjectNotFoundError, match=r"runs/test/1/job\.json"):
        run_copy_groups(access, [0])


def test_secrets_and_the_way_to_the_store_come_from_the_environment() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
    }

    options = options_of(environ)

    assert options == ObjectStoreOptions("http://127.0.0.1:9000", "eu-central-1", "key", "secret", "token", True)
    assert options_of({**environ, "AWS_REGION": "us-east-1"}).region == "us-east-1"
    assert not options_of({**environ, "AWS_ENDPOINT_URL": "https://store"}).allow_http
    assert options_of({}) == ObjectStoreOptions()
