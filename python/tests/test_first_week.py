"""The programs of examples/first_week, beside the usual ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")

from conftest import Daemon  # noqa: E402
from first_week_common import FIRST_WEEK, check_pair, lines_of  # noqa: E402

#: Each program of numpy with a small size.
SIZES = {"pool.py": 8, "write_back.py": 8, "watch.py": 30, "agent_tools.py": 40}


@pytest.mark.parametrize("name", SIZES)
def test_program_prints_the_same_in_few_more_lines(name: str, daemon: Daemon) -> None:
    check_pair(name, SIZES[name], daemon)


def test_every_program_has_a_pair() -> None:
    programs = {path.name for path in FIRST_WEEK.glob("*.py")}
    # test_torch_loader.py runs the one that needs torch.
    assert programs == {path.name for path in (FIRST_WEEK / "without").glob("*.py")} == {*SIZES, "data_loader.py"}


def test_lines_are_counted_without_comments_and_documentation(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    text = '"""Text\n\nover lines.\n"""\n\nimport os\n# comment\n\n\ndef f():\n    return """a\n    b"""  # comment\n'
    program.write_text(text)
    assert lines_of(program) == 4
