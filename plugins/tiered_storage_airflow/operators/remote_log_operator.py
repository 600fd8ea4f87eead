"""What all operators on a remote log share: how they open it, which partitions they mean, and when they only look."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook
from tiered_storage_airflow.links import ReportLink
from tiered_storage_airflow.run_scope import Overrides, opened_remote_log, selected

if TYPE_CHECKING:
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.selection import Selection


class RemoteLogOperator(BaseOperator):
    """Base of operators on a remote log.

    :param settings: properties by name that go over the file and the environment: a mapping; or text, its JSON, which
        sets only what a form may, for it may come from one
    :param remote_storage_conn_id: the connection with the store's endpoint and secrets
    """

    template_fields: Sequence[str] = ("settings",)
    operator_extra_links = (ReportLink(),)

    def __init__(
        self,
        *,
        settings: Overrides = None,
        remote_storage_conn_id: str = RemoteStorageHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        # A template of text may be rendered to a mapping, and is a form's all the same.
        self._is_form = isinstance(settings, str)
        self.remote_storage_conn_id = remote_storage_conn_id

    def opened(self, *, outdated: bool = False) -> AbstractContextManager[RemoteLogManager]:
        """Open the remote log for a `with`; see opened_remote_log."""
        return opened_remote_log(self.settings, self.remote_storage_conn_id, is_form=self._is_form, outdated=outdated)


class SelectingOperator(RemoteLogOperator):
    """Base of operators over partitions that somebody chooses.

    :param topics: a regular expression (RE2) over whole topic names
    :param partitions: numbers of partitions, such as 0,2-4; empty: all
    :param must_match: whether it is an error when no partition that is known matches
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topics", "partitions", "must_match")

    def __init__(
        self, *, topics: str = ".*", partitions: str | None = None, must_match: bool | str = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.partitions = partitions
        self.must_match = must_match

    def selection(self, remote_log: RemoteLogManager) -> Selection:
        """Return what is meant; see selected."""
        return selected(remote_log, self.topics, self.partitions, self.must_match)
