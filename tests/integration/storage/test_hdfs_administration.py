"""What an administrator of HDFS does to a remote log there: erasure coding, safe mode, and files moved by WebHDFS."""

from __future__ import annotations

import getpass
import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from integration.storage.test_commands_of_stores_page import PAGE
from servers.hdfs import HadoopPrograms, RealHdfs
from support.command_line import CommandResult, mentions, run
from support.remote_logs import RemoteLogFiles, a_remote_log
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.storage.clients.hdfs import Hdfs
from tiered_storage.remote_log.storage.clients.object_client import WrittenObject
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

POLICY = "XOR-2-1-1024k"
When = Literal["before", "midway"]
_EC_ADMIN = "org.apache.hadoop.hdfs.tools.ECAdmin"


@pytest.fixture(scope="module")
def hdfs(hadoop_programs: HadoopPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHdfs]:
    """A cluster with a DataNode for each of the two cells of a stripe and their parity."""
    with RealHdfs(hadoop_programs, tmp_path_factory.mktemp("hdfs"), data_nodes=3) as hdfs:
        yield hdfs


@pytest.fixture
def folder(hdfs: RealHdfs) -> str:
    """A new folder."""
    path = f"/{uuid4().hex}"
    Hdfs(f"{hdfs.url}{path}", ObjectStoreOptions()).create("first", b"x")
    return path


def examined(hdfs: RealHdfs, folder: str, directory: Path) -> CommandResult:
    """Run doctor on a new remote log whose store and work area are in `folder`."""
    url = f"{hdfs.url}{folder}"
    site: RemoteLogFiles = a_remote_log(directory, None, rsm_config_url=f"{url}/remote", work_url=f"{url}/work")
    return run("doctor", "--json", "--config", site.config)


def wrong(result: CommandResult) -> dict[str, str]:
    """Return the messages of all that doctor finds wrong, by the name of its check."""
    rows = json.loads(result.out)["rows"]
    return {row["check"]: row["message"] for row in rows if row["verdict"] == "wrong"}


def test_an_erasure_coded_folder_is_refused_and_the_command_of_the_page_mends_it(
    hdfs: RealHdfs, folder: str, tmp_path: Path
) -> None:
    hdfs.admin_of(_EC_ADMIN, "-enablePolicy", "-policy", POLICY)
    hdfs.admin_of(_EC_ADMIN, "-setPolicy", "-path", folder, "-policy", POLICY)
    client = Hdfs(f"{hdfs.url}{folder}", ObjectStoreOptions())
    with pytest.raises(ConfigurationError, match=r"erasure-coded .*hdfs ec -setPolicy") as raised:
        client.create("second", b"x")
    assert not raised.value.retriable
    assert [found.name for found in client.list()] == ["first"]
    found = wrong(examined(hdfs, folder, tmp_path / "coded"))
    assert set(found) == {"store", "work area"}
    assert all("hdfs ec -setPolicy -replicate" in message for message in found.values())

    [command] = re.findall(r"`hdfs ec (-setPolicy [^`]*)`", PAGE.read_text("utf-8"))
    hdfs.admin_of(_EC_ADMIN, *shlex.split(command.replace("/remote-log", folder)))
    assert client.create("second", b"x")
    assert wrong(examined(hdfs, folder, tmp_path / "replicated")) == {}


def test_doctor_finds_the_safe_mode(hdfs: RealHdfs, folder: str, tmp_path: Path) -> None:
    hdfs.admin("-safemode", "enter")
    try:
        result = examined(hdfs, folder, tmp_path)
    finally:
        hdfs.admin("-safemode", "leave")
    assert result.exit_code == 1
    found = wrong(result)
    assert set(found) == {"store", "work area"}
    assert all(mentions(message, "NameNode", "safe mode") for message in found.values())


def assert_a_refused_copy_leaves_nothing(
    site: RemoteLogFiles, refuse: Callable[[], object], allow: Callable[[], object], reason: str, when: When
) -> None:
    """Copy one of two segments, and the other one while HDFS refuses, from before the run or from midway; then allow.

    The refused run names its `reason`, a regular expression. No object of it is visible, and the next run is whole.
    """
    url = str(site.properties["rsm.config.url"])
    refusals, original = [refuse], Hdfs.put

    def visible() -> list[str]:
        names = [found.name for found in Hdfs(url, ObjectStoreOptions()).list()]
        return [name for name in names if name.endswith((".log", ".indexes", ".commit", ".key"))]

    def refused_midway(chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        yield next(chunks)
        if refusals:
            refusals.pop()()
        yield from chunks

    def put(self: Hdfs, name: str, size: int, chunks: Iterator[memoryview], **options: bool) -> WrittenObject:
        return original(self, name, size, refused_midway(chunks) if name.endswith(".log") else chunks, **options)

    assert run("copy", "--max-segments", 1, "--config", site.config).exit_code == 0
    before = visible()
    assert len(before) == 3
    if when == "before":
        refusals.pop()()
    try:
        with mock.patch.object(Hdfs, "put", put):
            refused = run("copy", "--config", site.config)
    finally:
        allow()
    assert refusals == []
    assert refused.exit_code == 1
    assert re.search(reason, " ".join((refused.out + refused.err).split())), refused
    assert "Traceback" not in refused.err
    assert visible() == before

    copied = run("copy", "--config", site.config)
    assert (copied.exit_code, "Copied: 1 segment" in copied.out) == (0, True), copied
    audited = run("audit", "--deep", "--config", site.config)
    assert (audited.exit_code, "0 anomalies" in audited.out) == (0, True), audited
    assert len(visible()) == 6


@pytest.mark.parametrize("when", ["before", "midway"])
def test_a_copy_in_safe_mode_leaves_nothing_and_the_next_one_is_whole(
    hdfs: RealHdfs, folder: str, tmp_path: Path, when: When
) -> None:
    site = a_remote_log(tmp_path, {("orders", 0): 2}, rsm_config_url=f"{hdfs.url}{folder}/remote")
    enter, leave = (partial(hdfs.admin, "-safemode", each) for each in ("enter", "leave"))
    assert_a_refused_copy_leaves_nothing(site, enter, leave, "the NameNode is in safe mode", when)


def test_a_rename_onto_a_file_is_refused_by_an_error_of_rpc_and_by_an_answer_of_webhdfs(
    hdfs: RealHdfs, folder: str
) -> None:
    """A client of WebHDFS that checks only the status would therefore assume that its own write won."""
    client = Hdfs(f"{hdfs.url}{folder}", ObjectStoreOptions())
    assert client.create("second", b"y")
    source, target = f"{folder}/second", f"{folder}/first"
    with pytest.raises(FileExistsError):
        client._client.rename(source, target, overwrite=False)

    query = f"op=RENAME&destination={target}&user.name={getpass.getuser()}"
    with urlopen(Request(f"http://{hdfs.web_address}/webhdfs/v1{source}?{query}", method="PUT")) as answer:
        assert (answer.status, json.load(answer)) == (200, {"boolean": False})
    assert client.get_range("first", 0, 1) == b"x"
    assert client.get_range("second", 0, 1) == b"y"
