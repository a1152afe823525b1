"""Unmodified models of transformers on a device that is too small for them: outputs, generated tokens and training steps."""

from __future__ import annotations

import copy
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from cotensor.tensorref import Middleware, offload  # noqa: E402

TEXT = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
IDS = torch.tensor([[5, 6, 7, 8, 9, 3], [11, 4, 2, 9, 10, 12]])


def llama():
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=2, max_position_embeddings=64)
    return transformers.LlamaForCausalLM(config), {"input_ids": IDS}


def gpt2():
    config = transformers.GPT2Config(vocab_size=96, n_positions=64, n_embd=32, n_layer=3, n_head=4, eos_token_id=1)
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS}


def t5():
    config = transformers.T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, tie_word_embeddings=True
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}


def bert():
    return transformers.BertModel(transformers.BertConfig(**TEXT, max_position_embeddings=64)), {"input_ids": IDS}


def vit():
    config = transformers.ViTConfig(**{**TEXT, "image_size": 16, "patch_size": 4})
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.rand(2, 3, 16, 16)}


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": torch.rand(2, 8, 32),
        "decoder_input_ids": IDS[:, :4],
    }


def mixtral():
    config = transformers.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config), {"input_ids": IDS}


def unet():
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4,
    )
    inputs = {"sample": torch.rand(1, 4, 8, 8), "timestep": 3, "encoder_hidden_states": torch.rand(1, 5, 16)}
    return model, inputs


MODELS = [llama, gpt2, t5, bert, vit, whisper, mixtral, unet]
GENERATING = [llama, gpt2, t5, whisper, mixtral]


@pytest.fixture(autouse=True)
def same_attention():
    # The CPU has a fused attention that rounds differently.
    with sdpa_kernel(SDPBackend.MATH):
        yield


def attended(function, **arguments):
    """Calls a function with the attention of this file, which belongs to a thread."""
    with sdpa_kernel(SDPBackend.MATH):
        return function(**arguments)


def made(make):
    torch.manual_seed(0)
    model, inputs = make()
    return model.eval(), inputs


def size_of(model):
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}.values())


def first(output):
    return next(output[name] for name in ("logits", "last_hidden_state", "sample") if name in output)


@pytest.mark.parametrize("strategy", ["genoa", "flow", "lru", "pinned"])
@pytest.mark.parametrize("make", MODELS)
def test_outputs_are_equal(make, strategy, memory):
    model, inputs = made(make)
    identities = [id(parameter) for parameter in model.parameters()]
    with torch.no_grad():
        expected = first(model(**inputs))
        limit = memory.allocated_bytes + size_of(model) * 2 // 3
        memory.limit_bytes = limit
        with offload(model, "simulated", strategy=strategy, memory=limit) as session:
            outputs = [first(model(**inputs)).cpu() for _ in range(4)]
            session_stats = session.stats()
    for output in outputs:
        if strategy == "genoa":
            assert torch.equal(output, expected)
        torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    assert session_stats["copies"] > 0 and memory.peak_bytes <= limit
    assert identities == [id(parameter) for parameter in model.parameters()]
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
@pytest.mark.parametrize("make", GENERATING)
def test_generated_tokens_are_equal(make, strategy, memory):
    model, inputs = made(make)
    inputs.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    expected = model.generate(**inputs, **options)
    limit = memory.allocated_bytes + size_of(model) * 2 // 3
    memory.limit_bytes = limit
    with offload(model, "simulated", strategy=strategy, memory=limit):
        assert model.device.type == "simulated"
        on_device = {name: value.to(model.device) for name, value in inputs.items()}
        for given in (inputs, on_device):
            assert torch.equal(model.generate(**given, **options).cpu(), expected)
        generated = []
        # As with transformers' streamers.
        thread = threading.Thread(target=lambda: generated.append(attended(model.generate, **inputs, **options).cpu()))
        thread.start()
        thread.join()
        assert torch.equal(generated[0], expected)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("strategy", ["genoa", "flow"])
@pytest.mark.parametrize("make", MODELS)
def test_training_is_equal(make, strategy, optimizer, memory):
    plain, inputs = made(make)
    model = copy.deepcopy(plain)
    target = None

    def step(trained, steps):
        # AdamW makes full steps of gradients that are rounding errors, so only equal bits stay equal.
        optimizing = optimizer(trained.parameters(), weight_decay=0.01, lr=0.05)
        losses = []
        for _ in range(steps):
            optimizing.zero_grad()
            loss = first(trained(**inputs)).square().mean()
            loss.backward()
            optimizing.step()
            losses.append(loss.item())
        return losses

    expected = step(plain, 4)
    # Activations take up to 1.8 times the weights, and a backward pass cannot be repeated without memory.
    limit = memory.allocated_bytes + size_of(model) * 5 // 2
    memory.limit_bytes = limit
    with offload(model, "simulated", strategy=strategy, memory=limit) as session:
        if strategy == "flow":
            session.movers[0].make(session.movers[0].driver.set_budget(size_of(model) // 2))
        losses = step(model, 4)
    assert losses == expected
    for one, other in zip(model.parameters(), plain.parameters()):
        assert one.device.type == "cpu" and (one.grad is None) == (other.grad is None)
        assert torch.equal(one, other)
        target = one if one.grad is not None else target
    assert target is not None and target.grad.device.type == "cpu"


def compiled_layers(make):
    """A model whose layers are compiled, as many as possible of one class."""
    model, inputs = made(make)
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    for layer in max(lists, key=len):
        layer.compile(backend="aot_eager")
    return model, inputs


class CompiledOnly(Middleware):
    def __init__(self):
        self.calls = 0

    def after_operation(self, operation, place, elapsed_ns):
        self.calls += operation.name.startswith("compiled") and place == "device"


@pytest.mark.parametrize("make", [llama, bert, vit, mixtral, unet])
def test_compiled_layers_compute_and_train(make, memory):
    torch._dynamo.reset()
    plain, inputs = made(make)
    model, _ = compiled_layers(make)

    def step(trained):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
        outputs = []
        for _ in range(3):
            optimizer.zero_grad()
            outputs.append(first(trained(**inputs)))
            outputs[-1].square().mean().backward()
            optimizer.step()
        return [output.detach().cpu() for output in outputs]

    expected, compiled = step(plain), CompiledOnly()
    with offload(model, "simulated") as session:
        session.use(compiled)
        for output, other in zip(step(model), expected):
            torch.testing.assert_close(output, other, rtol=1e-6, atol=1e-6)
    assert compiled.calls > 0
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_compiled_layers_generate(memory):
    torch._dynamo.reset()
    plain, inputs = made(llama)
    model, _ = compiled_layers(llama)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    limit = memory.allocated_bytes + size_of(model) * 2 // 3
    memory.limit_bytes, compiled = limit, CompiledOnly()
    with offload(model, "simulated", memory=limit) as session:
        session.use(compiled)
        assert torch.equal(model.generate(**inputs, **options).cpu(), plain.generate(**inputs, **options))
    assert compiled.calls == 8 * len(model.model.layers)


@pytest.mark.parametrize("half", [False, True], ids=["ample", "half"])
@pytest.mark.parametrize("strategy", ["genoa", "flow", "lru", "cpu"])
@pytest.mark.parametrize("make", [llama, t5])
def test_a_model_is_saved_inside_of_the_block(make, strategy, half, memory, tmp_path):
    """After a step, so that what is saved is not what was loaded. T5 has tied weights."""
    model, inputs = made(make)
    with offload(model, "simulated", strategy=strategy, memory=size_of(model) // 2 if half else 1 << 30):
        with torch.no_grad():
            first(model(**inputs))
            for parameter in model.parameters():
                parameter.mul_(1.5)
        model.save_pretrained(tmp_path / "saved")
        loaded = type(model).from_pretrained(tmp_path / "saved")
        inside = first(model(**inputs)).detach().cpu()
    assert all([tensor.is_cpu for tensor in [*loaded.parameters(), *model.parameters()]])
    found, expected = loaded.state_dict(), model.state_dict()
    assert found.keys() == expected.keys() and all([torch.equal(found[name], expected[name]) for name in expected])
    torch.testing.assert_close(first(loaded.eval()(**inputs)), inside, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", ["genoa", "flow"])
def test_pipelines_of_diffusers_run_unmodified(strategy, memory, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    text = transformers.CLIPTextConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    (tmp_path / "vocab.json").write_text('{"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2, "b</w>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    pipeline = diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(block_out_channels=(32,), norm_num_groups=32),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.CLIPTokenizer(
            str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), model_max_length=12
        ),
        unet=diffusers.UNet2DConditionModel(
            block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)

    def draw():
        return pipeline(
            "a b a", height=16, width=16, num_inference_steps=4, output_type="np", generator=torch.Generator().manual_seed(3)
        ).images

    expected = draw()
    assert pipeline.device.type == "cpu" and expected.std() > 0
    size = sum(size_of(part) for part in (pipeline.vae, pipeline.text_encoder, pipeline.unet))
    limit = memory.allocated_bytes + size * 2 // 3
    memory.limit_bytes = limit
    with offload(pipeline, "simulated", strategy=strategy, memory=limit) as session:
        assert pipeline.device.type == "simulated"
        for _ in range(2):
            drawn = draw()
            if strategy == "genoa":
                assert (drawn == expected).all()
            assert abs(drawn - expected).max() <= 1e-6
        assert session.stats()["copies"] > 0 and session.stats()["on_host"] == 0
    assert memory.peak_bytes <= limit
