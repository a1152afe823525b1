"""The projects of projects.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List

import tomllib

PATH = Path(__file__).with_name("projects.toml")


@dataclass(frozen=True)
class Exempt:
    """Tests that fail with a strategy for a known reason; ``tests`` are parts of their names."""

    tests: List[str]
    reason: str
    modes: List[str] = field(default_factory=lambda: ["flow", "genoa"])


@dataclass(frozen=True)
class Project:
    """A project whose tests are run; projects.toml describes the fields."""

    name: str
    archive: str
    sha256: str
    members: List[str]
    models: str
    files: List[str]
    package: str = ""
    add: List[str] = field(default_factory=list)
    debian: str = ""
    suite: str = ""
    environment: Dict[str, str] = field(default_factory=dict)
    variables: Dict[str, str] = field(default_factory=dict)
    exceptions: List[Exempt] = field(default_factory=list)

    def is_exempt(self, test: str, mode: str) -> bool:
        """Whether it is known why a test fails with a strategy."""
        return any([mode in one.modes and any([part in test for part in one.tests]) for one in self.exceptions])

    @property
    def version(self) -> str:
        """The version of the tests."""
        return (self.package or self.debian).split("=")[-1].split("+")[0]


def projects(path: Path = PATH) -> Dict[str, Project]:
    """All projects by name. Raises ``ValueError`` for a table that is not one of a project."""
    found = {}
    for table in tomllib.loads(path.read_text())["project"]:
        try:
            exceptions = [Exempt(**one) for one in table.pop("exceptions", [])]
            project = Project(**table, exceptions=exceptions)
        except TypeError as failure:
            raise ValueError(f"{path}, {table.get('name')}: {failure}") from failure
        if project.models not in ("moved", "made"):
            raise ValueError(f'{path}, {project.name}: models is "moved" or "made", not {project.models!r}')
        found[project.name] = project
    return found
