"""The methods of an embedder that have the names and arguments of sentence-transformers and fastembed."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Literal, Optional, Union

from .errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Rows = npt.NDArray[np.float32]

#: A text, or several.
Texts = Union[str, Iterable[str]]
#: The most texts of one call. The texts of concurrent calls run together.
CALL_TEXTS_MAX = 256
#: Options of sentence-transformers' `encode`, with the values that change nothing here.
_NEUTRAL = {
    "prompt": (None,),
    "output_value": ("sentence_embedding",),
    "precision": (None, "float32"),
    "device": (None, "cpu"),
    "pool": (None,),
    "chunk_size": (None,),
}
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


def only_given(function: str, **given: Any) -> Any:
    """The one argument that was given, of several names for it.

    Raises TypeError if none was given, or more than one.
    """
    values = [value for value in given.values() if value is not None]
    if len(values) != 1:
        raise TypeError(f"{function}() takes one of the arguments {', '.join(given)}")
    return values[0]


class OtherNames:
    """The base class of :class:`cotensor.Embedder`, whose methods they call."""

    embed: Callable[..., Any]
    _embed_from: Callable[[int, Texts, Optional[str]], Any]

    def query_embed(self, query: Texts, **_: Any) -> "Iterator[Rows]":
        """As fastembed: a generator of the embedding of each query, with the model's prompt for queries. Texts of an iterator
        are taken as their embeddings are asked for.
        """
        return self._chunks([query] if isinstance(query, str) else query, "query")

    def passage_embed(self, texts: Texts, **_: Any) -> "Iterator[Rows]":
        """As fastembed: as :meth:`query_embed`, with the model's prompt for documents."""
        return self._chunks([texts] if isinstance(texts, str) else texts, "document")

    def _chunks(self, texts: Iterable[str], prompt_name: str) -> "Iterator[Rows]":
        remaining = iter(texts)
        first = 0
        while chunk := list(islice(remaining, CALL_TEXTS_MAX)):
            yield from self._embed_from(first, chunk, prompt_name)
            first += len(chunk)

    def encode(
        self,
        inputs: Optional[Texts] = None,
        prompt_name: Optional[str] = None,
        prompt: Optional[str] = None,
        batch_size: int = 32,
        show_progress_bar: Optional[bool] = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: Optional[int] = None,
        sentences: Optional[Texts] = None,
        **options: Any,
    ) -> Any:
        """As sentence-transformers, whose earlier versions call the texts ``sentences``. ``batch_size`` and
        ``show_progress_bar`` have no effect.

        Raises :class:`UnsupportedError` for ``prompt`` and for values of other options that change the result.
        """
        for name, value in {"prompt": prompt, **options}.items():
            if value not in _NEUTRAL.get(name, ()):
                raise UnsupportedError(f"the option {name}={value!r} of sentence-transformers is not supported", field=name)
        rows = self.embed(only_given("encode", inputs=inputs, sentences=sentences), prompt_name=prompt_name)
        if truncate_dim is not None:
            if truncate_dim < 1:
                raise InvalidError("truncate_dim is a number from 1 on", field="truncate_dim")
            rows = rows[..., :truncate_dim]
        if normalize_embeddings:
            rows = _normalized(rows)
        if convert_to_tensor:
            import torch

            return torch.from_numpy(rows)
        return rows if convert_to_numpy or rows.ndim == 1 else list(rows)

    def encode_query(self, inputs: Optional[Texts] = None, prompt_name: Optional[str] = None, **options: Any) -> Any:
        """As sentence-transformers: :meth:`encode` with the model's prompt for queries."""
        return self.encode(inputs, prompt_name or "query", **options)

    def encode_document(self, inputs: Optional[Texts] = None, prompt_name: Optional[str] = None, **options: Any) -> Any:
        """As sentence-transformers: :meth:`encode` with the model's prompt for documents."""
        return self.encode(inputs, prompt_name or "document", **options)

    def similarity(self, embeddings1: Any, embeddings2: Any, similarity_fn_name: Similarity = "cosine") -> Any:
        """As sentence-transformers: the similarity of each of the first embeddings to each of the second ones.

        Each argument has the shape [n, dimensions], or [dimensions] for one embedding. The result has the shape [n1, n2],
        float32: an array of numpy, or a tensor of torch, without a gradient, if both arguments are tensors of torch.
        ``similarity_fn_name`` is ``"cosine"``, ``"dot"``, or the negative distance ``"euclidean"`` or ``"manhattan"``; the
        model's own choice in its files is not read.
        """
        return _similarity(embeddings1, embeddings2, similarity_fn_name, pairwise=False)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any, similarity_fn_name: Similarity = "cosine") -> Any:
        """As :meth:`similarity`, of each pair of embeddings at one position. The result has the shape [n]."""
        return _similarity(embeddings1, embeddings2, similarity_fn_name, pairwise=True)


def _normalized(rows: "Rows") -> "Rows":
    import numpy as np

    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: "Rows" = (rows / np.where(norms > 0, norms, 1)).astype(np.float32, copy=False)
    return scaled


def _similarity(first: Any, second: Any, function: str, *, pairwise: bool) -> Any:
    import numpy as np

    a, b = (np.atleast_2d(np.asarray(_on_host(rows), np.float32)) for rows in (first, second))
    for field, rows in (("embeddings1", a), ("embeddings2", b)):
        if rows.ndim != 2:
            raise InvalidError(f"{field} has {rows.ndim} dimensions: pass one embedding, or one in each row", field=field)
    if a.shape[1] != b.shape[1] or (pairwise and len(a) != len(b)):
        message = f"embeddings2 of the shape {list(b.shape)} have no similarity to {list(a.shape)}"
        raise InvalidError(message, field="embeddings2")
    if function == "cosine":
        a, b, function = _normalized(a), _normalized(b), "dot"
    if function == "dot":
        values = np.einsum("nd,nd->n", a, b) if pairwise else a @ b.T
    elif function in ("euclidean", "manhattan"):
        order = 2 if function == "euclidean" else 1
        # Row by row: all differences at once have the size of both and of the dimensions.
        values = np.empty(len(a) if pairwise else (len(a), len(b)), np.float32)
        for at, row in enumerate(a):
            values[at] = -np.linalg.norm((b[at] if pairwise else b) - row, order, axis=-1)
    else:
        message = f"similarity_fn_name: pass 'cosine', 'dot', 'euclidean' or 'manhattan', not {function!r}"
        raise InvalidError(message, field="similarity_fn_name")
    if _is_torch(first) and _is_torch(second):
        import torch

        return torch.from_numpy(values).to(first.device)
    return values


def _is_torch(rows: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(rows, torch.Tensor)


def _on_host(rows: Any) -> Any:
    """numpy takes no tensor of torch with a gradient, of another device or of bfloat16."""
    return rows.detach().float().cpu() if _is_torch(rows) else rows
