"""A sample of a database, as programs that run in each place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch.nn.attention import SDPBackend, sdpa_kernel

from .outcomes import Outcome, difference, outcome_of
from .places import HOST, PLAIN, Place

Variant = Callable[[Place, Outcome], None]


@dataclass
class Case:
    """``label`` is the number of the sample; ``variants`` are its programs."""

    label: str
    variants: Dict[str, Variant]
    #: Where the expected results are made.
    reference: Place = HOST
    #: Where it runs; by default, in those of the run.
    places: Optional[List[Place]] = None
    #: Called with the variant and the place before each program.
    progress: Callable[[Tuple[str, str]], None] = field(default=lambda _: None)

    def run(self, places: List[Place]) -> Optional[Dict[str, List[Tuple[str, str]]]]:
        """What differs from the reference in each place, by variant. None: the reference's results differ between two runs."""
        differing: Dict[str, List[Tuple[str, str]]] = {str(place): [] for place in places if place != self.reference}
        by_name = {str(place): place for place in places}
        ran = False
        for name in self.variants:
            expected = self._outcome(name, self.reference)
            if difference(self._outcome(name, self.reference), expected) is not None:
                continue
            ran = True
            plain = expected if self.reference == PLAIN else self._outcome(name, PLAIN)
            as_plain = difference(plain, expected)
            for place in differing:
                shown = None if by_name[place].has_references else plain
                found = as_plain if place == str(PLAIN) else difference(self._outcome(name, by_name[place]), expected, shown)
                if place != str(PLAIN) and found is not None and found == as_plain:
                    found = f"as plain: {found}"
                if found is not None:
                    differing[place].append((name, found))
        return differing if ran else None

    def _outcome(self, name: str, place: Place) -> Outcome:
        self.progress((name, str(place)))
        variant = self.variants[name]

        def program(outcome: Outcome) -> Any:
            with sdpa_kernel(SDPBackend.MATH):
                variant(place, outcome)

        return outcome_of(program)
