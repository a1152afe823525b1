"""Runs the programs of examples/first_week at a small size, and counts their lines."""

from __future__ import annotations

import ast
import subprocess
import sys
import tokenize
from pathlib import Path

from conftest import REPOSITORY, Daemon
from functions_common import TIMEOUT_S, environment

FIRST_WEEK = REPOSITORY / "examples" / "first_week"
#: The most lines that a program with Cotensor has more than the usual one.
MORE_MAX = 3
#: Tokens that make no line of code.
NO_CODE = {getattr(tokenize, kind) for kind in "COMMENT NL NEWLINE INDENT DEDENT ENCODING ENDMARKER".split()}


def lines_of(program: Path) -> int:
    """The lines of a program, without empty lines, comments and its documentation."""
    first = ast.parse(program.read_text()).body[0]
    documented = first.end_lineno if isinstance(first, ast.Expr) else 0
    lines: set = set()
    with program.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
    return len([line for line in lines if line > (documented or 0)])


def check_pair(name: str, size: int, daemon: Daemon) -> None:
    """Both programs print the same, the one with Cotensor is short, and it leaves nothing in the daemon."""
    programs = [FIRST_WEEK / "without" / name, FIRST_WEEK / name]
    given = environment(COTENSOR_SOCKET=str(daemon.socket))
    command = [[sys.executable, str(program), str(size)] for program in programs]
    printed = [subprocess.check_output(each, env=given, text=True, timeout=TIMEOUT_S) for each in command]
    assert printed[0] == printed[1] and len(printed[0]) > 10
    usual, ours = map(lines_of, programs)
    assert ours <= usual + MORE_MAX, f"{name}: {ours} lines, {usual} without Cotensor"
    row = f"| [{name}]({name}) |"
    table = [line for line in (FIRST_WEEK / "README.md").read_text().splitlines() if line.startswith(row)]
    assert [line.split("|")[-2].strip() for line in table] == [f"{usual}, {ours}"]
    with daemon.connect() as store:
        assert store.names("first week") == []
