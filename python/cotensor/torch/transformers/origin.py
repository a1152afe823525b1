"""The origin of a model's weights: a checkpoint's files, or a configuration and the state of torch's random number generator."""

from __future__ import annotations

import base64
import dataclasses
import enum
import inspect
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import numpy as np
import torch

from ..._native import content_hash

#: The key of the note in the manifest's source.
ORIGIN = "origin"
#: The libraries whose classes are known by their versions.
_LIBRARIES = ("torch.", "transformers.", "builtins")


@dataclasses.dataclass
class Origin:
    """The origin of a model under construction. One without files and configuration equals no other."""

    #: For messages.
    described: str
    #: The checkpoint's files, and their stamps before they are read.
    files: List[Path] = dataclasses.field(default_factory=list)
    stamps: List[List[int]] = dataclasses.field(default_factory=list)
    #: The argument of `from_pretrained` that renames weights.
    key_mapping: str = ""
    #: The hash of the class, the configuration and the arguments, which random weights depend on.
    config: str = ""
    #: Where random weights are made.
    device: torch.device = torch.device("cpu")
    #: The states of the generators before the model is made: :func:`generator_state`.
    generator: torch.Tensor = dataclasses.field(default_factory=torch.get_rng_state)

    def on(self, device: torch.device) -> "Origin":
        """The origin of a model that is made on a device."""
        if device.type != "cuda":
            return self
        return dataclasses.replace(self, device=device, generator=generator_state(device))

    def of_files(self, paths: Any, model: Any) -> "Origin":
        """The origin of a model that `from_pretrained` has made and not yet loaded."""
        files = sorted(Path(os.path.abspath(path)) for path in paths)
        names = ", ".join(file.name for file in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        described = f"the files {names} of {files[0].parent}" + (" with a key_mapping" if self.key_mapping else "")
        config = _with_parts(_config_hash(type(model), model.config, {}), model)
        return dataclasses.replace(self, described=described, files=files, stamps=_stamps(files), config=config)

    def of_config(self, kind: Any, config: Any, arguments: Mapping[str, Any]) -> "Origin":
        """The origin of `from_config`; once the model is made, with :meth:`of_parts`."""
        return self._of_config_hash(kind, _config_hash(kind, config, arguments))

    def of_parts(self, model: Any) -> "Origin":
        """This origin with the classes of the modules that a model consists of, perhaps on the meta device."""
        return self._of_config_hash(type(model), _with_parts(self.config, model))

    def _of_config_hash(self, kind: Any, config: str) -> "Origin":
        made = dataclasses.replace(self, config=config)
        made.described = f"{kind.__name__} from a configuration ({made.config[:8]}, generator {made._random_hash()[:8]})"
        return made

    def own_key(self, with_generator: bool) -> str:
        """Tells the names of a block's further models apart. The same in every process."""
        parts: List[Any] = [self.key_mapping]
        parts += [[file.name, stamp[0], stamp[3]] for file, stamp in zip(self.files, self.stamps)]
        if with_generator or not self.files:
            parts.append(self._random_hash())
        return json.dumps(parts)

    def note(self, is_random: bool) -> Dict[str, Any]:
        """What a publication keeps, once the model is made. ``is_random`` says that not all weights are from files."""
        note: Dict[str, Any] = {"described": self.described, "key_mapping": self.key_mapping}
        if self.files:
            contents = [_content(file) for file in self.files]
            if _stamps(self.files) == self.stamps:
                note["stamps"], note["contents"] = self.stamps, contents
            else:
                note["described"] += ", which changed while they were read"
        if is_random:
            after = base64.b64encode(generator_state(self.device).numpy().tobytes()).decode()
            note["generator"] = {"before": self._random_hash(), "after": after}
        return {ORIGIN: note}

    def other_than(self, source: Mapping[str, Any]) -> Optional[str]:
        """The origin of the published weights, in words; ``None`` if they have the values that this model would get."""
        note = source.get(ORIGIN)
        if not isinstance(note, dict):
            return "a call of publish(), or an earlier version of Cotensor"
        described, generator = str(note.get("described")), note.get("generator")
        # A state dict has no configuration here.
        if not self.config or not self._has_files_of(note) or (generator is None and not self.files):
            return described
        if generator is None or generator["before"] == self._random_hash():
            return None
        random = ", with random weights of another seed, generator state, class or configuration" if self.files else ""
        return described + random

    def _has_files_of(self, note: Mapping[str, Any]) -> bool:
        stamps = note.get("stamps", [])
        if note.get("key_mapping") != self.key_mapping or not (stamps or "generator" in note):
            return False
        if stamps == self.stamps:
            return True
        # The same files can lie in another folder, or in another container.
        same_sizes = [stamp[0] for stamp in stamps] == [stamp[0] for stamp in self.stamps]
        return same_sizes and note.get("contents") == [_content(file) for file in self.files]

    def _random_hash(self) -> str:
        return content_hash("cotensor.torch: random weights", self.config, self.generator)


def generator_state(device: torch.device) -> torch.Tensor:
    """The state of the host's generator, followed by that of a GPU if ``device`` is one: random weights may come from both."""
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


def set_generator_state(state: torch.Tensor, device: torch.device) -> None:
    """Sets what :func:`generator_state` gave for the same device."""
    count = torch.get_rng_state().numel()
    torch.set_rng_state(state[:count])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[count:], device)


def state_after(source: Mapping[str, Any]) -> Optional[torch.Tensor]:
    """The :func:`generator_state` after the published model was made; ``None`` if it had no random weights."""
    generator = source.get(ORIGIN, {}).get("generator")
    if generator is None:
        return None
    return torch.frombuffer(bytearray(base64.b64decode(generator["after"])), dtype=torch.uint8)


def _stamps(files: List[Path]) -> List[List[int]]:
    """The size of each file, its device, its number there, and its times."""
    found = [os.stat(file) for file in files]
    return [[one.st_size, one.st_dev, one.st_ino, one.st_mtime_ns, one.st_ctime_ns] for one in found]


def _content(file: Path) -> str:
    mapped = np.memmap(file, np.uint8, "r") if os.stat(file).st_size else np.empty(0, np.uint8)
    return content_hash("cotensor.torch: file", mapped)


def _config_hash(kind: Any, config: Any, arguments: Mapping[str, Any]) -> str:
    # A program that has a model of it has imported it.
    import transformers

    fields = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    own = _own_classes(kind)
    made_of = [
        torch.__version__,
        transformers.__version__,
        f"{kind.__module__}.{kind.__qualname__}",
        *map(_code, own),
        _words(fields),
        _words(dict(arguments)),
        str(torch.get_default_dtype()),
    ]
    return content_hash("cotensor.torch: config", json.dumps(made_of))


def _own_classes(kind: Any) -> List[Any]:
    """A class and its bases, without those of libraries."""
    return [part for part in kind.__mro__ if not f"{part.__module__}.".startswith(_LIBRARIES)]


def _with_parts(config: str, model: Any) -> str:
    """The hash of a model's class and configuration, together with the program's classes of its modules."""
    parts = {part for module in model.modules() for part in _own_classes(type(module))} - set(type(model).__mro__)
    code = sorted([f"{part.__module__}.{part.__qualname__}", _code(part)] for part in parts)
    return content_hash("cotensor.torch: parts", config, json.dumps(code)) if code else config


def _code(kind: Any) -> str:
    """The text of a class of the program, which can be edited between two runs."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def _words(value: Any) -> Any:
    """A value as JSON, the same in every process."""
    if isinstance(value, Mapping):
        return sorted(([repr(key), _words(item)] for key, item in value.items()), key=lambda pair: str(pair[0]))
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [_words(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, enum.Enum, Path)):
        return f"{type(value).__name__} {value}"
    to_dict = getattr(value, "to_dict", None)
    return [type(value).__qualname__, _words(to_dict()) if callable(to_dict) else ""]
