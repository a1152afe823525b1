"""Models by family, with the calls of docs/reference/api-names.md.

A model keeps the tensors of its last input, and takes those of other models.

::

    hardware = create_webgpu_backend()                      # outside of a browser: the cpu, with the reason in hardware.skipped
    vit = create_vit_model(hardware, model_id="google/vit-base-patch16-224")
    await vit.initialize()
    result = await vit.process({"image": "photo.jpg"})
    shared = vit.get_shared_tensor("vision_embedding")
    ranked = await clip.process_with_shared_embedding("a photo of a cat", shared)

Each name has a form in camelCase, too: ``createVitModel``, ``processWithSharedEmbedding``.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ._native import PooledModel, ResourcePool, SharedTensor, Store, Tensor
from .errors import ConflictError, InvalidError
from .pool import ResourcePoolBridgeIntegration, as_inputs

#: A tensor that a model made: as a shared tensor, or as the result of a call or of a store.
_Embedding = Union[SharedTensor, Tensor]
#: The keys of a model's options, with the names in docs/reference/api-names.md.
_OPTIONS = {
    "modelId": "model_id",
    "useOptimizedOps": "use_optimized_ops",
    "sharedTensorConfig": "shared_tensor_config",
    "task": "task",
    "head": "head",
    "precision": "precision",
}
#: The keys of a sharing configuration, with the names in docs/reference/api-names.md, and the arguments of a store.
_SHARING = {
    "enableSharedTensors": "enable_shared_tensors",
    "allowedTypes": "allowed_types",
    "maxSharedTensorSize": "max_shared_tensor_size",
}


def _named(given: Mapping[str, Any], names: Mapping[str, str], what: str) -> Dict[str, Any]:
    """The given values under their Python names."""
    found: Dict[str, Any] = {}
    for key, value in given.items():
        name = names.get(key, key)
        if name not in names.values():
            raise InvalidError(f"unknown {what}; known: {', '.join(names.values())}", field=str(key))
        if name in found:
            raise InvalidError("given twice", field=str(key))
        found[name] = value
    return found


class Backend:
    """A device and a store for models: made by :func:`create_webgpu_backend`, :func:`create_webnn_backend` and
    :func:`create_cpu_backend`.

    ``models`` is the folder with the models' folders: by default ``COTENSOR_MODELS``, else the current folder. ``store`` keeps
    weights and results: ``cotensor.connect()`` shares them with other processes, and by default this backend has its own.
    ``max_connections``, ``threads`` are as for :class:`~cotensor.pool.ResourcePoolBridgeIntegration`. ``shared_tensor_config``
    has ``enableSharedTensors``, ``allowedTypes`` and ``maxSharedTensorSize`` (bytes); it is for the backend's own store.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        models: Optional[Union[str, "os.PathLike[str]"]] = None,
        store: Optional[Store] = None,
        max_connections: int = 4,
        threads: Optional[int] = None,
        shared_tensor_config: Optional[Mapping[str, Any]] = None,
    ) -> None:
        #: The devices that the backend prefers, the best first.
        self.priority_list: List[str] = [device] if device == "cpu" else [device, "cpu"]
        #: The device on which models run.
        self.device, skipped = ResourcePool.choose_device(self.priority_list)
        #: The preferred devices that are not available, each with the reason.
        self.skipped: Dict[str, str] = dict(skipped)
        self._arguments: Dict[str, Any] = {"max_connections": max_connections, "models": models, "threads": threads}
        self._store = store
        self._config: Optional[Dict[str, Any]] = None
        self._pools: Dict[bool, ResourcePoolBridgeIntegration] = {}
        if shared_tensor_config is not None:
            self._configure(shared_tensor_config)

    @property
    def store(self) -> Store:
        """The store of weights and results."""
        if self._store is None:
            self._store = Store(**(self._config or {}))
        return self._store

    async def initialize(self) -> None:
        """Makes the store. The first model does so, too."""
        self._pool(True)

    def _configure(self, config: Mapping[str, Any]) -> None:
        """Sets the sharing configuration of a store that does not exist yet."""
        named = _named(config, _SHARING, "sharing configuration")
        if self._config is None and self._store is None:
            self._config = named
        elif self._config != named:
            message = "the backend's store has another configuration: pass it to the backend, before its first model"
            raise ConflictError(message, field="shared_tensor_config")

    def _pool(self, optimized: bool) -> ResourcePoolBridgeIntegration:
        pool = self._pools.get(optimized)
        if pool is None:
            engine = None if optimized else "rten"
            pool = ResourcePoolBridgeIntegration(store=self.store, engine=engine, **self._arguments)
            self._pools[optimized] = pool
        return pool

    def __repr__(self) -> str:
        return f"<Backend on {self.device}>"


def create_cpu_backend(**options: Any) -> Backend:
    """A :class:`Backend` on the cpu, with its options."""
    return Backend("cpu", **options)


def create_webgpu_backend(**options: Any) -> Backend:
    """A :class:`Backend` that prefers WebGPU. Outside of a browser it is on the cpu, with the reason in ``skipped``."""
    return Backend("webgpu", **options)


def create_webnn_backend(**options: Any) -> Backend:
    """A :class:`Backend` that prefers WebNN. Outside of a browser it is on the cpu, with the reason in ``skipped``."""
    return Backend("webnn", **options)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text. ``process`` takes them in place of the text, and refuses others than the text's."""

    #: The text.
    text: str
    #: Token ids.
    input_ids: Tuple[int, ...] = field(repr=False)
    #: 1 for a token, 0 for padding.
    attention_mask: Tuple[int, ...] = field(repr=False)
    #: The segment of each token.
    token_type_ids: Tuple[int, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.input_ids)


class Result(Dict[str, Any]):
    """A result: a dict as of :meth:`cotensor.pool.Model.__call__`."""

    @property
    def text(self) -> str:
        """The text that the model wrote or heard. Raises :class:`InvalidError` for another answer."""
        text = self["answer"].get("text")
        if not isinstance(text, str):
            raise InvalidError(f"the answer is not text: {self['answer']['type']}", field="text")
        return text


class FamilyModel:
    """A model of a family: made by :func:`create_model` and ``create_FAMILY_model``. As an asynchronous context manager, it is
    initialized at the beginning and disposed at the end."""

    def __init__(self, family: str, hardware: Optional[Backend], options: Mapping[str, Any]) -> None:
        known = _named(options, _OPTIONS, "option")
        model_id = known.pop("model_id", None)
        if not isinstance(model_id, str) or not model_id:
            raise InvalidError("pass the name of a folder or of a model on the hub", field="model_id")
        config = known.pop("shared_tensor_config", None)
        self._hardware = hardware if hardware is not None else create_cpu_backend()
        if config is not None:
            self._hardware._configure(config)
        self._optimized = known.pop("use_optimized_ops", None) is not False
        self._options = {name: value for name, value in known.items() if value is not None}
        self._model: Optional[PooledModel] = None
        #: The family: ``bert``, ``vit``, …
        self.family = family
        #: The name of its folder, or its name on the hub. It holds the model's tensors.
        self.model_id = model_id

    @property
    def device(self) -> str:
        """The device that it runs on."""
        return self._opened().device

    @property
    def skipped(self) -> Dict[str, str]:
        """The preferred devices that are not available, each with the reason."""
        return dict(self._opened().skipped)

    @property
    def tasks(self) -> List[str]:
        """The tasks of the family."""
        return [name for name, _ in self._opened().tasks]

    async def initialize(self) -> None:
        """Opens the model and loads its graphs, once for all models of the backend. Files that the hub's cache lacks are
        downloaded.

        Raises the errors of :meth:`~cotensor.pool.ResourcePoolBridgeIntegration.get_model`.
        """
        preferences = {"priority_list": self._hardware.priority_list}
        if "precision" in self._options:
            preferences["precision"] = self._options["precision"]
        pool = self._hardware._pool(self._optimized)
        model = await pool._load(self.family, self.model_id, preferences)
        await asyncio.to_thread(model.initialize)
        self._model = model

    async def tokenize(self, text: str) -> Tokens:
        """The tokens of a text, as the model reads them."""
        rows = await asyncio.to_thread(self._opened().tokenize, text)
        ids, mask, types = (tuple(row) for row in rows)
        return Tokens(text, ids, mask, types)

    async def process(self, inputs: Any = None, **more: Any) -> Result:
        """Runs the model, and keeps the outputs of its stages for :meth:`get_shared_tensor`.

        ``inputs`` is a text, :class:`Tokens`, or a dict (or keywords) of ``text``, ``image``, ``audio``, ``texts`` and the
        options of :meth:`cotensor.pool.Model.__call__`. ``imageData`` with ``width`` and ``height`` is an image, too. Without
        ``task``, here or in the model's options, the task that reads exactly these inputs runs.
        """
        return await self._run(inputs, more, [])

    async def process_with_shared_embedding(self, inputs: Any, shared_tensor: _Embedding, **more: Any) -> Result:
        """As :meth:`process`, with the tensor of another model in place of the output of one of this model's stages, which is
        neither loaded nor run. ``shared_tensor`` may be a tensor of a result's ``output_tensors`` or of a store, too.

        The two have to have the same space: the same graph, weights and preprocessing. Otherwise the store has to have an
        adapter between their spaces (``cotensor fit-adapter --daemon``). Raises :class:`InvalidError`, which names both
        spaces, without an adapter.
        """
        return await self._run(inputs, more, [shared_tensor])

    async def process_with_shared_embeddings(
        self, inputs: Any = None, shared_tensors: Iterable[_Embedding] = (), **more: Any
    ) -> Result:
        """As :meth:`process_with_shared_embedding`, with several tensors: in ``shared_tensors``, or under any names in a dict
        of inputs."""
        return await self._run(inputs, more, list(shared_tensors))

    def get_shared_tensor(self, kind: str) -> SharedTensor:
        """The tensor of this kind (``"vision_embedding"``) that the model made of its last input. The model holds it until it
        processes another input or is disposed. Raises :class:`NotFoundError` for a kind that it did not make."""
        return self._opened().get_shared_tensor(kind)

    def use_shared_tensor(self, shared_tensor: SharedTensor) -> None:
        """Acquires a tensor for this model: its reference count rises by one."""
        self._opened().use_shared_tensor(shared_tensor)

    def release_shared_tensor(self, shared_tensor: SharedTensor) -> None:
        """Releases one acquire of this model. Raises :class:`ConflictError` if it has none."""
        self._opened().release_shared_tensor(shared_tensor)

    async def dispose(self) -> None:
        """Releases the tensors that the model holds, and the model. A second call has no effect."""
        model, self._model = self._model, None
        if model is not None:
            await asyncio.to_thread(model.dispose)

    async def __aenter__(self) -> "FamilyModel":
        await self.initialize()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.dispose()

    def _opened(self) -> PooledModel:
        if self._model is None:
            raise InvalidError(f"{self.model_id} is not initialized, or disposed: await initialize() first")
        return self._model

    async def _run(self, inputs: Any, more: Mapping[str, Any], embeddings: List[_Embedding]) -> Result:
        model = self._opened()
        if isinstance(inputs, Tokens):
            inputs = await self._text_of(inputs)
        given = dict(inputs) if isinstance(inputs, Mapping) else {} if inputs is None else {"text": inputs}
        given.update(more)
        for name, value in list(given.items()):
            if isinstance(value, (SharedTensor, Tensor)):
                embeddings = [*embeddings, given.pop(name)]
            elif isinstance(value, Tokens):
                given[name] = await self._text_of(value)
        options = {name: value for name, value in self._options.items() if name != "precision"}
        given = as_inputs({**options, **given})

        def run() -> Dict[str, Any]:
            return model.run(given, user=self.model_id, shared_embeddings=embeddings, keep=True)

        result = await asyncio.to_thread(run)
        result["device"] = model.device
        return Result(result)

    async def _text_of(self, tokens: Tokens) -> str:
        """The text of tokens: the model computes these from it again."""
        known = await self.tokenize(tokens.text)
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            if tuple(getattr(tokens, name)) != getattr(known, name):
                text = f"they are not those of the text {tokens.text[:40]!r}; pass a text alone, or tokens that tokenize() gave"
                raise InvalidError(f"{name}: {text}", field=name)
        return tokens.text

    def __repr__(self) -> str:
        state = "not initialized" if self._model is None else f"on {self._model.device}"
        return f"<FamilyModel {self.model_id!r}, {self.family}, {state}>"

    # The names in docs/reference/api-names.md.
    tokenize_text = tokenizeText = tokenize
    getSharedTensor = get_shared_tensor
    processWithSharedEmbedding = process_with_shared_embedding
    processWithSharedEmbeddings = process_with_shared_embeddings
    useSharedTensor = use_shared_tensor
    releaseSharedTensor = release_shared_tensor


def create_model(
    family: str, hardware: Optional[Backend] = None, options: Optional[Mapping[str, Any]] = None, **more: Any
) -> FamilyModel:
    """A model of any family, with the options of a dict or of keywords: ``model_id`` (required: the name of a folder or of a
    model on the hub), ``use_optimized_ops`` (by default and with ``True`` the fastest engine that supports the model, with
    ``False`` the embedded one), ``shared_tensor_config`` (that of the backend's store; see :class:`Backend`), ``task`` and
    ``head`` (those of :meth:`FamilyModel.process`), and ``precision``.

    The model is opened by :meth:`FamilyModel.initialize`. Raises :class:`InvalidError` for an unknown option.
    """
    return FamilyModel(family, hardware, {**(options or {}), **more})


def _creator(family: str, title: str) -> Callable[..., FamilyModel]:
    def create(
        hardware: Optional[Backend] = None, options: Optional[Mapping[str, Any]] = None, **more: Any
    ) -> FamilyModel:
        return create_model(family, hardware, options, **more)

    create.__name__ = create.__qualname__ = f"create_{family}_model"
    create.__doc__ = f"A {title} model: :func:`create_model` with the family ``{family}``."
    return create


create_bert_model = _creator("bert", "BERT")
create_t5_model = _creator("t5", "T5")
create_llama_model = _creator("llama", "LLaMA")
create_bart_model = _creator("bart", "BART")
create_vit_model = _creator("vit", "ViT")
create_clip_model = _creator("clip", "CLIP")
create_detr_model = _creator("detr", "DETR")
create_whisper_model = _creator("whisper", "Whisper")
create_wav2vec2_model = _creator("wav2vec2", "Wav2Vec2")
create_clap_model = _creator("clap", "CLAP")
create_llava_model = _creator("llava", "LLaVA")
create_blip_model = _creator("blip", "BLIP")

# The names in docs/reference/api-names.md.
createWebGPUBackend = create_webgpu_backend
createWebNNBackend = create_webnn_backend
createBertModel = create_bert_model
createT5Model = create_t5_model
createLlamaModel = create_llama_model
createBartModel = create_bart_model
createVitModel = create_vit_model
createClipModel = create_clip_model
createDetrModel = create_detr_model
createWhisperModel = create_whisper_model
createWav2Vec2Model = create_wav2vec2_model
createClapModel = create_clap_model
createLlavaModel = create_llava_model
createBlipModel = create_blip_model

__all__ = [
    "Backend",
    "FamilyModel",
    "Result",
    "Tokens",
    "createBartModel",
    "createBertModel",
    "createBlipModel",
    "createClapModel",
    "createClipModel",
    "createDetrModel",
    "createLlamaModel",
    "createLlavaModel",
    "createT5Model",
    "createVitModel",
    "createWav2Vec2Model",
    "createWebGPUBackend",
    "createWebNNBackend",
    "createWhisperModel",
    "create_bart_model",
    "create_bert_model",
    "create_blip_model",
    "create_clap_model",
    "create_clip_model",
    "create_cpu_backend",
    "create_detr_model",
    "create_llama_model",
    "create_llava_model",
    "create_model",
    "create_t5_model",
    "create_vit_model",
    "create_wav2vec2_model",
    "create_webgpu_backend",
    "create_webnn_backend",
    "create_whisper_model",
]
