"""Random programs: a seed gives layers, steps and places.

The name "7" is the whole program of seed 7, and "7/0.2/1.4/flow half" a part of it: layers 0 and 2, steps 1 and 4, one place.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from typing import Iterator, List, Tuple

import torch

from . import changes as changes
from . import steps as steps
from .case import Case
from .layers import LAYERS, Model, make, tied
from .machine import KINDS, Machine
from .outcomes import Outcome
from .places import HOST, PLAIN, Place

_STRATEGIES = ("genoa", "flow", "lru", "pinned", "cpu")
_MEMORIES = ("least", "10%", "25%", "half", "75%", "ample")
_LAYERS_MAX = 5
_STEPS_MAX = 16


@dataclass(frozen=True)
class Step:
    """A kind of step with its numbers."""

    kind: str
    numbers: Tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kind} {self.numbers}"


@dataclass(frozen=True)
class Program:
    """A model and what is done with it. Layers and steps have the numbers that they had in the whole program."""

    seed: int
    layers: Tuple[Tuple[int, str], ...]
    steps: Tuple[Tuple[int, Step], ...]
    places: Tuple[Place, ...]

    @property
    def name(self) -> str:
        """The name, for :func:`program_of`."""
        kept = [".".join([str(number) for number, _ in part]) for part in (self.layers, self.steps)]
        return "/".join([str(self.seed), *kept, ",".join(map(str, self.places))])

    @property
    def reference(self) -> Place:
        """Where the results are expected: those of ``autocast`` are the device's."""
        return PLAIN if any([one.kind == "forward autocast" for _, one in self.steps]) else HOST

    def lines(self) -> List[str]:
        """The program as text."""
        layers = [f"  layer {number}: {name}" for number, name in self.layers]
        return [*layers, *[f"  step {number}: {one}" for number, one in self.steps]]

    def parts(self) -> Iterator["Program"]:
        """Programs without some of the steps or layers, those that lack many first."""
        for field in ("steps", "layers"):
            all_ = getattr(self, field)
            size = len(all_)
            while size > 0:
                for start in range(0, len(all_), size):
                    yield replace(self, **{field: all_[:start] + all_[start + size :]})
                size //= 2

    def run(self, place: Place, outcome: Outcome) -> None:
        """Runs in a place."""
        warnings.simplefilter("ignore")
        model = Model(*[make(name, 1000 * self.seed + number) for number, name in self.layers])
        machine = Machine(model, place, outcome)
        if place == PLAIN:
            with tied(model):
                model.to("simulated")
        machine.enter()
        try:
            for number, one in self.steps:
                machine.run(number, one.kind, one.numbers)
            machine.show_state("state")
        finally:
            machine.leave()
        machine.show_state("state after the block")


def names() -> List[str]:
    """The first seeds."""
    return [str(seed) for seed in range(100)]


def program_of(name: str) -> Program:
    """The program with a name."""
    seed, *kept = name.split("/")
    whole = _draw(int(seed))
    if not kept:
        return whole
    layers, steps = [[int(number) for number in part.split(".") if number] for part in kept[:2]]
    return replace(
        whole,
        layers=tuple([whole.layers[number] for number in layers]),
        steps=tuple([whole.steps[number] for number in steps]),
        places=tuple([Place(*one.split()) for one in kept[2].split(",")]),
    )


def cases(name: str, dtype: torch.dtype) -> Iterator[Case]:
    """The program with a name."""
    program = program_of(name)
    yield Case(
        program.name,
        {"program": program.run},
        program.reference,
        places=[PLAIN, *[place for place in program.places if place != PLAIN]],
    )


def _draw(seed: int) -> Program:
    chance = random.Random(seed)
    weights = {kind: one.weight for kind, one in KINDS.items()}
    available = list(LAYERS)
    if chance.random() < 0.15:
        # Sums of three gradients in a lower dtype differ too much.
        weights["forward autocast"], weights["penalty"] = 6.0, 0.0
        # PyTorch casts inside of its kernel, which the simulated device runs as on the CPU.
        available.remove("bilinear")
    kinds = sorted(weights)

    def step() -> Step:
        [kind] = chance.choices(kinds, [weights[kind] for kind in kinds])
        return Step(kind, (chance.randrange(1000), chance.randrange(1000), chance.randrange(1000)))

    layers = [chance.choice(available) for _ in range(chance.randint(1, _LAYERS_MAX))]
    steps = [step() for _ in range(chance.randint(3, _STEPS_MAX))]
    # A program without results has little to compare.
    steps.insert(0, Step("forward", (chance.randrange(1000), 0, 0)))
    places = [Place(name, "ample" if name == "cpu" else chance.choice(_MEMORIES)) for name in chance.sample(_STRATEGIES, 3)]
    return Program(seed, tuple(enumerate(layers)), tuple(enumerate(steps)), tuple(places))
