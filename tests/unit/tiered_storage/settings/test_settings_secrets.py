"""No error shows the content of a named file: it may hold secrets, and many people read logs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tiered_storage.errors import TieredStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import read_leader_epochs
from tiered_storage.kafka_log.files.meta_properties import MetaProperties
from tiered_storage.kafka_log.files.offset_checkpoint import read_offset_checkpoint
from tiered_storage.kafka_log.files.partition_metadata import read_topic_id
from tiered_storage.kafka_log.log.recovery.clean_shutdown import read_clean_shutdown
from tiered_storage.kafka_wire.connections.client_properties import read_client_properties
from tiered_storage.remote_log.copy.tasks import CopyTask
from tiered_storage.remote_log.jobs.work_area import from_lines
from tiered_storage.remote_log.restore.offset_map import MapHead, OffsetMap, OffsetMapWriter
from tiered_storage.remote_log.restore.target_directory import UNFINISHED, TargetDirectory
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.documents.json_document import JsonDocument
from tiered_storage.remote_log.tables.layout import ExportedTable, read_document
from tiered_storage.settings.read_rights import load_read_rights
from tiered_storage.settings.settings import load_settings

SECRET = "s3cr3tS3cr3tS3cr3t"


def _unfinished(path: Path) -> object:
    path.replace(path.parent / UNFINISHED)
    return TargetDirectory(path.parent).unfinished()


READERS: dict[str, Callable[[Path], object]] = {
    "settings": lambda path: load_settings(path, environ={}),
    "rights": load_read_rights,
    "client properties": read_client_properties,
    "offset map to read": OffsetMap.read,
    "offset map to write": lambda path: OffsetMapWriter.open(path, MapHead({}, {}, {0: 0})),
    "meta.properties": MetaProperties.read,
    "offset checkpoint": read_offset_checkpoint,
    "leader epochs": read_leader_epochs,
    "partition.metadata": read_topic_id,
    "clean shutdown": read_clean_shutdown,
    "unfinished restore": _unfinished,
    "work area": lambda path: from_lines(path.read_bytes(), CopyTask, path.name),
    "store": lambda path: JsonDocument(path.read_bytes(), path.name, 1),
    "table": lambda path: read_document(LocalDirectory(path.parent), path.name, ExportedTable),
}
CONTENTS = {
    "a key": f"{SECRET}\n",
    "base64": f"{SECRET}==\n",
    "airflow.cfg": f"[api_auth]\njwt_secret = {SECRET}\n",
    "properties": f"jwt_secret={SECRET}\n{SECRET}=1\n",
    "version first": f"version={SECRET}\n",
    "checkpoint": f"0\n1\n{SECRET} {SECRET} {SECRET}\n",
    "metadata": f"version: 0\ntopic_id: {SECRET}",
    "yaml": f"{SECRET}: 1\n",
    "yaml twice": f"{SECRET}: 1\n{SECRET}: 2\n",
    "yaml broken": f"jwt: {{{SECRET}: 1\n",
    "yaml alias": f"jwt: *{SECRET}\n",
    "yaml anchors": f"jwt: &{SECRET} 1\nb: &{SECRET} 2\n: :\n",
    "yaml rights": f"users: {{{SECRET}: {{read: ['{SECRET} x'], {SECRET}: []}}}}\n",
    "json": f'{{"format_version": "{SECRET}", "version": "{SECRET}", "{SECRET}": 1}}\n',
    "json version": f'{{"version": 0, "brokerEpoch": "{SECRET}"}}\n',
    "json broken": f'{{"{SECRET}\n',
    "not text": f"\xff{SECRET}\n",
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_secrets_in_the_place_of_another_is_refused_without_a_word_of_it(
    tmp_path: Path, reader: str, content: str
) -> None:
    path = tmp_path / "named-by-mistake"
    path.write_bytes(CONTENTS[content].encode("latin-1"))
    shown = ""
    try:
        READERS[reader](path)
    except TieredStorageError as error:
        shown = "".join(traceback.format_exception(error))
    assert SECRET not in shown
    kept = path if path.exists() else tmp_path / UNFINISHED
    assert kept.read_bytes() == CONTENTS[content].encode("latin-1")
