"""Pages of docs/ whose commands tests run: what their blocks of code have, chapter by chapter."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from support.command_line import run

_DOCS = Path(__file__).parents[2] / "docs"
_OURS = ".venv/bin/tiered-storage"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation."""

    text: str

    @classmethod
    def named(cls, name: str) -> Self:
        return cls((_DOCS / name).read_text("utf-8"))

    def titles(self) -> list[str]:
        """Return the titles of its chapters."""
        return re.findall(r"^## (.+)$", self.text, re.MULTILINE)

    def chapter(self, title: str) -> str:
        assert title in self.titles()
        return self.text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]

    def blocks(self, title: str, language: str) -> list[str]:
        """Return the code blocks of one language in a chapter."""
        return re.findall(rf"^ *```{language}\n(.*?)^ *```", self.chapter(title), re.DOTALL | re.MULTILINE)

    def lines(self, title: str) -> list[str]:
        """Return the commands in a chapter's blocks for a shell, as they are typed."""
        joined = re.sub(r" *\\\n *", " ", "".join(self.blocks(title, "sh")))
        return [line.strip() for line in joined.splitlines()]

    def commands(self, title: str) -> list[list[str]]:
        """Return the words of each of these commands, without the settings of environment variables."""
        lines = (line for line in self.lines(title) if not line.startswith(("export", '"')))
        return [shlex.split(line, comments=True) for line in lines]

    def run_ours(self, title: str, config: Path) -> list[str]:
        """Run our commands of a chapter, each of which succeeds; return their names."""
        return [run_ours(words, config) for words in self.commands(title) if is_ours(words)]

    def write_settings(self, title: str, root: Path, **given: object) -> Path:
        """Write the settings of a chapter, with their folders below `root`, and those in `given` for its own."""
        [text] = self.blocks(title, "yaml")
        shown = yaml.safe_load(text.replace("/srv/", f"{root}/srv/"))
        config = root / "settings.yaml"
        config.write_text(yaml.safe_dump(shown | {name.replace("_", "."): value for name, value in given.items()}))
        return config


def is_ours(words: list[str]) -> bool:
    """Whether a command is `tiered-storage`."""
    return words[0] == _OURS


def run_ours(words: list[str], config: Path) -> str:
    """Run a command of ours, which has to succeed; return its name, such as `copy`."""
    assert is_ours(words)
    result = run(*words[1:], "--config", config)
    assert result.exit_code == 0, (words, result.out, result.err)
    return words[1]
