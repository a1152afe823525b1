"""Published weights keep their origin, and `shared_weights` refuses a model of another one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from conftest import local_store  # noqa: E402

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402
from cotensor.torch.transformers import origin  # noqa: E402

store = local_store()

Bert = transformers.BertModel
Classifier = transformers.BertForSequenceClassification


def config(**changed: Any) -> Any:
    small = {"num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 9}
    return transformers.BertConfig(**{**small, **changed})


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values())
    return all(torch.equal(a, b) for a, b in pairs)


def made(seed: int, **changed: Any) -> Any:
    torch.manual_seed(seed)
    return Bert._from_config(config(**changed))


def test_configuration_and_seed_are_the_origin(store: Any) -> None:
    plain = made(1)
    for _ in range(2):
        with ct.shared_weights("m", store):
            shared = made(1)
        assert equal(shared, plain) and ct.attachment(shared).version == 1
    for other in (lambda: made(2), lambda: made(1, hidden_act="relu"), lambda: made(1, initializer_range=0.5)):
        with pytest.raises(cotensor.ConflictError) as raised, ct.shared_weights("m", store):
            other()
        assert str(raised.value).count("BertModel from a configuration") == 2, raised.value
    with ct.shared_weights("m", store, force=True):
        forced = made(2)
    assert equal(forced, plain) and ct.attachment(forced).name == "m"


def test_generator_continues_as_without_the_block(store: Any) -> None:
    torch.manual_seed(3)
    plain = [Bert._from_config(config()), Bert._from_config(config()), torch.randn(3)]
    assert not equal(plain[0], plain[1])
    names = []
    for _ in range(2):
        torch.manual_seed(3)
        with ct.shared_weights("two", store):
            first, second = Bert._from_config(config()), Bert._from_config(config())
        assert equal(first, plain[0]) and equal(second, plain[1])
        assert torch.equal(torch.randn(3), plain[2])
        names.append([ct.attachment(model).name for model in (first, second)])
    assert names[0] == names[1] and len(set(names[0])) == 2, "the second process shares both"


def test_random_head_of_a_checkpoint_depends_on_the_seed(store: Any, tmp_path: Path) -> None:
    made(4).save_pretrained(tmp_path)

    def load(seed: int) -> Any:
        torch.manual_seed(seed)
        return Classifier.from_pretrained(tmp_path)

    plain = load(5)
    for _ in range(2):
        with ct.shared_weights("head", store):
            shared = load(5)
        assert equal(shared, plain)
        assert torch.equal(torch.get_rng_state(), (load(5), torch.get_rng_state())[1])
    with pytest.raises(cotensor.ConflictError, match="random weights of another seed"), ct.shared_weights("head", store):
        load(6)
    # A whole checkpoint has no random weights, so that its origin does not depend on the seed.
    plain.save_pretrained(tmp_path / "whole")
    for seed in (7, 8):
        torch.manual_seed(seed)
        with ct.shared_weights("whole", store):
            assert equal(Classifier.from_pretrained(tmp_path / "whole"), plain)


def test_random_weights_depend_on_class_and_configuration(store: Any, tmp_path: Path) -> None:
    made(4).save_pretrained(tmp_path)

    class Zeros(Classifier):
        def _init_weights(self, module: Any) -> None:
            for parameter in module.parameters(recurse=False):
                parameter.data.zero_()

    with ct.shared_weights("head", store):
        torch.manual_seed(5)
        Classifier.from_pretrained(tmp_path)
    for other in (lambda: Classifier.from_pretrained(tmp_path, initializer_range=0.9), lambda: Zeros.from_pretrained(tmp_path)):
        torch.manual_seed(5)
        with pytest.raises(cotensor.ConflictError, match="class or configuration"), ct.shared_weights("head", store):
            other()
    names = []
    for _ in range(2):
        torch.manual_seed(6)
        with ct.shared_weights("base", store):
            Bert.from_pretrained(tmp_path)
            heads = [Classifier.from_pretrained(tmp_path) for _ in range(3)]
        assert not equal(heads[0], heads[1]) and not equal(heads[1], heads[2])
        names.append([ct.attachment(head).name for head in heads])
    assert names[0] == names[1] and len(set(names[0])) == 3


def test_code_of_a_class_is_a_part_of_its_configuration(tmp_path: Path) -> None:
    hashes = []
    for value in (1, 2, 1):
        # Another folder for each, because Python keeps the text of a file.
        file = tmp_path / str(len(hashes)) / "program.py"
        file.parent.mkdir()
        file.write_text(f"from transformers import BertModel\nclass Net(BertModel):\n    scale = {value}\n")
        spec = importlib.util.spec_from_file_location("program", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules["program"] = module
        spec.loader.exec_module(module)
        hashes.append(origin._config_hash(module.Net, config(), {}))
    assert hashes[0] != hashes[1] and hashes[0] == hashes[2]


def program(folder: Path, value: float) -> Any:
    """A model class, and the class of a part of it in another file, as a program has them at one time."""
    folder.mkdir()
    texts = {
        "program_part": f"""
            import torch

            class Part(torch.nn.Linear):
                def reset_parameters(self):
                    torch.nn.init.constant_(self.weight, {value})
                    torch.nn.init.zeros_(self.bias)
        """,
        "program_model": """
            from program_part import Part
            from transformers import BertModel

            class Net(BertModel):
                def __init__(self, config):
                    super().__init__(config)
                    self.part = Part(config.hidden_size, 2)
        """,
    }
    for name, text in texts.items():
        file = folder / f"{name}.py"
        file.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules["program_model"].Net


def test_code_of_the_parts_of_a_model_is_a_part_of_its_configuration(store: Any, tmp_path: Path) -> None:
    for number, value in enumerate((0.5, 0.5, 0.25)):
        kind = program(tmp_path / str(number), value)
        torch.manual_seed(1)
        if value == 0.25:
            with pytest.raises(cotensor.ConflictError) as raised, ct.shared_weights("m", store):
                kind._from_config(config())
            first, second = re.findall(r"Net from a configuration \((\w+)", str(raised.value))
            assert first != second
            continue
        with ct.shared_weights("m", store):
            shared = kind._from_config(config())
        assert ct.attachment(shared).version == 1 and torch.equal(shared.part.weight, torch.full((2, 12), value))


def test_code_of_the_parts_of_a_checkpoint_with_a_random_part(store: Any, tmp_path: Path) -> None:
    made(4).save_pretrained(tmp_path / "files")
    for number, value in enumerate((0.5, 0.5, 0.25)):
        kind = program(tmp_path / str(number), value)
        torch.manual_seed(1)
        if value == 0.25:
            with pytest.raises(cotensor.ConflictError, match="class or configuration"), ct.shared_weights("m", store):
                kind.from_pretrained(tmp_path / "files")
            continue
        with ct.shared_weights("m", store):
            shared = kind.from_pretrained(tmp_path / "files")
        assert ct.attachment(shared).version == 1


def test_configuration_of_any_values_has_one_hash() -> None:
    odd = {"extra": {0: 1, "x": {"b", "a"}, (1, 2): object()}, "dtype": torch.float16}
    one, other = (config(**odd) for _ in range(2))
    assert origin._config_hash(Bert, one, {}) == origin._config_hash(Bert, other, {})
    assert origin._config_hash(Bert, one, {}) != origin._config_hash(Bert, config(), {})


def test_mapping_of_names_is_a_part_of_the_origin(store: Any, tmp_path: Path) -> None:
    made(1).save_pretrained(tmp_path)
    with ct.shared_weights("m", store):
        Bert.from_pretrained(tmp_path)
    swapped = {r"self\.query": "self.other", r"self\.key": "self.query", r"self\.other": "self.key"}
    with pytest.raises(cotensor.ConflictError, match="key_mapping"), ct.shared_weights("m", store):
        Bert.from_pretrained(tmp_path, key_mapping=swapped)


def test_files_that_change_while_they_are_read_are_no_origin(store: Any, tmp_path: Path, monkeypatch: Any) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        made(seed).save_pretrained(tmp_path / name)
    file = "model.safetensors"
    load = transformers.PreTrainedModel._load_pretrained_model

    def replaced(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        os.replace(tmp_path / "two" / file, tmp_path / "one" / file)
        return loaded

    monkeypatch.setattr(transformers.PreTrainedModel, "_load_pretrained_model", staticmethod(replaced))
    with ct.shared_weights("m", store):
        Bert.from_pretrained(tmp_path / "one")
    monkeypatch.undo()
    with pytest.raises(cotensor.ConflictError, match="changed while they were read"), ct.shared_weights("m", store):
        Bert.from_pretrained(tmp_path / "one")


def test_files_are_identified_by_content(store: Any, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        made(seed).save_pretrained(tmp_path / name)
    file = "model.safetensors"
    # As in two images of containers that were built with one time for all files.
    for name in ("one", "two"):
        os.utime(tmp_path / name / file, ns=(10**18, 10**18))
    with ct.shared_weights("m", store):
        first = Bert.from_pretrained(tmp_path / "one")
    with pytest.raises(cotensor.ConflictError) as raised, ct.shared_weights("m", store):
        Bert.from_pretrained(tmp_path / "two")
    assert str(tmp_path / "one") in str(raised.value) and str(tmp_path / "two") in str(raised.value)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    os.utime(tmp_path / "copy" / file)
    with ct.shared_weights("m", store):
        again = Bert.from_pretrained(tmp_path / "copy")
    assert ct.attachment(again).name == "m" and equal(again, first)


def test_buffers_of_a_model_are_those_of_its_own_configuration(store: Any, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 9}
    transformers.LlamaModel(transformers.LlamaConfig(**sizes, pad_token_id=0)).save_pretrained(tmp_path)
    configurations = [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}]
    frequencies = []
    for changed in configurations:
        plain = transformers.LlamaModel.from_pretrained(tmp_path, **changed)
        with ct.shared_weights("m", store):
            shared = transformers.LlamaModel.from_pretrained(tmp_path, **changed)
        assert ct.attachment(shared).name == "m" and ct.attachment(shared).version == 1
        assert equal(shared, plain)
        computed = dict(plain.named_buffers())
        assert computed and all(torch.equal(buffer, computed[name]) for name, buffer in shared.named_buffers())
        frequencies.append(computed["rotary_emb.inv_freq"])
    assert not torch.equal(*frequencies)


def test_published_weights_are_taken_by_force_only(store: Any, tmp_path: Path) -> None:
    made(1).save_pretrained(tmp_path)
    trained = made(2)
    ct.publish(trained, "m", store)
    with pytest.raises(cotensor.ConflictError, match=r"publish\(\).*force=True"), ct.shared_weights("m", store):
        Bert.from_pretrained(tmp_path)
    with ct.shared_weights("m", store, force=True):
        assert equal(Bert.from_pretrained(tmp_path), trained)


def test_state_dicts_are_no_origin(store: Any) -> None:
    one, two = made(1).state_dict(), made(2).state_dict()
    with ct.shared_weights("m", store):
        Bert.from_pretrained(None, config=config(), state_dict=one)
    with pytest.raises(cotensor.ConflictError, match="a state dict"), ct.shared_weights("m", store):
        Bert.from_pretrained(None, config=config(), state_dict=two)
