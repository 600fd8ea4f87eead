"""Doctor's report on a bucket: the identity that signs requests, and features that the settings say it lacks."""

from __future__ import annotations

from dataclasses import replace

from servers.aws_roles import Account, Role, role_arn, running_account
from support.object_stores import S3Endpoint, options_for
from tiered_storage.clock import wall_clock
from tiered_storage.doctor.check import Check, Status
from tiered_storage.doctor.object_stores import check_objects


def messages(checks: list[Check], status: Status) -> str:
    return "\n".join(f"{check.message} {check.advice}" for check in checks if check.status is status)


def test_the_aws_identity_is_reported_if_sts_answers(s3_endpoint: S3Endpoint) -> None:
    roles = {"writer": Role(s3_endpoint.access_key)}
    with running_account(s3_endpoint, Account(roles, admitted="writer")) as account:
        given = replace(options_for(account.s3), sts_endpoint=account.sts_url, roles=(role_arn("writer"),))
        found = list(check_objects("store", f"s3://{account.s3.bucket}/root", given, wall_clock))
    assert "assumed-role/writer" in messages(found, Status.OK)
    assert messages(found, Status.WRONG) == ""


def test_an_unknown_identity_is_a_note_not_a_fault_of_the_store(s3_endpoint: S3Endpoint) -> None:
    given = replace(options_for(s3_endpoint), sts_endpoint="http://127.0.0.1:9", connect_timeout_ms=500)
    found = list(check_objects("store", f"s3://{s3_endpoint.bucket}/root", given, wall_clock))
    assert "who signs" in messages(found, Status.NOTE)
    assert messages(found, Status.WRONG) == ""


def test_a_store_without_conditional_writes_is_for_one_installation(s3_endpoint: S3Endpoint) -> None:
    given = replace(options_for(s3_endpoint), conditional_writes=False)
    found = list(check_objects("store", f"s3://{s3_endpoint.bucket}/root", given, wall_clock))
    assert "only one installation" in messages(found, Status.NOTE)
    assert messages(found, Status.WRONG) == ""


def test_a_store_at_an_endpoint_of_its_own_is_not_asked_for_aws_identities(s3_endpoint: S3Endpoint) -> None:
    found = list(check_objects("store", f"s3://{s3_endpoint.bucket}/root", options_for(s3_endpoint), wall_clock))
    assert {check.status for check in found} == {Status.OK}
    assert "signed" not in messages(found, Status.OK)
