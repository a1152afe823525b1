"""Counts and groups results, and compares them with what is known."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

import tomllib

from .programs import program_of
from .runner import Result, Task

KNOWN = Path(__file__).with_name("exceptions.toml")
#: Tasks whose times are printed.
_SLOWEST = 10
#: Rows of a database and a place.
_Row = Tuple[str, str]


class Known:
    """exceptions.toml: mismatches that have a reason, and the shares that the "whole" or the "sample" has to reach."""

    def __init__(self, run: str, path: Path = KNOWN) -> None:
        data = tomllib.loads(path.read_text())
        self.wanted: Dict[str, float] = data["wanted"]
        self.floors: Dict[str, Dict[str, float]] = data.get("floor", {}).get(run, {})
        self._exceptions: List[Dict[str, Any]] = data.get("exception", [])

    def reason(self, database: str, name: str, place: str, variant: str, cause: str) -> Optional[str]:
        """The reason of a mismatch, if it is an exception."""
        found = [
            one["reason"]
            for one in self._exceptions
            if one["database"] == database
            and name in one.get("names", [name])
            and one.get("cause", "") in cause
            and cause.endswith(one.get("cause_end", ""))
            and _has_step(database, name, one.get("steps", []))
            and place.split()[0] in one.get("places", [place.split()[0]])
            and variant in one.get("variants", [variant])
        ]
        return found[0] if found else None


def _has_step(database: str, name: str, kinds: List[str]) -> bool:
    """Whether a random program has a step of one of some kinds, if there are some."""
    return not kinds or (database == "programs" and any([one.kind in kinds for _, one in program_of(name).steps]))


class Report:
    """The results of a run."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.passed: Dict[_Row, int] = collections.Counter()
        self.total: Dict[_Row, int] = collections.Counter()
        self.excepted: Dict[_Row, int] = collections.Counter()
        self.skipped: Dict[str, int] = collections.Counter()
        #: Of one process, by task.
        self.seconds: Dict[Task, float] = collections.defaultdict(float)
        #: The excepted samples by database, reason and place; one with several reasons counts for each.
        self.reasons: Dict[Tuple[str, Optional[str]], Dict[str, int]] = collections.defaultdict(collections.Counter)
        #: By database, variant and cause: the places, and the cases.
        self.groups: Dict[Tuple[str, str, str], Dict[str, List[str]]] = collections.defaultdict(dict)

    def add(self, result: Result) -> None:
        """Counts a result."""
        task = result.task
        self.seconds[task] += result.seconds
        if result.differing is None:
            self.skipped[task.database] += 1
            return
        for place, differing in result.differing.items():
            row = (task.database, place)
            self.total[row] += 1
            reasons = [self.known.reason(task.database, task.name, place, variant, cause) for variant, cause in differing]
            open_ = [one for one, reason in zip(differing, reasons) if reason is None]
            self.passed[row] += not differing
            self.excepted[row] += bool(differing) and not open_
            for reason in set(reasons) if not open_ else ():
                self.reasons[(task.database, reason)][place] += 1
            for variant, cause in open_:
                cases = self.groups[(task.database, variant, cause)].setdefault(place, [])
                cases.append(f"{task.name}[{result.label}, {task.dtype}]")

    def failures(self) -> List[str]:
        """What makes the run fail: rows below their floors, or, without one, mismatches without a reason."""
        found = []
        for row, total in sorted(self.total.items()):
            share = 100 * (self.passed[row] + self.excepted[row]) / total
            floor = self.known.floors.get(row[0], {}).get(row[1], self.known.wanted[row[0]])
            if share < floor:
                found.append(f"{row[0]} {row[1]}: {share:.2f} % is below {floor} %")
        return found

    def lines(self, groups_max: int = 60) -> List[str]:
        """The report as text."""
        text = [f"{'database':<12}{'place':<16}{'passed':>8}{'excepted':>10}{'total':>8}{'share':>9}"]
        for row, total in sorted(self.total.items()):
            share = 100 * (self.passed[row] + self.excepted[row]) / total
            text.append(f"{row[0]:<12}{row[1]:<16}{self.passed[row]:>8}{self.excepted[row]:>10}{total:>8}{share:>8.2f}%")
        text += [f"skipped in {name}: {count}, which differ between two runs on the host" for name, count in self.skipped.items()]
        for (database, reason), counts in sorted(self.reasons.items(), key=lambda item: -sum(item[1].values())):
            text.append(f"excepted in {database}: {', '.join([f'{place} {count}' for place, count in counts.items()])}: {reason}")
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])[:_SLOWEST]
        text += [f"{seconds:.0f} s for {task.database} {task.name} in {task.dtype}" for task, seconds in slowest]
        order = sorted(self.groups.items(), key=lambda item: -sum([len(cases) for cases in item[1].values()]))
        for (database, variant, cause), cases in order[:groups_max]:
            names = sorted(self._names(cases))
            places = ", ".join([f"{place} {len(labels)}" for place, labels in cases.items()])
            example = next(iter(cases.values()))[0]
            text.append(f"\n{database}, {variant}: {cause}\n  {places}")
            text.append(f"  {len(names)} names, such as {', '.join(names[:6])}; {example}")
        if len(order) > groups_max:
            text.append(f"\nand {len(order) - groups_max} groups more: --json")
        return text

    def data(self) -> Dict[str, Any]:
        """The report as data."""
        rows = [
            {"database": row[0], "place": row[1], "passed": self.passed[row], "excepted": self.excepted[row], "total": total}
            for row, total in sorted(self.total.items())
        ]
        groups = [
            {"database": database, "variant": variant, "cause": cause, "cases": cases}
            for (database, variant, cause), cases in self.groups.items()
        ]
        reasons = [{"database": key[0], "reason": key[1], "places": counts} for key, counts in self.reasons.items()]
        return {"rows": rows, "reasons": reasons, "skipped": self.skipped, "groups": groups, "failures": self.failures()}

    @staticmethod
    def _names(cases: Dict[str, List[str]]) -> Set[str]:
        return {label.split("[")[0] for labels in cases.values() for label in labels}
