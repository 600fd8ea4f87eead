"""The doctor command: check the installation."""

from __future__ import annotations

import os
from collections import Counter

import typer

from tiered_storage.cli.common.output import Output
from tiered_storage.cli.common.session import ConfigOption, JsonOption
from tiered_storage.clock import wall_clock
from tiered_storage.doctor.check import Verdict
from tiered_storage.doctor.examination import examine

_COLUMNS = ("verdict", "check", "message", "advice")


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check settings, paths, rights, store, metadata and clock: before the first run, and when something fails. Changes
    nothing.

    It writes an object to the store and to the work area, and deletes it again. Exit code 1: something is wrong.
    """
    output = Output(as_json)
    checks = list(examine(config, wall_clock, os.environ))
    rows = [(check.verdict.value, check.name, check.message, check.advice or None) for check in checks]
    if as_json:
        output.rows("Doctor", _COLUMNS, rows)
    else:
        messages = [f"{check.message}; {check.advice}" if check.advice else check.message for check in checks]
        shown = [(check.verdict.value, check.name, each) for check, each in zip(checks, messages, strict=True)]
        output.rows("Doctor", _COLUMNS[:-1], shown)
    count = Counter(check.verdict for check in checks)
    output.say(f"{count[Verdict.WRONG]} wrong, {count[Verdict.NOTE]} to note, {count[Verdict.OK]} as it must be")
    if count[Verdict.WRONG]:
        raise typer.Exit(1)
