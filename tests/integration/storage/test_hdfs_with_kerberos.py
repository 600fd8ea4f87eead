"""HDFS with Kerberos: a real KDC and a NameNode that wants tickets; the client has only its ticket cache.

There is no kinit here: libkrb5 gets a ticket by itself, where KRB5_CLIENT_KTNAME names a keytab, and leaves it in the
cache. Needs the system's libgssapi_krb5.so.2.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.storage.test_hdfs_administration import When, assert_a_refused_copy_leaves_nothing
from servers.hdfs import HadoopPrograms, RealHdfs
from support.remote_logs import a_remote_log
from tiered_storage.remote_log.storage.clients.options import HDFS_USER

SECONDS = 60
TICKET_SECONDS = 4
PROGRAM = """
import json
import os
import sys
from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
properties = json.loads(os.environ.get("PROPERTIES", "{}"))
client = Hdfs(sys.argv[1], ObjectStoreOptions(max_retries=2, properties=properties))
try:
    client.put("object", 3, iter((memoryview(b"abc"),)))
    print(client.get_range("object", 0, 3).decode())
except TieredStorageError as error:
    print(type(error).__name__, error.retriable, error)
"""


@dataclass(frozen=True, slots=True)
class Realm:
    """A running KDC: what Kerberos has to know of it, and the keys of all its principals."""

    krb5_conf: Path
    keytab: Path


@pytest.fixture(scope="module")
def realm(hadoop_programs: HadoopPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    assert ctypes.util.find_library("gssapi_krb5"), "libgssapi_krb5.so.2 is missing: apt-get install libgssapi-krb5-2"
    folder = tmp_path_factory.mktemp("kdc")
    found = Realm(folder / "krb5.conf", folder / "keytab")
    properties = folder / "kdc.properties"
    settings = {
        "org.name": "EXAMPLE",
        "org.domain": "COM",
        "kdc.bind.address": "localhost",
        "kdc.port": "0",
        "instance": "DefaultKrbServer",
        "max.ticket.lifetime": "86400000",
        "min.ticket.lifetime": "1",
        "max.renewable.lifetime": "604800000",
        "transport": "TCP",
        "debug": "false",
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    principals = ("server/localhost", "HTTP/localhost")
    command = hadoop_programs.command(
        folder, "org.apache.hadoop.minikdc.MiniKdc", str(folder), str(properties), str(found.keytab), *principals
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = "".join(iter(process.stdout.readline, " Do <CTRL-C> or kill <PID> to stop it\n"))
            assert found.keytab.exists(), said
            yield found
        finally:
            process.kill()


@pytest.fixture(scope="module")
def secure_hdfs(
    hadoop_programs: HadoopPrograms, realm: Realm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealHdfs]:
    server, keytab = "server/localhost@EXAMPLE.COM", str(realm.keytab)
    settings = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.auth_to_local": "RULE:[2:$1](.*)s/.*/root/\nDEFAULT",
        "dfs.block.access.token.enable": "true",
        "dfs.namenode.kerberos.principal": server,
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": server,
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.principal": "HTTP/localhost@EXAMPLE.COM",
        "dfs.web.authentication.kerberos.keytab": keytab,
        # A DataNode need not have a privileged port or TLS.
        "ignore.secure.ports.for.testing": "true",
    }
    directory = tmp_path_factory.mktemp("secure-hdfs")
    java_options = (f"-Djava.security.krb5.conf={realm.krb5_conf}",)
    with RealHdfs(hadoop_programs.with_options(*java_options), directory, settings=settings) as hdfs:
        yield hdfs


def said(hdfs: RealHdfs, realm: Realm, cache: Path, **environment: str) -> str:
    """Let a client in a process of its own write and read, with the tickets in `cache`; return what it said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KRB5")}
    own = {
        "HADOOP_CONF_DIR": str(hdfs.configuration),
        "KRB5_CONFIG": str(realm.krb5_conf),
        "KRB5CCNAME": f"FILE:{cache}",
        **environment,
    }
    command = [sys.executable, "-c", PROGRAM, f"{hdfs.url}/folder"]
    return subprocess.run(
        command, env=inherited | own, capture_output=True, text=True, timeout=SECONDS, check=False
    ).stdout


@pytest.fixture(scope="module")
def expired(secure_hdfs: RealHdfs, realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ticket cache whose ticket was used until it expired."""
    folder = tmp_path_factory.mktemp("expired")
    short_lived, cache = folder / "krb5.conf", folder / "cache"
    lifetime = f"[libdefaults]\n    ticket_lifetime = {TICKET_SECONDS}s\n"
    short_lived.write_text(realm.krb5_conf.read_text().replace("[libdefaults]\n", lifetime))
    keys = {"KRB5_CLIENT_KTNAME": f"FILE:{realm.keytab}"}
    assert said(secure_hdfs, realm, cache, KRB5_CONFIG=str(short_lived), **keys) == "abc\n"
    time.sleep(TICKET_SECONDS + 1)
    return cache


def test_the_ticket_in_the_cache_is_used_and_a_missing_or_expired_one_is_reported(
    secure_hdfs: RealHdfs, realm: Realm, expired: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    assert re.match("RemoteStorageRefusedError False .*kinit", said(secure_hdfs, realm, cache))
    assert re.match("RemoteStorageRefusedError False .*kinit.*expired", said(secure_hdfs, realm, expired))

    assert said(secure_hdfs, realm, cache, KRB5_CLIENT_KTNAME=f"FILE:{realm.keytab}") == "abc\n"
    assert said(secure_hdfs, realm, cache) == "abc\n"


@pytest.mark.parametrize("when", ["before", "midway"])
def test_a_copy_with_an_expired_ticket_leaves_nothing_and_the_next_one_is_whole(
    secure_hdfs: RealHdfs, realm: Realm, expired: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """Midway, the connections of a valid ticket end too: a new one needs a valid one again."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.configuration))
    monkeypatch.setenv("KRB5_CONFIG", str(realm.krb5_conf))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")

    def allow() -> None:
        cache.unlink(missing_ok=True)
        monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{realm.keytab}")

    with secure_hdfs.slow_way() as way:

        def expire() -> None:
            shutil.copy(expired, cache)
            monkeypatch.delenv("KRB5_CLIENT_KTNAME")
            way.cut()

        site = a_remote_log(tmp_path / "site", {("orders", 0): 2}, rsm_config_url=f"{way.url}/{when}/remote")
        allow()
        assert_a_refused_copy_leaves_nothing(site, expire, allow, "kinit.*expired", when)


def test_a_client_without_the_clusters_configuration_is_an_error(
    secure_hdfs: RealHdfs, realm: Realm, tmp_path: Path
) -> None:
    output = said(secure_hdfs, realm, tmp_path / "cache", HADOOP_CONF_DIR=str(tmp_path))
    assert re.match("RemoteStorageError True .*HADOOP_CONF_DIR", output)


def test_settings_of_a_connection_do_in_place_of_the_clusters_configuration(
    secure_hdfs: RealHdfs, realm: Realm, tmp_path: Path
) -> None:
    properties = json.dumps({"hadoop.security.authentication": "kerberos", HDFS_USER: "somebody"})
    keys = {"KRB5_CLIENT_KTNAME": f"FILE:{realm.keytab}"}
    cache, nothing = tmp_path / "cache", str(tmp_path)
    assert said(secure_hdfs, realm, cache, HADOOP_CONF_DIR=nothing, PROPERTIES=properties, **keys) == "abc\n"
