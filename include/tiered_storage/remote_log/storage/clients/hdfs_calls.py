"""Calls of hdfs-native with a time limit, and its errors as ours.

A NameNode that hangs keeps its connections open and never answers, and hdfs-native waits for it without a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
    TieredStorageError,
)

RAISED_BY_HDFS = (OSError, RuntimeError, NotImplementedError)
"""What hdfs-native raises; a TimeoutError of `limited` is an OSError too."""

_MAX_REASON = 400
_NO_ANSWER = "no answer within"

_Answer = TypeVar("_Answer")


def limited(call: Callable[[], _Answer], seconds: float) -> _Answer:
    """Return what `call` returns. Raises what it raises, and TimeoutError after `seconds`; the call may then continue.

    A panic of hdfs-native, which is not an Exception in Python, becomes a RuntimeError.
    """
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 -- the caller gets it
            answer.set_exception(error)
        except BaseException as error:  # noqa: BLE001 -- PanicException cannot be named
            answer.set_exception(RuntimeError(str(error)))

    # A daemon: a call that never ends must not keep the process from ending.
    Thread(target=run, daemon=True, name="hdfs").start()
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"{_NO_ANSWER} {seconds:g} s") from None


_CASES: tuple[tuple[tuple[str, ...], type[TieredStorageError], str], ...] = (
    (
        ("SafeModeException", "Name node is in safe mode"),
        RemoteStorageError,
        "the NameNode is in safe mode and changes nothing; an administrator ends that, or enough DataNodes report",
    ),
    (
        ("GSSAPIError", "SASLError", "NoSASLMechanism", "SaslException", "SIMPLE authentication is not enabled"),
        RemoteStorageRefusedError,
        "there is no valid Kerberos ticket: run kinit as this user, or check KRB5CCNAME and KRB5_CONFIG",
    ),
    (
        ("AccessControlException", "AuthorizationException", "Permission denied"),
        RemoteStorageRefusedError,
        "refused: give this user the right to, or check HADOOP_USER_NAME",
    ),
    (
        ("RPC listener disconnected",),
        RemoteStorageError,
        "the NameNode closed the connection; for Kerberos, HADOOP_CONF_DIR must name the cluster's configuration",
    ),
    (
        (_NO_ANSWER,),
        RemoteStorageError,
        "a server does not answer: does it run? While a NameNode is off, name the other first in dfs.ha.namenodes",
    ),
    (("StandbyException",), RemoteStorageError, "no NameNode of the name service is active"),
    (("QuotaExceededException",), RemoteStorageFullError, "no room: raise the folder's quota or free some space"),
    (
        ("could only be written to", "All nodes failed", "Failed to add a datanode", "Insufficient blocks"),
        RemoteStorageError,
        "no DataNode takes it: enough of them must run and have free space (hdfs dfsadmin -report)",
    ),
    (
        ("BlocksNotFound", "DataTransferError", "All DataNodes failed"),
        RemoteStorageError,
        "no DataNode serves its blocks: are they all running, and their replicas intact (hdfs fsck)?",
    ),
    (
        ("PathComponentTooLongException",),
        ConfigurationError,
        "the name is too long for this cluster (dfs.namenode.fs-limits.max-component-length)",
    ),
    (
        ("hsync is not supported",),
        ConfigurationError,
        "nothing can be synced in an erasure-coded folder, make it a replicated one (hdfs ec -setPolicy -replicate)",
    ),
)


def translated(error: Exception, doing: str, place: str, *, is_write: bool = False) -> TieredStorageError:
    """Return our error for one of RAISED_BY_HDFS, without Java's stack: `doing` failed at `place`.

    With `is_write`, a missing path is not a missing object.
    """
    text = str(error)
    reason = " ".join(text.partition("\n\tat ")[0].partition("\\n\\tat ")[0].split())[:_MAX_REASON]
    for marks, error_class, advice in _CASES:
        if any(mark in text for mark in marks):
            return error_class(f"{place}: could not {doing} it: {advice} ({reason})")
    if isinstance(error, FileNotFoundError) and not is_write:
        return RemoteObjectNotFoundError(f"{place}: could not {doing} it: there is no such object ({reason})")
    return RemoteStorageError(f"{place}: could not {doing} it ({reason})")
