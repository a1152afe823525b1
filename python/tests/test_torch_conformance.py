"""A sample of `make test-conformance`, and how it counts what fails."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tomllib")
pytest.importorskip("expecttest")

PACKAGE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGE))

from conformance import fuzzing, machine, programs, runner  # noqa: E402
from conformance.case import Case  # noqa: E402
from conformance.outcomes import Outcome, difference, outcome_of, same_bits  # noqa: E402
from conformance.places import PLAIN, Place, places  # noqa: E402
from conformance.report import Known, Report  # noqa: E402
from conformance.runner import Result, Run, Selection, Task  # noqa: E402
from cotensor.tensorref import simulated_device  # noqa: E402

TASK = Task("operators", "add", "float32")


@pytest.mark.timeout(300)
def test_sample_reaches_its_floors():
    command = [sys.executable, "-m", "conformance", "--sample"]
    done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.timeout(300)
def test_random_programs_run_as_on_the_host():
    command = [sys.executable, "-m", "conformance", "programs", "--count", "40", "--seed", "0"]
    done = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "40 programs with" in done.stdout


def test_a_seed_gives_the_same_program_and_its_name_a_part_of_it():
    whole, again = programs.program_of("7"), programs.program_of("7")
    assert whole == again and whole != programs.program_of("8")
    assert programs.program_of(whole.name) == whole
    parts = list(whole.parts())
    assert len(parts[0].steps) == 0 and any([len(part.layers) == len(whole.layers) - 1 for part in parts])
    assert all([programs.program_of(part.name) == part for part in parts if part.places])


def test_a_mismatch_is_minimized(monkeypatch, capsys):
    """A kind of step that shows where it runs, among others that show nothing."""
    shows = machine.Kind(1.0, lambda at, a, b, c: at.show(at.place.name == "genoa"))
    nothing = machine.Kind(1.0, lambda at, a, b, c: None)
    monkeypatch.setattr(programs, "KINDS", {"faulty": shows, "forward": nothing, **{f"other {n}": nothing for n in range(3)}})
    monkeypatch.setattr(machine, "KINDS", programs.KINDS)
    simulated_device()
    threads = torch.get_num_threads()
    # Forked processes have no other threads of PyTorch.
    torch.set_num_threads(1)
    try:
        run = Run([PLAIN], Selection(), 2, 60.0)
        texts = fuzzing.fuzz(run, Report(Known("whole")), 0, 12, 10, None)
    finally:
        torch.set_num_threads(threads)
    assert len(texts) == 1 and texts[0].count("step ") == 1 and "faulty" in texts[0] and "layer" not in texts[0]
    assert "12 programs with" in capsys.readouterr().out


class Faulty:
    """A database with a case that aborts, one that hangs, and others."""

    @staticmethod
    def cases(name, dtype):
        def shows(value):
            return lambda place, outcome: outcome.show("result", value if place == PLAIN else 1)

        def aborts():
            # pytest's handler would print all frames.
            faulthandler.disable()
            os.abort()

        yield Case("equal", {"forward": shows(1)})
        yield Case("abort", {"forward": lambda place, outcome: aborts() if place == PLAIN else None})
        yield Case("hang", {"forward": lambda place, outcome: time.sleep(600) if place == PLAIN else None})
        yield Case("different", {"forward": shows(2)})
        clock = iter(range(1000))
        yield Case("changes", {"forward": lambda place, outcome: outcome.show("result", next(clock))})


def test_the_seed_chooses_the_places_of_each_case():
    all_, cases = places(["genoa", "flow", "lru", "cpu", "references"]), [Case(str(number), {}) for number in range(100)]

    def chosen(seed, count):
        selection = Selection(seed=seed, places_max=count)
        return [selection.places(TASK, case, all_) for case in cases]

    assert chosen(0, 3) == chosen(0, 3) != chosen(1, 3)
    assert all([len(set(found)) == 3 for found in chosen(0, 3)])
    assert {place for found in chosen(0, 3) for place in found} == set(all_), "together, the cases have all places"
    assert all([set(found) == set(all_) for found in chosen(0, 99)])
    selection = Selection(repeated=["plain", "genoa"])
    assert len(selection.places(TASK, cases[0], all_, 0)) == len(all_)
    assert {place.name for place in selection.places(TASK, cases[1], all_, 1)} == {"plain", "genoa"}
    selection = Selection(places_max=3, full_cases=90)
    counts = [len(selection.places(TASK, case, all_, number)) for number, case in enumerate(cases)]
    assert counts == [3] * 90 + [1] * 10


def test_abort_and_hang_are_failures_of_one_case(monkeypatch):
    monkeypatch.setattr(runner, "database", lambda name: Faulty)
    run = Run([PLAIN], Selection(), 1, 5.0)
    found = {result.label: result.differing for result in run.results([TASK], time.monotonic() + 60)}
    assert list(found) == ["equal", "abort", "hang", "different", "changes"]
    assert found["equal"] == {"plain": []}
    [(variant, cause)] = found["abort"]["plain"]
    assert variant == "forward" and cause.startswith("abort: SIGABRT")
    assert found["hang"]["plain"] == [("forward", "takes too long")]
    assert found["different"]["plain"] == [("forward", "result: value or structure")]
    assert found["changes"] is None


class Ends:
    """Memory of a process that ends after so many writes."""

    def __init__(self, memory, count):
        self.memory, self.left = memory, count

    def __getitem__(self, place):
        return self.memory[place]

    def __setitem__(self, place, value):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.memory[place] = value


@pytest.mark.parametrize("count", range(4))
def test_a_process_that_ends_while_it_reports_progress_has_reported_the_one_before(count):
    text = runner._SharedText()
    text.write(b"first")
    text.write(b"second")
    text._memory = Ends(text._memory, count)
    try:
        text.write(b"third")
    except KeyboardInterrupt:
        assert text.read() == b"second"
    else:
        assert text.read() == b"third"


def test_report_counts_exceptions_and_fails_below_the_floor(tmp_path):
    path = tmp_path / "exceptions.toml"
    path.write_text(
        """
        wanted = { operators = 100.0 }
        floor.whole.operators = { plain = 50.0 }
        [[exception]]
        database = "operators"
        names = ["add"]
        places = ["flow"]
        variants = ["out"]
        cause = "elements"
        reason = "a test"
        """
    )
    report = Report(Known("whole", path))
    report.add(Result(TASK, "0", {"plain": [("out", "result: elements")], "flow half": [("out", "result: elements")]}))
    report.add(Result(TASK, "1", {"plain": [], "flow half": []}))
    report.add(Result(TASK, "2", None))
    assert report.known.reason("operators", "add", "flow half", "forward", "result: elements") is None
    assert report.known.reason("operators", "add", "flow half", "out", "result: elements") == "a test"
    assert report.reasons == {("operators", "a test"): {"flow half": 1}}
    assert "excepted in operators: flow half 1: a test" in report.lines()
    assert report.failures() == []
    report.add(Result(TASK, "3", {"plain": [("out", "shape")], "flow half": [("out", "shape")]}))
    assert report.failures() == [
        "operators flow half: 66.67 % is below 100.0 %",
        "operators plain: 33.33 % is below 50.0 %",
    ]
    assert report.skipped == {"operators": 1}


def test_an_exception_of_rounding_hides_no_other_values(tmp_path):
    def cause(one, other):
        outcomes = [Outcome(), Outcome()]
        for outcome, value in zip(outcomes, (one, other)):
            outcome.show("gradient of layers.0.bias", value)
        return difference(*outcomes)

    path = tmp_path / "exceptions.toml"
    path.write_text(
        """
        wanted = {}
        [[exception]]
        database = "operators"
        cause = "gradient of layers.0."
        cause_end = "elements, close"
        reason = "rounding"
        """
    )
    known, sums = Known("whole", path), torch.tensor([100.0, 1e-6, float("inf")])
    rounded = cause(sums + torch.tensor([1e-5, 1e-4, 0.0]), sums)
    assert rounded == "gradient of layers.0.bias: elements, close"
    assert known.reason("operators", "add", "flow half", "forward", rounded) == "rounding"
    others = [cause(sums * 1.01, sums), cause(sums.double(), sums), cause(sums[:2], sums), cause(-sums, sums)]
    others += [cause(torch.tensor([True]), torch.tensor([False])), cause(torch.tensor([1]), torch.tensor([2]))]
    assert [known.reason("operators", "add", "flow half", "forward", one) for one in others] == [None] * 6
    half = sums.bfloat16()
    assert cause(half * 1.01, half).endswith("elements, close") and not cause(half * 1.1, half).endswith("close")


def test_an_exception_of_a_step_is_one_of_programs_with_it(tmp_path):
    path = tmp_path / "exceptions.toml"
    path.write_text(
        """
        wanted = {}
        [[exception]]
        database = "programs"
        steps = ["forward out of memory"]
        cause = "saved"
        reason = "repeated"
        """
    )
    known, found = Known("whole", path), set()
    for seed in range(40):
        has_step = any([step.kind == "forward out of memory" for _, step in programs.program_of(str(seed)).steps])
        assert known.reason("programs", str(seed), "flow half", "program", "saved") == ("repeated" if has_step else None)
        found.add(has_step)
    assert found == {False, True} and known.reason("operators", "add", "flow half", "forward", "saved") is None


def test_elements_are_equal_by_bits_except_nan():
    nan = float("nan")
    assert same_bits(torch.tensor([nan, 0.0]), torch.tensor([nan, 0.0]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.tensor([1.0 + 0j]), torch.tensor([1.0 - 0j * 0 + 1e-9j]))


def test_outcomes_differ_by_error_device_and_dtype():
    def shows(value):
        return outcome_of(lambda outcome: outcome.show("result", value))

    def raises(error):
        def program(outcome):
            raise error

        return outcome_of(program)

    one = torch.ones(2)
    assert difference(shows(one), shows(one), shows(one)) is None
    simulated_device()
    assert difference(shows(one), shows(one), shows(one.to("simulated"))) == "result: shows cpu instead of simulated"
    assert difference(shows(one.double()), shows(one)) == "result: dtype torch.float64 instead of torch.float32"
    assert difference(raises(ValueError("x")), Outcome()) == "raises ValueError: x"
    assert difference(Outcome(), raises(ValueError("x"))) == "no ValueError: x"
    assert difference(raises(ValueError("on cpu 1")), raises(ValueError("on simulated:0 2"))) is None


def test_place_moves_copies():
    simulated_device()
    leaf = torch.ones(2, requires_grad=True)
    [moved] = Place("flow", "half").move([leaf])
    assert moved.device.type == "simulated" and moved.is_leaf and moved.requires_grad
