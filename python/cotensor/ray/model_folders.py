"""Folders of models, which engines read: the agent's part. They are copied from other nodes once for each node."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, NamedTuple, Optional, Sequence, Tuple, Union

from .._native import Store, Tensor, content_hash, model_files
from ..errors import CotensorError, IoError, NotFoundError
from .alone import Alone
from .files import FileOf, FileTarget, Hashes, OpenFile
from .folders import Folders
from .handle import OWN_PREFIX, is_used
from .models import sources
from .peers import answer_of, answers
from .pulls import Pulls

#: An answer to a question for a model whose files are still being hashed. The node is asked again.
HASHING: Literal["hashing"] = "hashing"
#: How long a node hashes before it answers so, and the time until it is asked again, in seconds.
_HASHING_SECONDS, _ASK_INTERVAL = 0.1, 0.5
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
    def nbytes(self) -> int:
        """The bytes of its files."""
        return sum(file.nbytes for file in self.files)


class ModelFolders:
    """Finds the folders of models on this node and on others, and copies those of others here.

    ``keep`` makes a token for each of several open files, ``start`` starts the agents of nodes that have none, and returns these
    nodes: a node on which nothing uses Cotensor can have files.
    """

    def __init__(
        self,
        node: str,
        store: Store,
        root: Path,
        pulls: Pulls,
        keep: Callable[[Sequence[OpenFile]], List[Any]],
        start: Callable[[], List[str]],
    ) -> None:
        self._node, self._store, self._pulls, self._keep, self._start = node, store, pulls, keep, start
        self._folders = Folders(root, Path(str(store.socket)), self._is_used)
        self._hashes = Hashes()
        self._lock = threading.Lock()
        self._describing: Dict[Wanted, "Future[Optional[Folder]]"] = {}
        self._describers = ThreadPoolExecutor(_HASHED, "hashes")
        #: Copies by what was asked for. The next life of this agent finds them by their content.
        self._copies: Dict[Wanted, Folder] = {}
        #: By contents: a lease of what stands for the folder, which each process that uses it leases, too.
        self._marks: Dict[str, Tensor] = {}
        self._alone: Alone[object] = Alone()

    def bring(self, name: str, base: str, variant: Optional[str]) -> List[str]:
        """The folder of a model on this node, and the name of the tensor that a process leases as long as it uses the folder,
        empty for one that is no copy. A folder of another node is copied.

        Raises :class:`NotFoundError` if no node has it, :class:`ConflictError` if two nodes have different ones,
        :class:`OverBudgetError` without room, and :class:`IoError` if no node that has it sends it.
        """
        wanted = Wanted(name, base, variant)
        with self._alone.with_key(wanted):
            with contextlib.suppress(CotensorError):
                return [str(model_files(*wanted)[0]), ""]
            found = self._described(wanted, None) or self._described(wanted, self._start())
            if found:
                folder = self._copied(wanted, sources(name, found, "models"))
                # A name on the hub is relative to no folder.
                self._copies[wanted._replace(base="") if _is_of_hub(folder.end) else wanted] = folder
            copy = self._copy_of(wanted)
            if copy is None:
                raise NotFoundError(_missing(wanted), field=name)
            path, folder = copy
            self._folders.use(folder.fingerprint)
            return [str(path), self._mark(folder)]

    def describe(self, wanted: Wanted) -> Union[None, Folder, Literal["hashing"]]:
        """The folder of a model on this node; :data:`HASHING` if its files are still being hashed."""
        wanted = Wanted(*wanted)
        with self._lock:
            future = self._describing.get(wanted)
            if future is None:
                future = self._describing[wanted] = self._describers.submit(self._describe, wanted)
        try:
            found = future.result(_HASHING_SECONDS)
        except LateError:
            return HASHING
        with self._lock:
            if self._describing.get(wanted) is future:
                del self._describing[wanted]
        return found

    def lend(self, wanted: Wanted, fingerprint: str) -> List[Any]:
        """A token for each of the folder's files: other nodes read the file while one has the token. None if it has changed."""
        path, folder = self._here(Wanted(*wanted))
        if folder is None or folder.fingerprint != fingerprint:
            return []
        return self._keep([OpenFile(path / file.path, file) for file in folder.files])

    def names(self) -> List[str]:
        """The names of the models whose folders are copies."""
        return sorted({wanted.name for wanted, folder in list(self._copies.items()) if self._find(folder) is not None})

    def _here(self, wanted: Wanted) -> Tuple[Path, Optional[Folder]]:
        try:
            path, files = model_files(*wanted)
        except CotensorError:
            return self._copy_of(wanted) or (Path(), None)
        try:
            listed = tuple(FileOf(name, *self._hashes.of(path / name)) for name, _ in sorted(files))
        except OSError:
            # It is being replaced or removed.
            return path, None
        end = _end(path)
        return path, Folder(self._node, end, listed, content_hash("cotensor.ray: model", end, repr(listed)), False)

    def _describe(self, wanted: Wanted) -> Optional[Folder]:
        return self._here(wanted)[1]

    def _described(self, wanted: Wanted, asked: Optional[List[str]]) -> List[Folder]:
        """The folders of the model on the nodes that are asked, by default all others."""
        found: List[Folder] = []
        while asked is None or asked:
            replies = list(answers(self._node, "describe_model", wanted, nodes=asked))
            found += [folder for _, folder in replies if folder is not None and folder != HASHING]
            asked = [node for node, folder in replies if folder == HASHING]
            if asked:
                time.sleep(_ASK_INTERVAL)
        return found

    def _copied(self, wanted: Wanted, found: Sequence[Folder]) -> Folder:
        """The folder here, from the first node that sends it."""
        first = found[0]._replace(node=self._node, is_copy=True)
        error: Optional[CotensorError] = None
        with self._alone.with_key(first.fingerprint):
            if self._find(first) is not None:
                return first
            for source in found:
                tokens = answer_of(source.node, "lend_model", wanted, source.fingerprint)
                try:
                    if not tokens:
                        problem = "the node does not answer, or its files have changed"
                        raise IoError(f"{wanted.name} of node {source.node}: {problem}", field=wanted.name)
                    self._copy(wanted, source, tokens)
                    return first
                except (IoError, NotFoundError) as caught:
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
                self._pulls.receive(arrival, key, token.hex(), name, lambda file=file: FileTarget(new / source.end, file))  # type: ignore[misc]

    def _copy_of(self, wanted: Wanted) -> Optional[Tuple[Path, Folder]]:
        folder = self._copies.get(wanted) or self._copies.get(wanted._replace(base=""))
        path = folder and self._find(folder)
        return (path, folder) if folder and path else None

    def _find(self, folder: Folder) -> Optional[Path]:
        found = self._folders.find(folder.fingerprint)
        return found and found / folder.end

    def _mark(self, folder: Folder) -> str:
        name = _mark_of(folder.fingerprint)
        with self._lock:
            if folder.fingerprint not in self._marks:
                # That of a former agent of this node, which processes have leased, if there is one.
                mark = self._store.get(name, None)
                metadata = {"model": folder.end}
                self._marks[folder.fingerprint] = mark or self._store.empty(name, 1, "uint8", metadata=metadata).publish()
        return name

    def _is_used(self, content: str) -> bool:
        """Whether another process has leased the mark of a folder."""
        mark = self._store.get(_mark_of(content), None)
        if mark is None:
            return False
        with mark:
            return is_used(self._store, mark)


def _mark_of(content: str) -> str:
    return f"{OWN_PREFIX}model/{content}"


def _end(path: Path) -> str:
    found = _OF_HUB.search(str(path))
    return found[0] if found else path.name


def _is_of_hub(end: str) -> bool:
    return _OF_HUB.match(end) is not None


def _missing(wanted: Wanted) -> str:
    where = "in the hub's cache or as a folder"
    way = f"`cotensor pull {wanted.name}` downloads it to the node on which it runs"
    variant = f" with graphs in {wanted.variant}" if wanted.variant else ""
    return f"no node of the cluster has the model {wanted.name!r}{variant}, {where}: put its folder on one node, or {way}"
