"""The rows of DumpLogSegments, and ours in its words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpRow, RowKind
from tiered_storage.kafka_log.dump.file_kind import FileKind
from tiered_storage.kafka_log.records.batch_header import LEGACY_MAGICS

_ROW_START = re.compile(r"\n(?=baseOffset: |offset: |\| offset: )")
_LOG_TITLE = re.compile(r"\A(?:Log starting offset: |KRaft |Snapshot end offset: )[^\n]*\n")
_CONTROL_NAMES = {
    "LEADER_CHANGE": "LeaderChange:",
    "SNAPSHOT_HEADER": "SnapshotHeader",
    "SNAPSHOT_FOOTER": "SnapshotFooter",
    "KRAFT_VERSION": "KRaftVersion",
    "KRAFT_VOTERS": "KRaftVoters",
}


def rows_of_the_tool(kind: FileKind, text: str) -> list[str]:
    """Return the rows that DumpLogSegments wrote of a file; a record's value may have line breaks in it."""
    if kind is FileKind.LOG:
        body = _LOG_TITLE.sub("", text, count=1).removesuffix("\n")
        return [_comparable(row) for row in _ROW_START.split(body)] if body else []
    return [line for line in text.splitlines() if not line.endswith(" is empty.")]


def rows_of_ours(kind: FileKind, events: Iterable[DumpEvent]) -> list[str]:
    """Return our rows in the tool's words. Fails where there is anything but rows."""
    rows = []
    for event in events:
        assert isinstance(event, DumpRow), event
        if event.kind is RowKind.RECORD:
            rows.append(_comparable(_record(event.fields)))
        elif kind is FileKind.PRODUCER_SNAPSHOT:
            rows.append(_producer(event.fields))
        elif event.kind is RowKind.BATCH and event.fields["magic"] in LEGACY_MAGICS:
            rows.append(_message(event.fields))
        else:
            rows.append(_pairs(event.fields))
    return rows


def _pairs(fields: Mapping[str, object]) -> str:
    return " ".join(f"{name}: {_value(name, value)}" for name, value in fields.items())


def _value(name: str, value: object) -> str:
    if name in ("deleteHorizonMs", "currentTxnFirstOffset"):
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _producer(fields: Mapping[str, object]) -> str:
    """The tool shows less of a producer without a batch, and shows the time of the last batch twice."""
    known = {name: value for name, value in fields.items() if value is not None or name == "currentTxnFirstOffset"}
    last = f" timestamp: {fields['lastTimestamp']}" if fields["lastOffset"] is not None else " "
    return _pairs(known) + last


def _message(fields: Mapping[str, object]) -> str:
    """The tool shows the last offset of compressed messages, and nothing that only batches have."""
    shown = ("position", _time_of(fields), "size", "magic", "compresscodec", "crc", "isvalid")
    return _pairs({"offset": fields["lastOffset"], **{name: fields[name] for name in shown}})


def _time_of(fields: Mapping[str, object]) -> str:
    return next(name for name in ("NoTimestampType", "LogAppendTime", "CreateTime") if name in fields)


def _record(fields: Mapping[str, Any]) -> str:
    text = "| " + _pairs({name: fields[name] for name in ("offset", _time_of(fields), "keySize", "valueSize")})
    if "crc" in fields:
        text += " " + _pairs({name: fields[name] for name in ("isValid", "crc")})
    else:
        text += f" sequence: {fields['sequence']} headerKeys: [{','.join(fields['headerKeys'])}]"
    if "endTxnMarker" in fields:
        return f"{text} endTxnMarker: {fields['endTxnMarker']} coordinatorEpoch: {fields['coordinatorEpoch']}"
    if "control" in fields:
        message = json.dumps(fields["control"], separators=(",", ":"))
        return f"{text} {_CONTROL_NAMES[fields['controlType']]} {message}"
    for name, word in (("key", "key"), ("value", "payload")):
        if fields[name] is not None:
            text += f" {word}: {fields[name].decode(errors='replace')}"
    return text


def _comparable(text: str) -> str:
    """Java and Python put another number of replacement characters for bytes that are no UTF-8."""
    return re.sub("\ufffd+", "\ufffd", re.sub(r"\r\n?", "\n", text))
