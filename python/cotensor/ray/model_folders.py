"""Folders of models, which engines read: the agent's part. They are copied from other nodes once for each node."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, NamedTuple, Optional, Sequence, Set, Tuple, Union

from .._native import content_hash, model_files
from ..errors import CotensorError, InvalidError, IoError, NotFoundError, RefusedError
from .alone import Alone
from .files import FileOf, FileTarget, Hashes, OpenFile, Recent
from .folders import Folders
from .models import sources
from .peers import answer_of, answers, others, unanswered
from .pulls import Pulls

#: An answer to a question for a model whose files are still being hashed. The node is asked again.
HASHING: Literal["hashing"] = "hashing"
#: How long a node hashes before it answers so, and the time until it is asked again, in seconds.
_HASHING_SECONDS, _ASK_INTERVAL = 0.1, 0.5
#: How long a node is asked again, in seconds: files on a disk that hangs are never hashed.
_HASHING_MAX = 1800.0
#: How long an answer is kept for a node that is asking again, in seconds.
_KEPT_SECONDS = 10.0
#: The most entries of each table of folders: by their fingerprints, and by the models that programs have named.
_FOLDERS_MAX = 1024
#: Models whose files are hashed at a time.
_HASHED = 2
#: The path of a model in the hub's cache, by which its name is known.
_OF_HUB = re.compile(r"models--[^/]+/snapshots/[^/]+$")


class Wanted(NamedTuple):
    """A model that a program names."""

    #: A folder, or a name on the hub.
    name: str
    #: The folder to which a relative name is relative.
    base: str
    #: A variant of its graphs, such as ``fp16``.
    variant: Optional[str]


class Folder(NamedTuple):
    """The folder of a model on a node."""

    node: str
    #: The end of its path, by which engines know the model's name.
    end: str
    files: Tuple[FileOf, ...]
    #: Of the end and the files.
    fingerprint: str
    #: Whether it was copied from another node.
    is_copy: bool

    @property
    def origin(self) -> Tuple[str, Tuple[int, int]]:
        """Folders of equal content are one model, also if the node of the first one has ended."""
        return self.fingerprint, (0, 0)

    @property
    def nbytes(self) -> int:
        """The bytes of its files."""
        return sum(file.nbytes for file in self.files)


class Problem(NamedTuple):
    """A node has the model, and cannot send it."""

    node: str
    #: Why.
    text: str


#: What a node says of a model; None if it has none of this name.
Answer = Union[None, Folder, Problem, Literal["hashing"]]


class ModelFolders:
    """Finds the folders of models on this node and on others, and copies those of others here, below ``root``.

    ``keep`` makes a token for each of several open files. ``start`` starts the agents of nodes that do not answer, waits for
    those that are starting, and returns the nodes that have one then: a node on which nothing uses Cotensor can have files.
    """

    def __init__(
        self,
        node: str,
        root: Path,
        pulls: Pulls,
        keep: Callable[[Sequence[OpenFile]], List[Any]],
        start: Callable[[Sequence[str]], List[str]],
    ) -> None:
        self._node, self._pulls, self._keep, self._start = node, pulls, keep, start
        self._folders = Folders(root)
        self._hashes = Hashes()
        self._lock = threading.Lock()
        #: Each with the time of the answer.
        self._describing: Dict[Wanted, "Future[Tuple[float, Answer]]"] = {}
        self._describers = ThreadPoolExecutor(_HASHED, "hashes")
        #: Where the folders are that other nodes know, by fingerprints.
        self._known: Recent[str, Tuple[Path, Folder]] = Recent(_FOLDERS_MAX)
        #: Copies by the models that programs have named. The next life of this agent finds them by their content.
        self._copies: Recent[Wanted, Folder] = Recent(_FOLDERS_MAX)
        self._alone: Alone[object] = Alone(shared=IoError)

    def bring(self, name: str, base: str, variant: Optional[str]) -> List[str]:
        """The folder of a model on this node, and the one that a process has to use (:func:`folders.use`), empty for a model that
        is not a copy. A folder of another node is copied.

        Raises :class:`NotFoundError` if no node has it, :class:`InvalidError` if none can send it, :class:`ConflictError` if two
        nodes have different ones, :class:`OverBudgetError` without room, and :class:`IoError` if no node that has it sends it.
        """
        wanted = Wanted(name, base, variant)
        with self._alone.with_key(wanted):
            try:
                return [str(model_files(*wanted)[0]), ""]
            except CotensorError as error:
                problems = self._problems(wanted, error)
            silent: Set[str] = set()
            found = self._described(wanted, others(self._node), problems, silent)
            if not found and silent:
                found = self._described(wanted, self._start(sorted(silent)), problems, silent)
            if found:
                folder = self._copied(wanted, sources(name, found, "models"))
                # A name on the hub is relative to no folder.
                with self._lock:
                    self._copies[wanted._replace(base="") if _is_of_hub(folder.end) else wanted] = folder
            copy = self._copy_of(wanted)
            if copy is None:
                raise _missing(wanted, problems, silent)
            path, folder = copy
            return [str(path / folder.end), str(path)]

    def describe(self, wanted: Wanted) -> Answer:
        """The folder of a model on this node; :data:`HASHING` if its files are still being hashed."""
        wanted = Wanted(*wanted)
        with self._lock:
            future = self._describing.get(wanted)
            if future is None or future.done() and time.monotonic() - future.result()[0] > _KEPT_SECONDS:
                future = self._describing[wanted] = self._describers.submit(self._describe, wanted)
        try:
            _, found = future.result(_HASHING_SECONDS)
        except LateError:
            return HASHING
        with self._lock:
            if self._describing.get(wanted) is future:
                del self._describing[wanted]
        return found

    def lend(self, fingerprint: str) -> List[Any]:
        """A token for each file of a folder that this node has described: other nodes read the file while one has the token.

        Raises :class:`NotFoundError` for a folder that is gone.
        """
        known = self._known.get(fingerprint)
        if known is None:
            raise NotFoundError("the node's agent was restarted", field="fingerprint")
        path, folder = known
        return self._keep([OpenFile(path / file.path, file) for file in folder.files])

    def names(self) -> List[str]:
        """The names of the models whose folders are copies."""
        contents = self._folders.contents()
        with self._lock:
            copies = list(self._copies.items())
        return sorted({wanted.name for wanted, folder in copies if folder.fingerprint in contents})

    def _describe(self, wanted: Wanted) -> Tuple[float, Answer]:
        try:
            found = self._here(wanted)
        except Exception as error:
            found = Problem(self._node, f"{type(error).__name__}: {error}")
        return time.monotonic(), found

    def _here(self, wanted: Wanted) -> Answer:
        try:
            path, files = model_files(*wanted)
        except CotensorError as error:
            copy = self._copy_of(wanted)
            if copy is None:
                return next(iter(self._problems(wanted, error)), None)
            path, folder = copy
            return self._now_known(path / folder.end, folder)
        outside = [name for name, _, is_outside in files if is_outside]
        if outside:
            why = "is a link out of the model's folder, which is not copied: put the file there"
            return Problem(self._node, f"{path / outside[0]} {why}")
        try:
            listed = tuple(FileOf(name, *self._hashes.of(path / name)) for name, _, _ in sorted(files))
        except OSError as error:
            # It is being replaced or removed.
            return Problem(self._node, str(error))
        end = _end(path)
        return self._now_known(path, Folder(self._node, end, listed, _fingerprint(end, listed), False))

    def _now_known(self, path: Path, folder: Folder) -> Folder:
        with self._lock:
            self._known[folder.fingerprint] = path, folder
        return folder

    def _problems(self, wanted: Wanted, error: CotensorError) -> List[Problem]:
        """One if this node has the model, and has this error with it."""
        if isinstance(error, NotFoundError) and not os.path.isdir(os.path.join(wanted.base, wanted.name)):
            return []
        return [Problem(self._node, f"{error.file}: {error}" if error.file else str(error))]

    def _described(self, wanted: Wanted, asked: List[str], problems: List[Problem], silent: Set[str]) -> List[Folder]:
        """The folders of the model on the nodes that are asked. Adds to the problems and to the nodes that do not answer."""
        found: List[Folder] = []
        end = time.monotonic() + _HASHING_MAX
        while asked:
            replies: List[Tuple[str, Answer]] = list(answers(self._node, "describe_model", wanted, nodes=asked))
            silent |= set(asked)
            silent -= {node for node, _ in replies}
            folders = [reply for _, reply in replies if isinstance(reply, Folder)]
            # It names the folder here.
            found += [folder._replace(fingerprint=_fingerprint(folder.end, folder.files)) for folder in folders]
            problems += [reply for _, reply in replies if isinstance(reply, Problem)]
            asked = [node for node, reply in replies if reply == HASHING]
            if asked and time.monotonic() > end:
                problems += [Problem(node, f"its files are still read after {_HASHING_MAX:.0f} s") for node in asked]
                break
            if asked:
                time.sleep(_ASK_INTERVAL)
        return found

    def _copied(self, wanted: Wanted, found: Sequence[Folder]) -> Folder:
        """The folder here, from the first node that sends it."""
        first = found[0]._replace(node=self._node, is_copy=True)
        error: Optional[CotensorError] = None
        with self._alone.with_key(first.fingerprint):
            if self._folders.find(first.fingerprint) is not None:
                return first
            for source in found:
                tokens = answer_of(source.node, "lend_model", source.fingerprint)
                try:
                    if not tokens:
                        problem = "the node does not answer, or its files have changed"
                        raise IoError(f"{wanted.name} of node {source.node}: {problem}", field=wanted.name)
                    self._copy(wanted, source, tokens)
                    return first
                except (IoError, NotFoundError, RefusedError) as caught:
                    # Its frames have the tokens.
                    error = caught.with_traceback(None)
        assert error is not None
        raise error

    def _copy(self, wanted: Wanted, source: Folder, tokens: Sequence[Any]) -> None:
        with contextlib.ExitStack() as stack:
            new = stack.enter_context(self._folders.new(source.fingerprint, source.nbytes, wanted.name))
            for file, token in zip(source.files, tokens):
                key = (source.node, file.id)
                # Other nodes read each file until all have arrived.
                arrival = stack.enter_context(self._pulls.arriving(key))
                name = f"{file.path} of {wanted.name}"

                def target(file: FileOf = file) -> FileTarget:
                    return FileTarget(new, f"{source.end}/{file.path}", file)

                self._pulls.receive(arrival, key, token.hex(), name, target)

    def _copy_of(self, wanted: Wanted) -> Optional[Tuple[Path, Folder]]:
        """The copy that was asked for before, if it has not been removed: the folder of its content, and the model's there."""
        folder = self._copies.get(wanted) or self._copies.get(wanted._replace(base=""))
        path = folder and self._folders.find(folder.fingerprint)
        return (path, folder) if folder and path else None


def _fingerprint(end: str, files: Tuple[FileOf, ...]) -> str:
    return content_hash("cotensor.ray: model", end, repr(files))


def _end(path: Path) -> str:
    found = _OF_HUB.search(str(path))
    # The path can end with `..`.
    return found[0] if found else os.path.basename(os.path.normpath(path)) or "model"


def _is_of_hub(end: str) -> bool:
    return _OF_HUB.match(end) is not None


def _missing(wanted: Wanted, problems: Sequence[Problem], silent: Set[str]) -> CotensorError:
    model = f"the model {wanted.name!r}" + (f" with graphs in {wanted.variant}" if wanted.variant else "")
    unknown = unanswered(silent)
    if problems:
        why = "; ".join(f"node {node}: {text}" for node, text in problems)
        return InvalidError(f"no node of the cluster has {model} in a usable form: {why}{unknown}", field=wanted.name)
    way = f"`cotensor pull {wanted.name}` downloads it to the node on which it runs"
    where = "in the hub's cache or as a folder: put its folder on one node"
    return NotFoundError(f"no node of the cluster has {model}, {where}, or {way}{unknown}", field=wanted.name)
