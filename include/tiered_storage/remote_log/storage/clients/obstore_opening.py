"""Open obstore's store of a URL: what our options are called there, and which ones a provider takes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import from_url

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.aws_credentials import credential_provider
from tiered_storage.remote_log.storage.clients.options import HADOOP_SETTINGS, ObjectStoreOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

RAISED_BY_OBSTORE = (BaseError, OSError, ValueError)

_PREFIXES = {"s3": "aws_", "az": "azure_", "gs": "google_"}
"""How the names of a provider's own properties begin, by scheme. Other names are for any."""


_ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_S3"
"""obstore lets it win over the endpoint that it is given."""

_PROVIDERS = ("AWS_", "GOOGLE_", "AZURE_", "AZURITE_")
_NAMES_ENDPOINT = re.compile("ENDPOINT|BASE_URL|EMULATOR|SERVICE_ACCOUNT")
"""In names of properties and variables that obstore reads itself. Google's key files may name an endpoint too."""


def names_endpoint(options: ObjectStoreOptions, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `options` or `environ` may name another endpoint than the provider's own."""
    given = [*options.properties, *(name for name in environ if name.upper().startswith(_PROVIDERS))]
    return bool(options.endpoint) or any(_NAMES_ENDPOINT.search(name.upper()) for name in given)


def checked_url(url: str) -> str:
    """Return `url` without slashes at its end.

    Raises ConfigurationError, without showing possible secrets.
    """
    parsed = urlsplit(url)
    if parsed.scheme not in _PREFIXES or not parsed.netloc:
        raise ConfigurationError(f"{parsed.scheme}://{parsed.hostname or ''} names no bucket: use s3://bucket/prefix")
    if parsed.scheme == "s3" and parsed.hostname and parsed.hostname.endswith("--x-s3"):
        raise ConfigurationError(
            f"s3://{parsed.hostname}: is a directory bucket (S3 Express One Zone), which does not list in order of "
            "names: use a general purpose bucket"
        )
    if parsed.username or parsed.password or parsed.query or parsed.fragment:
        raise ConfigurationError(
            f"{parsed.scheme}://{parsed.hostname or ''}: a store's URL must not contain credentials or options: "
            "give them in the connection or the environment"
        )
    return url.rstrip("/")


def open_obstore(url: str, options: ObjectStoreOptions) -> Any:
    """Open a checked URL. Nothing is sent yet. Raises ConfigurationError if URL and options make no store."""
    for endpoint in (options.endpoint, options.sts_endpoint):
        if endpoint and endpoint.startswith("http://") and not options.allow_http:
            raise ConfigurationError(f"{endpoint} is not encrypted: allow http, or give an https:// endpoint")
    client_options: ClientConfig = {
        "allow_http": options.allow_http,
        "connect_timeout": timedelta(milliseconds=options.connect_timeout_ms),
        "timeout": timedelta(milliseconds=options.request_timeout_ms),
    }
    if options.ca_bundle is not None:
        client_options["root_certificate"] = _certificates(options.ca_bundle)
    retry_config: RetryConfig = {
        "max_retries": options.max_retries,
        "retry_timeout": timedelta(milliseconds=options.retry_timeout_ms),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    try:
        return from_url(url, client_options=client_options, retry_config=retry_config, **_of_provider(url, options))
    except RAISED_BY_OBSTORE as error:
        raise ConfigurationError(f"{url}: these settings make no store ({str(error).splitlines()[0]})") from error


def _certificates(path: str) -> bytes:
    try:
        found = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path}: these certificates (rsm.config.ca.bundle) cannot be read: {error}"
        ) from error
    if b"-----BEGIN CERTIFICATE-----" not in found:
        raise ConfigurationError(f"{path}: no certificates (rsm.config.ca.bundle) are in it: give a file in PEM format")
    return found


def _of_provider(url: str, options: ObjectStoreOptions) -> dict[str, Any]:
    """Return config and credentials of the provider at `url`."""
    scheme = urlsplit(url).scheme
    others = (*HADOOP_SETTINGS, *(prefix for each, prefix in _PREFIXES.items() if each != scheme))
    properties = {name: value for name, value in options.properties.items() if not name.startswith(others)}
    if scheme == "az":
        endpoint = {} if options.endpoint is None else {"azure_storage_endpoint": options.endpoint}
        return {"config": properties | endpoint}
    if scheme != "s3":
        return {"config": properties}
    if options.endpoint not in {None, os.environ.get(_ENDPOINT_VARIABLE, options.endpoint)}:
        raise ConfigurationError(f"{_ENDPOINT_VARIABLE} of the environment is not {options.endpoint}: unset it")
    return {"config": _s3_config(url, options) | properties, "credential_provider": credential_provider(options)}


def _s3_config(url: str, options: ObjectStoreOptions) -> dict[str, Any]:
    given = {
        "endpoint": _s3_endpoint(url, options),
        "region": options.region,
        "virtual_hosted_style_request": None if options.path_style else True,
        "request_payer": options.requester_pays or None,
        "server_side_encryption": options.server_side_encryption,
        "sse_kms_key_id": options.kms_key_id,
    }
    # Not every server supports bulk deletion, and we delete objects one by one.
    fixed = {"checksum_algorithm": "SHA256", "disable_bulk_delete": True}
    return {name: value for name, value in given.items() if value is not None} | fixed


def _s3_endpoint(url: str, options: ObjectStoreOptions) -> str | None:
    """Return the endpoint, with the bucket's name in its host if requests go there."""
    if options.endpoint is None or options.path_style:
        return options.endpoint
    endpoint = urlsplit(options.endpoint)
    return endpoint._replace(netloc=f"{urlsplit(url).netloc}.{endpoint.netloc}").geturl()
