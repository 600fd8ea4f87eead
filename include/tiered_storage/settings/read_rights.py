"""The file that read.service.rights.file names: who may describe or read which topics.

    roles:                              by the names that Airflow's auth manager gives
      VIEWER:
        describe: [orders, "payments.*"]
        read: [orders]
    users:                              by their login
      alice:
        read: ["*"]
    admins: [alice]                     by their login

`describe` shows topics, offsets, segments and indexes; `read` includes `describe` and gives records. A `*` in a pattern
matches any characters; all other characters match themselves. What no entry allows is forbidden. `admins` may lift
a stop of all deletions from Airflow; this grants no topic. Kafka's ACLs are neither read nor changed.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import yaml

from tiered_storage.errors import ConfigurationError
from tiered_storage.regular_files import open_regular
from tiered_storage.settings.properties.sources import not_yaml

_log = logging.getLogger(__name__)
_Stamp = tuple[int, ...]
MOST_BYTES = 128 << 10
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,249}")
_KINDS = ("roles", "users")
_ADMINS = "admins"


class Right(StrEnum):
    """What a user may do with a topic."""

    DESCRIBE = "describe"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Grant:
    """The topics that a user may describe, and those that they may read, as patterns of whole names."""

    describe: tuple[re.Pattern[str], ...] = ()
    read: tuple[re.Pattern[str], ...] = ()

    def allows(self, right: Right, topic: str) -> bool:
        """Return whether this grant allows `right` on `topic`."""
        patterns = self.read if right is Right.READ else (*self.describe, *self.read)
        return any(pattern.fullmatch(topic) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ReadRights:
    """All grants, by role and by user. `admins` are logins."""

    roles: Mapping[str, Grant] = field(default_factory=dict)
    users: Mapping[str, Grant] = field(default_factory=dict)
    admins: frozenset[str] = frozenset()

    def allows(self, user: str, roles: Collection[str], right: Right, topic: str) -> bool:
        """Return whether `user`, who has `roles`, has `right` on `topic`; False for an invalid topic name."""
        return bool(_TOPIC.fullmatch(topic)) and any(each.allows(right, topic) for each in self._grants(user, roles))

    def has_any(self, user: str, roles: Collection[str]) -> bool:
        """Return whether `user`, who has `roles`, has a right on any possible topic."""
        return any(each.describe or each.read for each in self._grants(user, roles))

    def _grants(self, user: str, roles: Collection[str]) -> Iterator[Grant]:
        yield from (self.roles[role] for role in roles if role in self.roles)
        if user in self.users:
            yield self.users[user]


NO_RIGHTS = ReadRights()


class RightsFile:
    """One file of rights, read again when it changes; a missing or invalid one grants nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """The file; None if the settings name none."""
        self._stamp: _Stamp | None = None
        self._rights = NO_RIGHTS
        self.problem: str | None = None
        """Why no user has any rights, for the service's operators; None if the file is valid."""
        if path is None:
            self._deny("read.service.rights.file names no file")

    def current(self) -> ReadRights:
        """Return the present rights."""
        if self.path is None:
            return NO_RIGHTS
        try:
            found = self.path.stat()
        except OSError as error:
            self._stamp = None
            self._deny(f"{self.path}: the rights cannot be read: {error.strerror}")
            return NO_RIGHTS
        stamp = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp if self._read(self.path) else None
        return self._rights

    def _read(self, path: Path) -> bool:
        """Read the file; return whether it needs no further reading until it changes."""
        try:
            self._rights = load_read_rights(path)
        except ConfigurationError as error:
            self._deny(str(error))
            return not isinstance(error.__cause__, OSError)
        self.problem = None
        return True

    def _deny(self, problem: str) -> None:
        self._rights = NO_RIGHTS
        if problem != self.problem:
            _log.error("nobody may see or read any topic: %s", problem)
        self.problem = problem


def load_read_rights(path: Path) -> ReadRights:
    """Return the rights in the file `path`.

    Raises ConfigurationError with every problem and its line; then the whole file grants nothing.
    """
    root = _compose(path)
    if root is None:
        return NO_RIGHTS
    problems: list[str] = []
    found: dict[str, dict[str, Grant]] = {kind: {} for kind in _KINDS}
    admins: set[str] = set()
    for kind, names in _items(root, "the file", (*_KINDS, _ADMINS), problems):
        if kind == _ADMINS:
            admins.update(_logins(names, problems))
            continue
        for name, grant in _items(names, kind, None, problems):
            found[kind][name] = _grant(grant, f"an entry of {kind}", problems)
    if problems:
        raise ConfigurationError("\n".join(f"{path}, {problem}" for problem in problems))
    return ReadRights(found["roles"], found["users"], frozenset(admins))


def _compose(path: Path) -> yaml.Node | None:
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigurationError(
                f"{path}: more than {MOST_BYTES:,} bytes of rights: use patterns with * to shorten it"
            )
        return yaml.compose(content.decode(), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{path}: cannot read the rights: {reason}") from error
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise not_yaml(path, error) from None


def _items(
    node: yaml.Node, what: str, allowed: Collection[str] | None, problems: list[str]
) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the entries of a mapping; report a name that occurs twice or is not in `allowed` (None: any name)."""
    if isinstance(node, yaml.ScalarNode) and not node.value:
        return
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"line {_line(node)}: {what} must hold lines of 'name: …'")
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not name:
            problems.append(f"line {_line(key)}: {what} has an entry without a name")
        elif name in seen:
            problems.append(f"line {_line(key)}: {what} has the same entry twice")
        elif allowed is not None and name not in allowed:
            problems.append(f"line {_line(key)}: {what} has an entry other than {', '.join(allowed)}")
        else:
            yield name, value
        seen.add(name)


def _grant(node: yaml.Node, what: str, problems: list[str]) -> Grant:
    patterns: dict[str, tuple[re.Pattern[str], ...]] = {}
    for right, topics in _items(node, what, [right.value for right in Right], problems):
        patterns[right] = tuple(_patterns(topics, f"{what}: {right}", problems))
    return Grant(**patterns)


def _logins(node: yaml.Node, problems: list[str]) -> Iterator[str]:
    if isinstance(node, yaml.ScalarNode) and not node.value:
        return
    if not isinstance(node, yaml.SequenceNode):
        problems.append(f"line {_line(node)}: {_ADMINS} must be a list of logins, such as [alice, bob]")
        return
    for login in node.value:
        if isinstance(login, yaml.ScalarNode) and login.value:
            yield login.value
        else:
            problems.append(f"line {_line(login)}: {_ADMINS} has an entry that is not a login")


def _patterns(node: yaml.Node, what: str, problems: list[str]) -> Iterator[re.Pattern[str]]:
    if not isinstance(node, yaml.SequenceNode):
        problems.append(f'line {_line(node)}: {what} must be a list of topics, such as [orders, "payments.*"]')
        return
    for topic in node.value:
        if not isinstance(topic, yaml.ScalarNode) or not _PATTERN.fullmatch(topic.value):
            problems.append(f"line {_line(topic)}: {what} has an entry that is not a topic name or pattern")
            continue
        # Atomic: the match never backtracks past a star, so it stays fast however many stars there are.
        yield re.compile(fnmatch.translate(topic.value))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
