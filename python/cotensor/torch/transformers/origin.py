"""The origin of a model's weights: a checkpoint's files, or a configuration and the state of torch's random number generator."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import numpy as np
import torch

from ..._native import content_hash

#: The key of the note in the manifest's source.
ORIGIN = "origin"


@dataclasses.dataclass
class Origin:
    """The origin of a model under construction. One without files and configuration equals no other."""

    #: For messages.
    described: str
    #: The checkpoint's files.
    files: List[Path] = dataclasses.field(default_factory=list)
    #: The hash of the class, the configuration and the arguments of `from_config`.
    config: Optional[str] = None
    #: The generator's state before the model is made.
    generator: torch.Tensor = dataclasses.field(default_factory=torch.get_rng_state)

    @classmethod
    def of_files(cls, paths: Any) -> "Origin":
        """The origin of `from_pretrained`."""
        files = sorted(Path(os.path.abspath(path)) for path in paths)
        names = ", ".join(file.name for file in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        return cls(f"the files {names} of {files[0].parent}", files=files)

    @classmethod
    def of_config(cls, kind: Any, config: Any, arguments: Mapping[str, Any]) -> "Origin":
        """The origin of `from_config`."""
        fields = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
        made_of = [f"{kind.__module__}.{kind.__qualname__}", fields, dict(arguments), torch.get_default_dtype()]
        config_hash = content_hash("cotensor.torch: config", json.dumps(made_of, sort_keys=True, default=str))
        made = cls("", config=config_hash)
        made.described = f"{kind.__name__} from a configuration ({config_hash[:8]}, generator {made._generator_hash()[:8]})"
        return made

    def own_key(self, with_generator: bool) -> str:
        """Tells the names of a block's further models apart. The same in every process."""
        found = [(file.name, os.stat(file)) for file in self.files]
        parts: List[Any] = [self.config or "", *([name, status.st_size, status.st_mtime_ns] for name, status in found)]
        if with_generator or self.config:
            parts.append(self._generator_hash())
        return json.dumps(parts)

    def note(self, is_random: bool) -> Dict[str, Any]:
        """What a publication keeps, once the model is made. ``is_random`` says that not all weights are from files."""
        note: Dict[str, Any] = {"described": self.described}
        if self.config:
            note["config"] = self.config
        if self.files:
            note["stamps"], note["contents"] = self._stamps(), self._contents()
        if is_random:
            after = base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()
            note["generator"] = {"before": self._generator_hash(), "after": after}
        return {ORIGIN: note}

    def difference(self, source: Mapping[str, Any]) -> Optional["Difference"]:
        """How the published weights differ in their origin; ``None`` if they have the values that this model would get."""
        note = source.get(ORIGIN)
        if not self.files and not self.config:
            return Difference(str((note or {}).get("described", "a call of publish()")), False)
        if not isinstance(note, dict):
            return Difference("a call of publish(), or an earlier version of Cotensor", False)
        if note.get("config") != self.config or not self._has_files_of(note):
            return Difference(str(note.get("described")), False)
        generator = note.get("generator")
        if generator is not None and generator["before"] != self._generator_hash():
            return Difference(f"{note.get('described')}, with random weights of another seed or generator state", True)
        return None

    def _has_files_of(self, note: Mapping[str, Any]) -> bool:
        stamps = note.get("stamps", [])
        if stamps == self._stamps():
            return True
        # The same files can lie in another folder, or in another container.
        return sizes_of(stamps) == sizes_of(self._stamps()) and bool(note.get("contents") == self._contents())

    def _stamps(self) -> List[List[int]]:
        """The size of each file, its device, its number there, and its times."""
        found = [os.stat(file) for file in self.files]
        return [[one.st_size, one.st_dev, one.st_ino, one.st_mtime_ns, one.st_ctime_ns] for one in found]

    def _contents(self) -> List[str]:
        def content(file: Path) -> str:
            mapped = np.memmap(file, np.uint8, "r") if os.stat(file).st_size else np.empty(0, np.uint8)
            return content_hash("cotensor.torch: file", mapped)

        return [content(file) for file in self.files]

    def _generator_hash(self) -> str:
        return content_hash("cotensor.torch: generator", self.generator)


@dataclasses.dataclass
class Difference:
    """Why published weights are not those of a model."""

    #: The origin of the published weights, for messages.
    described: str
    #: Whether only random weights differ.
    only_random: bool


def sizes_of(stamps: List[List[int]]) -> List[int]:
    """The sizes of files."""
    return [size for size, *_ in stamps]


def state_after(source: Mapping[str, Any]) -> Optional[torch.Tensor]:
    """The generator's state after the published model was made; ``None`` if it had no random weights."""
    generator = source.get(ORIGIN, {}).get("generator")
    if generator is None:
        return None
    return torch.frombuffer(bytearray(base64.b64decode(generator["after"])), dtype=torch.uint8)
