"""The recipes with torch: notebooks, adapters on one base, and a trainer with readers. Each runs in processes of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
from conftest import serving
from functions_common import environment
from recipes_common import MIB, RECIPES, measured

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import cotensor.torch  # noqa: E402


def program(path: str) -> Any:
    """A program of a recipe as a module."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").replace("-", "_"), RECIPES / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`common.models`, and a folder for the models that it makes."""
    sys.path.insert(0, str(RECIPES))
    try:
        from common import models as made

        made.folder = tmp_path_factory.mktemp("models")
        yield made
    finally:
        sys.path.remove(str(RECIPES))


@pytest.fixture(scope="module")
def encoder(models: Any) -> Path:
    folder: Path = models.encoder("small", models.folder / "encoder")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a model whose steps take a few milliseconds."""
    from transformers import BertConfig

    folder = tmp_path_factory.mktemp("trained")
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
    BertConfig(vocab_size=4000, **sizes).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("only", ["without", "with"])
def test_notebooks_share_a_model(only: str, encoder: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    found = measured("jupyter", "--only", only, "--model", str(encoder))[only]
    shape, sentence = found["answers"]
    assert shape == "torch.Size([4, 256])"
    assert sentence == f"'{nearest_sentence(encoder)}'"
    if only == "with":
        # Rows of the embedding that no text has used.
        assert found["unmapped_bytes"] > MIB


def nearest_sentence(folder: Path) -> str:
    """What nearest.ipynb has to find."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def embed(text: str) -> Any:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].float().mean(0)
        return hidden / hidden.norm()

    sentences = [
        "The harbour office opens at six.",
        "Nets are dried on the eastern quay.",
        "The crane lifts up to four tons.",
        "The ferry to the island leaves at eight, at noon and at five.",
    ]
    question = embed("When does the ferry leave?")
    return max(sentences, key=lambda sentence: float(embed(sentence) @ question))


@pytest.mark.parametrize("only", ["without", "with"])
def test_workers_share_the_base_of_their_adapters(only: str, models: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = models.causal_model("small", tmp_path)
    adapters = program("peft-adapters/measure.py").make_adapters(base, tmp_path, 2)
    found = measured("peft-adapters", "--only", only, "--model", str(base), "--adapters", *map(str, adapters))[only]
    tokenizer = AutoTokenizer.from_pretrained(base)
    expected: List[List[str]] = []
    for adapter in adapters:
        model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
        answers = []
        for prompt in ("the harbour wakes", "the crane lifts"):
            given = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
            written = model.generate(**given, max_new_tokens=8, do_sample=False, pad_token_id=0)
            answers.append(tokenizer.decode(written[0, given.input_ids.shape[1] :]))
        expected.append(answers)
    assert expected[0] != expected[1], "the adapters have no effect"
    assert found["answers"] == expected


@pytest.mark.parametrize("only", ["without", "with"])
def test_readers_evaluate_the_versions_of_a_trainer(only: str, trained: Path) -> None:
    processes = 2 if only == "with" else 1
    arguments = ("--only", only, "--model", str(trained), "--seconds", "60")
    found = measured("trainer-readers", *arguments, processes=processes)[only]
    readers: List[Dict[int, float]] = [{int(version): loss for version, loss in each.items()} for each in found["answers"]]
    newest = max(version for losses in readers for version in losses)
    evaluate = program("trainer-readers/reader.py").evaluate
    expected = {step: evaluate(model.eval()) for step, model in steps(trained, newest)}
    assert len(set(expected.values())) == newest
    for losses in readers:
        assert len(losses) >= 5
        for version, loss in losses.items():
            assert loss == pytest.approx(expected[version], rel=1e-3)


def steps(folder: Path, count: int) -> Iterator[Tuple[int, Any]]:
    """The model after each step of the trainer, which has a fixed seed."""
    for step, (model, _) in zip(range(1, count + 1), program("trainer-readers/trainer.py").training(str(folder))):
        yield step, model
        model.train()


def test_a_reader_never_has_tensors_of_two_steps(trained: Path) -> None:
    """Reads while the trainer publishes, and compares every tensor with that of the same step of an own training."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    read: Dict[int, Dict[str, Any]] = {}
    with serving() as daemon, daemon.connect() as store:
        with cotensor.torch.on_meta():
            model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(trained))
        command = [sys.executable, str(RECIPES / "trainer-readers" / "trainer.py"), str(trained)]
        given = environment(COTENSOR_SOCKET=str(daemon.socket), OMP_NUM_THREADS=str(torch.get_num_threads()))
        trainer = subprocess.Popen(command, env=given, stdout=subprocess.DEVNULL)
        try:
            store.wait("policy", timeout=60)
            cotensor.torch.attach(model, "policy", store)
            while len(read) < 8:
                attachment = cotensor.torch.attachment(model)
                assert attachment is not None
                read[attachment.version] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                cotensor.torch.refresh(model)
                assert trainer.poll() is None, "the trainer ended; its message is above"
        finally:
            trainer.terminate()
            trainer.wait(30)
    before: Dict[str, Any] = {}
    for step, expected in steps(trained, max(read)):
        state = expected.state_dict()
        if step in read:
            assert read[step].keys() == state.keys()
            torn = [name for name, tensor in read[step].items() if not torch.equal(tensor, state[name])]
            assert not torn, f"version {step} has tensors of another step: {torn}"
            # Every tensor differs from that of the step before: a tensor of another step would be found.
            assert not [name for name, tensor in before.items() if torch.equal(tensor, state[name])]
        before = {name: tensor.clone() for name, tensor in state.items()}
