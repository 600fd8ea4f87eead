"""Credentials for requests to S3 and KMS: keys, or what AWS's own tools find, and roles that are assumed with them.

Requests ask for credentials. botocore keeps them and renews temporary ones ten minutes or more before they expire, so
an upload that outlasts its session continues with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from tiered_storage.errors import RemoteStorageError, RemoteStorageRefusedError
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from botocore.session import Session
    from obstore.store import S3Credential

SESSION_NAME = "remote-log"
"""The name of a session under an assumed role unless the options give one; AWS shows it in its logs."""

RENEWED_BEFORE_SECONDS = 600
"""botocore renews credentials that expire sooner than this before it gives them out."""
_KEPT = timedelta(minutes=6)
"""The lifetime given to obstore for credentials that live longer: it asks again when 5 minutes of it are left."""


def credential_provider(options: ObjectStoreOptions) -> Callable[[], S3Credential]:
    """Return what gives obstore the credentials for requests."""
    key, secret = options.access_key_id, options.secret_access_key
    if key is not None and secret is not None and not options.roles:
        # By itself obstore would send the AWS_SESSION_TOKEN of another identity with these keys.
        return lambda: {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": options.session_token,
            "expires_at": None,
        }
    return AwsIdentity(options).credentials


class AwsIdentity:
    """Who signs the requests to a store. Threads may share one."""

    def __init__(self, options: ObjectStoreOptions) -> None:
        """Look for nothing yet: the first use does, and may ask a server."""
        self._options = options
        self._lock = Lock()
        self._found: Credentials | None = None
        self._kms_clients: dict[tuple[str | None, str | None], Any] = {}

    def credentials(self) -> S3Credential:
        """Return credentials for a request.

        Raises RemoteStorageRefusedError if there are none or a role is refused, and RemoteStorageError if AWS's
        Security Token Service (STS) fails or cannot be reached.
        """
        with _errors_explained(self._options):
            found = self._resolved()
            frozen = found.get_frozen_credentials()
            is_short = getattr(found, "refresh_needed", lambda _: False)(RENEWED_BEFORE_SECONDS)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + (timedelta() if is_short else _KEPT),
        }

    def described(self) -> str:
        """Return the identity's ARN, as STS reports it, and where its credentials come from. Raises as
        `credentials`."""
        with _errors_explained(self._options):
            found = self._resolved()
            frozen = found.get_frozen_credentials()
            sts = _sts_clients(_session(self._options), self._options)(
                "sts",
                aws_access_key_id=frozen.access_key,
                aws_secret_access_key=frozen.secret_key,
                aws_session_token=frozen.token,
            )
            return f"{sts.get_caller_identity()['Arn']} (from {found.method})"

    def kms_client(self, region: str | None, endpoint: str | None) -> Any:
        """Return botocore's client of AWS KMS for this identity; see KmsClients. Raises as `credentials`."""
        # Tell a refused role from a refused key.
        self.credentials()
        found = self._resolved()
        with self._lock:
            client = self._kms_clients.get((region, endpoint))
            if client is None:
                session = _session(self._options)
                session._credentials = found  # no other way renews them
                create = _bounded_clients(session, self._options)
                client = create("kms", region_name=region, endpoint_url=endpoint)
                self._kms_clients[region, endpoint] = client
            return client

    def _resolved(self) -> Credentials:
        with self._lock:
            if self._found is None:
                self._found = _resolve(self._options)
            return self._found


def _resolve(options: ObjectStoreOptions) -> Credentials:
    from botocore import credentials  # noqa: PLC0415 -- takes long, and keys alone need none of it

    session = _session(options)
    clients = _sts_clients(session, options)
    roles = list(options.roles)
    if options.web_identity_token_file is not None and roles:
        load = credentials.FileWebIdentityTokenLoader(options.web_identity_token_file)
        arguments = _role_arguments(options, is_last=len(roles) == 1)
        fetcher = credentials.AssumeRoleWithWebIdentityCredentialFetcher(clients, load, roles.pop(0), arguments)
        found = credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role-with-web-identity")
    elif options.access_key_id is not None:
        found = credentials.Credentials(options.access_key_id, options.secret_access_key, options.session_token)
    else:
        found = session.get_credentials()
        if found is None:
            raise RemoteStorageRefusedError("no credentials are set, and this machine has none of its own")
    for number, role in enumerate(roles, start=1):
        arguments = _role_arguments(options, is_last=number == len(roles))
        by_role = credentials.AssumeRoleCredentialFetcher(clients, found, role, arguments)
        found = credentials.DeferredRefreshableCredentials(by_role.fetch_credentials, "assume-role")
    return found


def _role_arguments(options: ObjectStoreOptions, *, is_last: bool) -> dict[str, Any]:
    return {"RoleSessionName": SESSION_NAME} | (dict(options.role_arguments) if is_last else {})


def _session(options: ObjectStoreOptions) -> Session:
    from botocore.session import Session  # noqa: PLC0415 -- takes long, and keys alone need none of it

    session = Session(profile=options.profile)
    if options.ca_bundle is not None:
        session.set_config_variable("ca_bundle", options.ca_bundle)
    # STS is one place for every region, unless the region is known.
    session.set_config_variable("region", options.region or session.get_config_variable("region") or "us-east-1")
    return session


def _sts_clients(session: Session, options: ObjectStoreOptions) -> Callable[..., Any]:
    """Return a function as Session.create_client, whose clients reach STS where `options` say, in bounded time."""
    create = _bounded_clients(session, options)
    return lambda service, **given: create(service, endpoint_url=options.sts_endpoint, **given)


def _bounded_clients(session: Session, options: ObjectStoreOptions) -> Callable[..., Any]:
    """Return a function as Session.create_client, whose clients answer in bounded time."""
    from botocore.config import Config  # noqa: PLC0415 -- as above

    bounded = Config(
        connect_timeout=options.connect_timeout_ms / 1000,
        read_timeout=options.retry_timeout_ms / 1000,
        retries={"total_max_attempts": 3, "mode": "standard"},
    )

    def create(service: str, config: Config | None = None, **given: Any) -> Any:
        merged = bounded if config is None else bounded.merge(config)
        return session.create_client(service, config=merged, **given)

    return create


@contextmanager
def _errors_explained(options: ObjectStoreOptions) -> Iterator[None]:
    """Translate what botocore raises."""
    from botocore.exceptions import (  # noqa: PLC0415 -- as above
        BotoCoreError,
        ClientError,
        ConnectionError,  # noqa: A004 -- botocore's own
        HTTPClientError,
        SSLError,
    )

    roles = f"the roles {', '.join(options.roles)} could not be assumed" if options.roles else "no credentials"
    try:
        yield
    except SSLError as error:
        raise RemoteStorageRefusedError(f"{roles}: check rsm.config.ca.bundle ({_shown(error)})") from error
    except ClientError as error:
        is_refused = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) < 500
        raise (RemoteStorageRefusedError if is_refused else RemoteStorageError)(f"{roles}: {_shown(error)}") from error
    except (ConnectionError, HTTPClientError) as error:
        raise RemoteStorageError(f"{roles}: {_shown(error)}") from error
    except (BotoCoreError, OSError, RuntimeError) as error:
        raise RemoteStorageRefusedError(f"{roles}: {_shown(error)}") from error


def _shown(error: Exception) -> str:
    return " ".join(str(error).split())
