"""The properties that a file or a connection may set for a Kafka client of ours: how to connect and log in.

The list is closed: librdkafka also has properties that load a library into this process or run a command, and how
records are sent is our decision. No error shows a value, nor a name that is not librdkafka's: a file named by mistake
may hold secrets on either side of its `=`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tiered_storage.errors import ConfigurationError
from tiered_storage.regular_files import open_regular

MOST_BYTES = 1 << 20

ALLOWED = frozenset(
    {
        "api.version.request.timeout.ms",
        "bootstrap.servers",
        "broker.address.family",
        "broker.address.ttl",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "enable.ssl.certificate.verification",
        "https.ca.location",
        "https.ca.pem",
        "log_level",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.kerberos.keytab",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.principal",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.curves.list",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.sigalgs.list",
    }
)
"""A new property is refused until it is added here."""

_RUN_OR_LOAD_CODE = frozenset(
    {
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.id",
        "ssl.engine.location",
        "ssl.providers",
    }
)
FOR_RECORDS = frozenset(
    {
        "acks",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "compression.codec",
        "compression.type",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "linger.ms",
        "max.poll.interval.ms",
        "message.max.bytes",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.max.kbytes",
        "session.timeout.ms",
        "statistics.interval.ms",
        "transactional.id",
    }
)
"""Properties of producers and consumers, which a connection of Airflow may have for others that use it."""
_KNOWN = FOR_RECORDS | frozenset(
    {
        "debug",
        "error_cb",
        "interceptors",
        "log_cb",
        "logger",
        "metadata.broker.list",
        "oauth_cb",
        "on_delivery",
        "opaque",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.jwt.template.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.config",
        "socket_cb",
        "stats_cb",
        "throttle_cb",
    }
)
"""Names of client properties that an error may show: they are not secrets."""

_THROUGH_A_SHELL = re.compile(r"sasl\.kerberos\.(keytab|principal|service\.name)")
"""The client puts the values of these into a command line."""
_PLAIN = re.compile(r"[A-Za-z0-9@/._:-]*")


def read_client_properties(path: Path) -> dict[str, str]:
    """Return the `name=value` lines of a file, without blank lines and those that begin with #.

    Raises ConfigurationError, with the line's number, for another kind of line and for a refused property.
    """
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot read the client's properties: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise ConfigurationError(f"{path}: more than {MOST_BYTES:,} bytes: this is not a file of client properties")
    properties: dict[str, str] = {}
    for number, raw in enumerate(content.splitlines(), 1):
        where = f"{path}: line {number}"
        line = _text(raw, where)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise ConfigurationError(f"{where} is not name=value")
        _check(name, value, where)
        properties[name] = value
    return properties


def checked_properties(properties: Mapping[str, object], where: str) -> dict[str, str]:
    """Return `properties` as the client takes them. Raises ConfigurationError, which names `where`."""
    return {name: _check(name, _as_text(name, value, where), where) for name, value in properties.items()}


def _check(name: str, value: str, where: str) -> str:
    if name in _RUN_OR_LOAD_CODE:
        raise ConfigurationError(f"{where}: {name} is refused: it loads or runs code in this process; remove it")
    if name not in ALLOWED:
        shown = name if name in _KNOWN else "a property whose name is not shown, as it may be a secret,"
        raise ConfigurationError(
            f"{where}: {shown} is refused: only properties for connecting and for security may be set here, such as "
            "security.protocol, sasl.* and ssl.*; docs/restore.md lists them; remove it"
        )
    if _THROUGH_A_SHELL.fullmatch(name) and not _PLAIN.fullmatch(value):
        raise ConfigurationError(
            f"{where}: {name} is refused: the client puts it into a shell's command, so only letters, digits and "
            "@ / . _ : - may be in it"
        )
    return value


def _as_text(name: str, value: object, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    shown = name if name in ALLOWED else "a property"
    raise ConfigurationError(f"{where}: {shown} is not text, a number, true or false")


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        pass
    # Raised out here: the cause would contain the line.
    raise ConfigurationError(f"{where} is not UTF-8 text")
