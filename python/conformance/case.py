"""A sample of a database, as programs that run in each place."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

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
    progress: Callable[[str, str], None] = field(default=lambda variant, place: None)

    def run(self, places: List[Place]) -> Optional[Dict[str, List[Tuple[str, str]]]]:
        """What differs from the reference in each place, by variant. None: the reference's results differ between two runs."""
        places = [place for place in places if place != self.reference]
        differing: Dict[str, List[Tuple[str, str]]] = {str(place): [] for place in places}
        ran = False
        for name in self.variants:
            expected = self._outcome(name, self.reference)
            found = self._differing(name, places, expected)
            # A second run of the reference, only where it decides something: it takes as long as that of a place.
            if found and difference(self._outcome(name, self.reference), expected) is not None:
                continue
            ran = True
            for place, text in found.items():
                differing[place].append((name, text))
        return differing if ran else None

    def _differing(self, name: str, places: List[Place], expected: Outcome) -> Dict[str, str]:
        """What differs from the expected results of a variant, by place."""
        plain = expected if self.reference == PLAIN else self._outcome(name, PLAIN)
        as_plain = difference(plain, expected)
        differing = {}
        for place in places:
            if place == PLAIN:
                found = as_plain
            else:
                found = difference(self._outcome(name, place), expected, None if place.has_references else plain)
                found = f"as plain: {found}" if found is not None and found == as_plain else found
            if found is not None:
                differing[str(place)] = found
        return differing

    def _outcome(self, name: str, place: Place) -> Outcome:
        self.progress(name, str(place))
        variant = self.variants[name]

        def program(outcome: Outcome) -> Any:
            with same_algorithms():
                variant(place, outcome)

        return outcome_of(program)


@contextlib.contextmanager
def same_algorithms() -> Iterator[None]:
    """All devices have the algorithms of the CPU, where PyTorch chooses by the type of the device: others round differently."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        options: Any = getattr(torch.nn, "LinearCrossEntropyOptions", None)
        if options is not None:
            # The size of chunks, and the dtype in which they are added.
            adjust = options._adjust

            def as_on_host(self: Any, *args: Any, **kwargs: Any) -> Any:
                return adjust(self, *args, **{**kwargs, "device": torch.device("cpu")})

            stack.enter_context(mock.patch.object(options, "_adjust", as_on_host))
        # Not `functional.cross_entropy`, which names itself to sessions.
        loss = torch._C._nn.cross_entropy_loss

        def as_subclass(*args: Any, **kwargs: Any) -> Any:
            with SubclassAlgorithms():
                return loss(*args, **kwargs)

        stack.enter_context(mock.patch.object(torch._C._nn, "cross_entropy_loss", as_subclass))
        yield


class SubclassAlgorithms(TorchDispatchMode):
    """Functions of PyTorch that add other elements for subclasses of tensors, such as those of the simulated device, than for
    tensors of the host, take the way of subclasses everywhere: it rounds differently."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))
