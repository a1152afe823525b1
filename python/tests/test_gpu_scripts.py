"""The scripts of `make test-gpu` and `make bench-gpu`, without a GPU."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any, Iterator, List

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "gpu"


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module("questions")
    for name in ("questions", "helpers"):
        del sys.modules[name]


@pytest.mark.parametrize(("status", "code"), [("skipped: no time left", 0), ("finished", 0), ("failed", 1)])
def test_only_steps_that_fail_are_a_failure(status: str, code: int, questions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_step(name: str, seconds: float) -> str:
        return "finished" if name == "driver" else status

    monkeypatch.setattr(questions, "run_step", run_step)
    assert questions.main("", 100) == code
    steps = json.loads(Path(questions.REPORT).read_text())["steps"]
    assert len(steps) == len(questions.STEPS) and steps["fork"]["status"] == status


class Answers(contextlib.AbstractContextManager):  # type: ignore[type-arg]
    """A helper process that does all that it is asked."""

    fds: List[int] = []

    def ask(self, *_arguments: Any, **_values: Any) -> int:
        return 1

    attempt = ask

    def __exit__(self, *_exception: object) -> None:
        pass


def test_step_about_writes_has_no_failure_of_its_own(questions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "run_step", lambda name, seconds: "finished")
    questions.main("read_only", 100)
    monkeypatch.setattr(questions, "STEP", "read_only")
    monkeypatch.setattr(questions, "Helper", Answers)
    questions.read_only()
    assert questions.FAILED == []
    findings = json.loads(Path(questions.REPORT).read_text())["steps"]["read_only"]["findings"]
    assert len(findings) == 6
