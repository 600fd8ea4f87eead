"""How operators tell what could not be done, and whether another try is worth it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from tiered_storage.remote_log.copy_plan import Finding
    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager


def told(findings: Iterable[Finding]) -> str:
    """Return `findings` as one text, each behind its partition where it is of one."""
    return "; ".join(map(str, findings))


def tell_stop(remote_log: RemoteLogManager, log: Any) -> None:
    """Tell where all deletions are stopped: a plan shows what would go all the same."""
    stopped = remote_log.deletions.gate.why_stopped()
    if stopped is not None:
        log.warning("nothing of this plan goes for now: %s", stopped)


def fail_for(findings: Sequence[Finding], introduction: str) -> None:
    """Fail for `findings` where there are any; another try follows where one of them may pass by itself."""
    from tiered_storage.remote_log.copy_plan import PassingFinding

    if any(isinstance(finding, PassingFinding) for finding in findings):
        raise AirflowException(f"{introduction}: {told(findings)}")
    if findings:
        raise AirflowFailException(f"{introduction}: {told(findings)}")


def fail_for_left(left: Sequence[Finding], introduction: str) -> None:
    """Fail for what a person asked to end and what is `left` of it; another try follows where one of them may pass."""
    from tiered_storage.remote_log.copy_plan import PassingFinding

    if any(isinstance(finding, PassingFinding) for finding in left):
        raise AirflowException(
            f"{introduction}: {told(left)}; the next try takes it up, and once all have failed, run this again by hand"
        )
    if left:
        raise AirflowFailException(f"{introduction}: {told(left)}; run this again once that is mended")
