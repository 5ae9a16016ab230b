"""Per-rollout gradients by hooks against one plain backward pass per rollout."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from behaviortrace.harness import gradients
from behaviortrace.harness.gradients import UnsupportedModule
from behaviortrace.harness.sketch import Sketch, trainable_parameters

RELATIVE = 1e-5  # float32, sums of some thousand terms in another order
# bfloat16 keeps 8 bits: δ and a are rounded alike on both sides, only the weight gradients are not.
BFLOAT_RELATIVE = 3e-2
B, T, V, K = 7, 13, 60, 128
PAD = 0

SMALL = {
    "vocab_size": V,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def build(kind):
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=48, n_layer=2, n_head=4, n_positions=64))
    if kind == "llama-untied":
        return LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False))
    if kind == "qwen3":  # normalises queries and keys per head
        return Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True))
    padding = {"pad_token_id": PAD} if kind == "qwen2-padding" else {}
    return Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True, **padding))


KINDS = ["qwen2-tied", "llama-untied", "qwen2-padding", "qwen3", "gpt2"]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(getattr(request, "param", "qwen2-tied"))
        for p in model.parameters():  # weights of 1 and biases of 0, as they start, would hide errors
            p.data += (0.3 if p.dim() == 1 else 0.1) * torch.randn_like(p)
    return model.eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(V, (B, T), generator=generator)
    lengths = torch.tensor([13, 5, 9, 2, 13, 7, 11])
    mask = torch.rand(B, T, generator=generator) < 0.6
    mask &= torch.arange(T) < lengths[:, None]
    mask[:, 0], mask[:, 1], mask[5] = False, True, False  # rollout 5 has no scope token
    return torch.where(torch.arange(T) < lengths[:, None], ids, PAD), mask


def reference(model, ids, mask, sketch):
    """Sketch, norm and f of each rollout, by its own plain backward pass of the text-book formula."""
    sketches, norms, logprobs = [], [], []
    for i in range(len(ids)):
        distribution = model(input_ids=ids[i : i + 1], use_cache=False).logits[0].float().log_softmax(-1)
        tokens = [distribution[t - 1, ids[i, t]] for t in range(1, ids.shape[1]) if mask[i, t]]
        f = torch.stack(tokens).mean() if tokens else distribution.sum() * 0.0
        parameters = trainable_parameters(model)
        g = torch.autograd.grad(f, list(parameters.values()))
        sketches.append(sketch.dense(dict(zip(parameters, g, strict=True))))
        norms.append(torch.cat([x.flatten() for x in g]).norm())
        logprobs.append(f.detach())
    return torch.stack(sketches), torch.stack(norms), torch.stack(logprobs)


def assert_close(measured, expected, what, cause, relative=RELATIVE):
    """Row by row, so that a small gradient can't hide behind a large one."""
    for i, (m, e) in enumerate(zip(measured, expected, strict=True)):
        error = (m - e).norm().item() / max(e.norm().item(), torch.finfo(torch.float32).tiny)
        assert error <= relative, (
            f"{what} of rollout {i}: |measured| {m.norm():.6g}, |expected| {e.norm():.6g}, relative error "
            f"{error:.2g}, allowed {relative:.0g}: {cause}"
        )


def assert_same(measured, expected, cause, relative=RELATIVE):
    for name in ("logprob", "norm", "sketch"):
        assert_close(getattr(measured, name), getattr(expected, name), name, cause, relative)


@pytest.mark.parametrize("model", KINDS, indirect=True)
def test_per_rollout_equals_one_backward_pass_per_rollout(model, batch):
    sketch = Sketch.for_model(model, K, seed=0)
    result = gradients.per_rollout(model, *batch, sketch)
    expected = gradients.RolloutGradients(*reference(model, *batch, sketch))
    assert_close(
        result.logprob, expected.logprob, "logprob", "tokens and logits are shifted, or the mean is not"
    )
    assert_close(result.norm, expected.norm, "norm", "a parameter is missing, or the tied cross term is")
    assert_close(result.sketch, expected.sketch, "sketch", "a layer's formula, or where its rows start")
    assert [x.dtype for x in result] == [torch.float32] * 3
    assert result.sketch.shape == (B, K)


@pytest.mark.parametrize("model", ["qwen2-tied", "llama-untied", "gpt2"], indirect=True)
@pytest.mark.parametrize("block", [1, 100, 5000])
def test_blocks_of_rows_do_not_matter(model, batch, block, monkeypatch):
    sketch = Sketch.for_model(model, K, seed=0)
    expected = gradients.per_rollout(model, *batch, sketch)
    monkeypatch.setattr(gradients, "BLOCK", block)
    assert_same(
        gradients.per_rollout(model, *batch, sketch), expected, f"blocks of {block} elements lose rows"
    )


@pytest.mark.parametrize("batch_size", [1, 3, B, 100])
def test_batch_size_does_not_matter(model, batch, batch_size):
    sketch = Sketch.for_model(model, K, seed=0)
    expected = gradients.per_rollout(model, *batch, sketch)
    result = gradients.per_rollout(model, *batch, sketch, batch_size=batch_size)
    assert_same(result, expected, f"batches of {batch_size} mix or drop rollouts")


@pytest.mark.parametrize("model", ["qwen2-tied", "gpt2"], indirect=True)
def test_right_padding_does_not_matter(model, batch):
    ids, mask = batch
    sketch = Sketch.for_model(model, K, seed=0)
    expected = gradients.per_rollout(model, ids, mask, sketch)
    tail = torch.randint(V, (B, 6), generator=torch.Generator().manual_seed(1))
    longer = torch.cat([ids, tail], 1), torch.cat([mask, torch.zeros(B, 6, dtype=torch.bool)], 1)
    assert_same(
        gradients.per_rollout(model, *longer, sketch), expected, "tokens after the scope leak into it"
    )
    other = torch.where(mask.flip(1).cumsum(1).flip(1) > 0, ids, 17)
    assert_same(gradients.per_rollout(model, other, mask, sketch), expected, "the padding's token matters")


def test_a_rollout_without_scope_gives_zero(model, batch):
    ids, mask = batch
    sketch = Sketch.for_model(model, K, seed=0)
    for scope in (mask, torch.zeros_like(mask)):
        result = gradients.per_rollout(model, ids, scope, sketch)
        empty = ~scope.any(1)
        for name, value in result._asdict().items():
            assert not value[empty].any(), f"{name} of a rollout without scope tokens is {value[empty]}"
    assert gradients.per_rollout(model, ids[:0], mask[:0], sketch).sketch.shape == (0, K)
    assert not any(g.any() for g in gradients.dense_gradient(model, ids, torch.zeros_like(mask)).values())


def test_token_logprobs_are_those_of_the_softmax(model, batch):
    ids, _ = batch
    expected = torch.zeros(B, T)
    expected[:, 1:] = (
        model(input_ids=ids).logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2).detach()
    )
    measured = gradients.token_logprobs(model, ids)
    assert not measured[:, 0].any(), "the first token has no prefix and must get 0"
    assert_close(measured.detach(), expected, "log-probabilities", "logits at t - 1 predict the token at t")
    assert gradients.token_logprobs(model, ids[:, :1]).shape == (B, 1)


@pytest.mark.parametrize("model", KINDS, indirect=True)
def test_dense_gradient_is_the_weighted_sum_of_exact_ones(model, batch):
    weights = torch.linspace(-1, 2, B)
    exact = list(gradients.exact_gradients(model, *batch))
    assert len(exact) == B
    for given, by in ((weights, weights), (None, torch.full((B,), 1 / B))):
        dense = gradients.dense_gradient(model, *batch, given)
        assert list(dense) == list(trainable_parameters(model)), "a tied parameter must appear once"
        for name, g in dense.items():
            expected = sum(w * e[name] for w, e in zip(by, exact, strict=True))
            error = (g - expected).norm() / expected.norm()
            assert error <= RELATIVE, f"{name} is off by {error:.2g} from Σ w g, allowed {RELATIVE:.0g}"
            assert not g.requires_grad


def test_exact_gradients_have_the_norms_and_sketches(model, batch):
    sketch = Sketch.for_model(model, K, seed=0)
    result = gradients.per_rollout(model, *batch, sketch)
    exact = list(gradients.exact_gradients(model, *batch))
    assert_close(result.sketch, [sketch.dense(g) for g in exact], "sketch", "two definitions of f")


def test_frozen_parameters_are_left_out(model, batch):
    """Also those below all trainable ones, where no gradient has to flow."""
    for name, p in model.named_parameters():
        p.requires_grad_("layers.1.mlp" in name)
    sketch = Sketch.for_model(model, K, seed=0)
    result = gradients.per_rollout(model, *batch, sketch)
    expected = gradients.RolloutGradients(*reference(model, *batch, sketch))
    assert_same(result, expected, "frozen parameters count, or the graph is cut")


def test_a_module_called_twice_has_its_cross_term(model, batch):
    model.model.layers[1] = model.model.layers[0]
    sketch = Sketch.for_model(model, K, seed=0)
    result = gradients.per_rollout(model, *batch, sketch)
    expected = gradients.RolloutGradients(*reference(model, *batch, sketch))
    assert_same(result, expected, "the calls of one module are sketched one by one")


def test_bfloat16_weights_give_float32_results(model, batch):
    model = model.bfloat16()
    sketch = Sketch.for_model(model, K, seed=0)
    result = gradients.per_rollout(model, *batch, sketch)
    expected = gradients.RolloutGradients(*reference(model, *batch, sketch))
    assert_same(result, expected, "δ or a is summed in bfloat16", BFLOAT_RELATIVE)


def test_float64_weights_work(model, batch):
    sketch = Sketch.for_model(model, K, seed=0)
    expected = gradients.per_rollout(model, *batch, sketch)
    assert_same(
        gradients.per_rollout(model.double(), *batch, sketch), expected, "float64 is treated otherwise"
    )


def snapshot(model):
    modules = list(model.modules())
    return {
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "p.grad": [p.grad for p in model.parameters()],
        "p.grad's values": [None if p.grad is None else p.grad.sum().item() for p in model.parameters()],
        "training mode": [m.training for m in modules],
        "forward hooks": [len(m._forward_hooks) for m in modules],
        "backward hooks": [len(m._backward_hooks) for m in modules],
        "weights": [p.detach().clone().sum().item() for p in model.parameters()],
        "random state": torch.get_rng_state().tolist(),
    }


def assert_untouched(before, model, when):
    for what, value in snapshot(model).items():
        same = all(a is b or a == b for a, b in zip(before[what], value, strict=True))
        assert same, f"{what} changed {when}"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("call", ["per_rollout", "dense_gradient", "exact_gradients"])
def test_the_model_stays_as_it_was(model, batch, training, call):
    model.train(training)
    parameters = list(model.parameters())
    parameters[0].grad = torch.ones_like(parameters[0])
    parameters[3].requires_grad_(False)
    before = snapshot(model)
    with torch.no_grad():  # the caller's grad mode is no obstacle
        if call == "per_rollout":
            gradients.per_rollout(model, *batch, Sketch.for_model(model, K, seed=0), batch_size=4)
        elif call == "dense_gradient":
            gradients.dense_gradient(model, *batch)
        else:
            list(gradients.exact_gradients(model, *batch))
    assert_untouched(before, model, f"by {call}")


class InjectedError(RuntimeError):
    pass


@pytest.mark.parametrize("where", ["forward", "backward", "fold"])
def test_the_model_stays_as_it_was_when_a_pass_fails(model, batch, where, monkeypatch):
    sketch = Sketch.for_model(model, K, seed=0)
    before = snapshot(model)

    def fail(*_, **__):
        raise InjectedError

    with monkeypatch.context() as patch:
        if where == "forward":
            patch.setattr(model.model.layers[1].mlp, "forward", fail)
        else:
            patch.setattr(sketch, "add" if where == "backward" else "fold", fail)
        with pytest.raises(InjectedError):
            gradients.per_rollout(model, *batch, sketch)
    assert_untouched(before, model, f"by a failure in {where}")
    gradients.per_rollout(model, *batch, sketch)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(48))

    def forward(self, x):
        return x * self.gain


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class OddRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(48) + 0.5), 1e-6

    def forward(self, x):
        return self.weight * nn.functional.rms_norm(x, x.shape[-1:], eps=self.eps) ** 2


@pytest.mark.parametrize(
    ("path", "module", "named"),
    [
        ("model.layers.0.mlp", Scale(), "model.layers.0.mlp of class Scale, with the trainable .*gain"),
        ("model.layers.1.mlp", Doubled(48, 48), "model.layers.1.mlp of class Doubled"),
        ("model.norm", OddRMSNorm(), "class OddRMSNorm with the trainable model.norm.weight"),
        ("spare", nn.Linear(2, 2), "spare.bias, spare.weight is never called"),
    ],
    ids=["own-parameter", "own-forward", "name-of-a-norm", "never-called"],
)
def test_unsupported_modules_are_named(model, batch, path, module, named):
    parent, _, leaf = path.rpartition(".")
    model.get_submodule(parent).add_module(leaf, copy.deepcopy(module))
    sketch = Sketch.for_model(model, K, seed=0)
    before = snapshot(model)
    with pytest.raises(UnsupportedModule, match=named):
        gradients.per_rollout(model, *batch, sketch)
    assert_untouched(before, model, "by the refusal")
    model.get_submodule(path).requires_grad_(False)  # the way out that the message names
    gradients.per_rollout(model, *batch, Sketch.for_model(model, K, seed=0))


def test_misuse_names_the_cause(model, batch):
    ids, mask = batch
    sketch = Sketch.for_model(model, K, seed=0)
    with pytest.raises(ValueError, match="first token has no prefix"):
        gradients.per_rollout(model, ids, torch.ones_like(mask), sketch)
    with pytest.raises(ValueError, match="mask of bool"):
        gradients.per_rollout(model, ids, mask.float(), sketch)
    with pytest.raises(ValueError, match=r"\(7, 12\)"):
        gradients.dense_gradient(model, ids, mask[:, :-1])
    model.model.norm.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"differ in their trainable parameters: model\.norm\.weight"):
        gradients.per_rollout(model, ids, mask, sketch)
