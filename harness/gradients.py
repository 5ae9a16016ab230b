"""Gradients of a rollout's mean log-probability: sketched for a whole batch at once, or exact one by one.

One letter per axis: B rollouts, T tokens, V vocabulary, K sketch dimensions; a weight matrix has R rows of C
elements.

f_i is the mean over the scope tokens t of rollout i of log π(y_t | y_<t), temperature 1, and g_i its gradient
by all trainable parameters. Ids are padded on the right, with any token and no attention mask: in a causal
model what follows a token can't change its log-probability.

`per_rollout` runs one forward and backward pass for the batch with the weights frozen, so autograd computes
only the gradients δ of the modules' outputs. A rollout's weight gradient follows from δ and the module's
input a, for a linear layer Σ_t δ_t ⊗ a_t: it is formed in blocks of rows, sketched and dropped. A parameter
used twice (a tied embedding) waits for both shares, so that its norm has their cross term.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from .sketch import Sketch, trainable_parameters

# Elements of weight gradient formed at once. A 78-thousand-parameter model with B = 128 on one core, against
# one plain forward and backward pass: 65 thousand elements 2.0 times (many short calls), 131 thousand and
# more 1.3 to 1.5 times.
BLOCK = 1 << 19

# An RMSNorm whose output differs by more than this (relative, for bfloat16 too) from its weight times its
# normalised input is some other function under the same name.
NORM_TOLERANCE = 2e-2

REMEDY = "freeze it, or use exact_gradients"


class UnsupportedModule(ValueError):  # noqa: N818 - it names what is wrong, as the estimators' errors do
    """A trainable parameter sits in a module whose per-rollout gradients we can't form."""


class RolloutGradients(NamedTuple):
    """What is kept of the gradients of B rollouts; float32.

    sketch:  (B, K), of g_i, not normalised.
    norm:    (B,), the exact |g_i|, not that of the sketch.
    logprob: (B,), f_i in nats.
    """

    sketch: Tensor
    norm: Tensor
    logprob: Tensor


def token_logprobs(model: nn.Module, ids: Tensor) -> Tensor:
    """log π(y_t | y_<t) at temperature 1, shape (B, T), in nats, float32 or better.

    Args:
        model: a causal language model of transformers, in the mode (train or eval) that you want.
        ids: (B, T) token ids, padded on the right. The first token has no prefix and gets 0.
    """
    first = torch.zeros(len(ids), 1, device=ids.device)
    if ids.numel() == 0 or ids.shape[1] == 1:
        return first.expand(ids.shape)
    # The last token predicts nothing that we ask for.
    logits = _wide(model(input_ids=ids[:, :-1], use_cache=False).logits)
    loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return torch.cat([first, -loss.view(len(ids), -1)], dim=1)


def per_rollout(
    model: nn.Module, ids: Tensor, mask: Tensor, sketch: Sketch, *, batch_size: int | None = None
) -> RolloutGradients:
    """Sketch and exact norm of each rollout's gradient, by one backward pass per batch.

    Leaves the model as it was: mode, requires_grad, p.grad, hooks.

    Args:
        model: a causal language model of transformers. In train mode its dropout is part of π.
        ids: (B, T) token ids, padded on the right.
        mask: (B, T) bool, the scope, never the first token. Without any scope token f, norm, sketch are 0.
        sketch: made for this model's trainable parameters (`Sketch.for_model`).
        batch_size: rollouts per pass, default all. Changes speed and memory, not the results.

    Raises:
        UnsupportedModule: a trainable parameter not in a Linear, Conv1D, Embedding, LayerNorm or …RMSNorm.
        ValueError: shapes that don't fit, or a sketch made for other parameters.
    """
    _check(ids, mask)
    parameters = trainable_parameters(model)
    if odd := {name: p.numel() for name, p in parameters.items()}.items() ^ sketch.sizes.items():
        raise ValueError(
            f"sketch and model differ in their trainable parameters: {', '.join(sorted(dict(odd)))}"
        )
    hooked = _hooked(model, parameters)
    sizes = [(len(ids), sketch.dimensions), (len(ids),), (len(ids),)]
    result = RolloutGradients(*(torch.zeros(size, device=ids.device) for size in sizes))
    for batch in _slices(len(ids), max(1, len(ids) if batch_size is None else batch_size)):
        collector = _Collector(hooked, parameters, batch.stop - batch.start, sketch)
        with _watched(collector):
            logprob = _mean_logprob(model, ids[batch], mask[batch])
            if mask[batch].any():
                collector.backward(logprob)
        result.sketch[batch] = sketch.fold(collector.accumulator)
        result.norm[batch] = collector.squared.sqrt()
        result.logprob[batch] = logprob.detach()
    return result


def dense_gradient(
    model: nn.Module, ids: Tensor, mask: Tensor, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Exact gradient of Σ_i weights_i f_i by each trainable parameter, tied ones once; p.grad stays.

    Args:
        model, ids, mask: as in `per_rollout`, but any module will do.
        weights: (B,), default 1/B each.
    """
    _check(ids, mask)
    parameters = trainable_parameters(model)
    with torch.enable_grad():
        logprob = _mean_logprob(model, ids, mask)
        total = logprob.mean() if weights is None else (logprob * weights.to(logprob)).sum()
    if not total.requires_grad:  # no scope token at all
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    wanted = list(parameters.values())
    gradients = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, gradients, strict=True))


def exact_gradients(model: nn.Module, ids: Tensor, mask: Tensor) -> Iterator[dict[str, Tensor]]:
    """The exact g_i of each rollout in turn, one backward pass each: the reference, slow, D numbers each."""
    for i in range(len(ids)):
        yield dense_gradient(model, ids[i : i + 1], mask[i : i + 1])


def _check(ids: Tensor, mask: Tensor) -> None:
    if ids.dim() != 2 or mask.shape != ids.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"ids and mask must be (B, T), the mask of bool; got {tuple(ids.shape)} and {tuple(mask.shape)} "
            f"of {mask.dtype}"
        )
    if mask[:, :1].any():
        raise ValueError("the first token has no prefix, so no log-probability: it can't be in the mask")


def _mean_logprob(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """f, shape (B,). Tokens after the last one in any scope are not even computed."""
    used = int(mask.any(0).nonzero().max()) + 1 if mask.any() else min(1, ids.shape[1])
    mask = mask[:, :used]
    logprobs = token_logprobs(model, ids[:, :used])
    return (logprobs * mask).sum(1) / mask.sum(1).clamp(min=1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Outer(NamedTuple):
    """Σ_t left_t ⊗ right_t: a linear layer."""

    left: Tensor  # (B, T, R)
    right: Tensor  # (B, T, C)

    def write(self, block: Tensor, batch: slice, rows: slice, keep: bool) -> None:
        """Add to the block (b, r, C), or overwrite it unless `keep`."""
        block.baddbmm_(self.left[batch, :, rows].transpose(1, 2), self.right[batch], beta=int(keep))


class _Scatter(NamedTuple):
    """δ_t added to row ids_t: an embedding."""

    ids: Tensor  # (B, T)
    delta: Tensor  # (B, T, C)

    def inside(self, batch: slice, rows: slice) -> Tensor:
        return (self.ids[batch] >= rows.start) & (self.ids[batch] < rows.stop)

    def write(self, block: Tensor, batch: slice, rows: slice, keep: bool) -> None:
        if not keep:
            block.zero_()
        b, t = self.inside(batch, rows).nonzero(as_tuple=True)
        row = self.ids[batch][b, t] - rows.start
        block.flatten(0, 1).index_add_(0, b * block.shape[1] + row, self.delta[batch][b, t])


def _shares(module: nn.Module, x: Tensor, delta: Tensor) -> dict[str, _Outer | _Scatter]:
    """The shares of a module's weight and bias, from its input and the gradient of its output."""
    steps = _wide(delta).flatten(1, -2)
    weight: _Outer | _Scatter
    if isinstance(module, nn.Embedding):  # autograd gives the padding's row no gradient either
        padding = -1 if module.padding_idx is None else module.padding_idx
        weight = _Scatter(x.flatten(1), steps * (x.flatten(1) != padding).unsqueeze(-1))
    elif isinstance(module, nn.Linear):
        weight = _Outer(steps, _wide(x).flatten(1, -2))
    elif isinstance(module, Conv1D):  # its weight is the transpose
        weight = _Outer(_wide(x).flatten(1, -2), steps)
    else:
        weight = _one_row(steps * _normalised(module, x).flatten(1, -2))
    bias = getattr(module, "bias", None) is not None
    return {"weight": weight} | ({"bias": _one_row(steps)} if bias else {})


def _one_row(steps: Tensor) -> _Outer:
    """Σ_t steps_t as a matrix of one row: a bias, or the weight of a norm."""
    return _Outer(steps.new_ones(len(steps), 1, 1), steps.sum(1, keepdim=True))


def _normalised(module: nn.Module, x: Tensor) -> Tensor:
    """x̂: what a norm multiplies by its weight."""
    x = _wide(x)
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(x, x.shape[-1:], eps=module.eps)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return functional.rms_norm(x, x.shape[-1:], eps=eps)


# Each module to hook: its trainable attributes, and the full names of the parameters that they are.
_Hooked = dict[nn.Module, dict[str, str]]


def _hooked(model: nn.Module, parameters: dict[str, nn.Parameter]) -> _Hooked:
    full = {p: name for name, p in parameters.items()}
    hooked: _Hooked = {}
    for path, module in model.named_modules():
        own = {attribute: full[p] for attribute, p in module.named_parameters(recurse=False) if p in full}
        if not own:
            continue
        if not _supported(module) or not own.keys() <= {"weight", "bias"}:
            raise UnsupportedModule(
                f"module {path or '(the model)'} of class {type(module).__name__}, with the trainable "
                f"{', '.join(own)}, is not a plain Linear, Conv1D, Embedding, LayerNorm or RMSNorm: {REMEDY}"
            )
        hooked[module] = own
    return hooked


def _supported(module: nn.Module) -> bool:
    forward = type(module).forward  # a subclass with one of its own computes something else
    if forward is nn.Embedding.forward:
        return module.max_norm is None and not module.scale_grad_by_freq
    if isinstance(module, nn.LayerNorm):
        return forward is nn.LayerNorm.forward and len(module.normalized_shape) == 1
    if type(module).__name__.endswith("RMSNorm"):
        return isinstance(module.weight, Tensor) and module.weight.dim() == 1
    return forward is nn.Linear.forward or forward is Conv1D.forward


def _is_rms_norm(module: nn.Module, x: Tensor, output: Tensor) -> bool:
    """Whether the module does what its name says, looking at one token."""
    normalised, weight = _normalised(module, x[0, 0]), cast(Tensor, module.weight).detach()
    for factor in (weight, 1 + weight):  # Gemma stores its weight minus one
        error = (factor * normalised - output[0, 0]).abs().max()
        if not error > NORM_TOLERANCE * factor.abs().max() * normalised.abs().max():  # a nan may pass
            return True
    return False


class _Collector:
    """The hooks of one pass: they take δ from each module and turn it into sketches and squared norms."""

    def __init__(
        self, hooked: _Hooked, parameters: dict[str, nn.Parameter], batch: int, sketch: Sketch
    ) -> None:
        self.hooked, self.parameters, self.batch, self.sketch = hooked, parameters, batch, sketch
        dtype = torch.promote_types(next(iter(parameters.values())).dtype, torch.float32)
        self.accumulator = sketch.accumulator(batch, dtype)
        self.squared = self.accumulator.new_zeros(batch)
        self.buffer = self.accumulator.new_empty(0)
        self.calls: Counter[str] = Counter()
        self.waiting: defaultdict[str, list[_Outer | _Scatter]] = defaultdict(list)
        self.leaves: list[Tensor] = []

    def forward_hook(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        own, x = self.hooked[module], inputs[0].detach()
        label = f"a module of class {type(module).__name__} with the trainable {', '.join(own.values())}"
        if isinstance(module, nn.Embedding) and len(output) == 1 < self.batch:
            # Position ids come as (1, T); a copy for each rollout keeps their gradients apart.
            x, output = x.expand(self.batch, -1), output.expand(self.batch, -1, -1)
        if len(output) != self.batch or output.dim() < 3:
            raise UnsupportedModule(f"{label} gives {tuple(output.shape)}, not (rollout, token, …)")
        if type(module).__name__.endswith("RMSNorm") and not _is_rms_norm(module, x, output.detach()):
            raise UnsupportedModule(f"{label} is not its weight times the input over its root mean square")
        if not output.requires_grad:  # the weights are frozen: the first module of a path starts the graph
            output.requires_grad_()
            self.leaves.append(output)
        self.calls.update(own.values())
        output.register_hook(lambda delta: self._collect(module, x, delta))
        return output

    def _collect(self, module: nn.Module, x: Tensor, delta: Tensor) -> None:
        shares = _shares(module, x, delta)
        for attribute, name in self.hooked[module].items():
            self.waiting[name].append(shares[attribute])
            if len(self.waiting[name]) == self.calls[name]:
                self._sketch(name)

    def _sketch(self, name: str) -> None:
        # Dense shares first: they overwrite the block, a scatter would have to clear it.
        shares = sorted(self.waiting.pop(name), key=lambda share: isinstance(share, _Scatter))
        height, width = [1, *self.parameters[name].shape][-2:]
        r = min(height, max(1, BLOCK // width))
        b = min(self.batch, max(1, BLOCK // (r * width)))
        if self.buffer.numel() < b * r * width:
            self.buffer = self.buffer.new_empty(b * r * width)
        for batch, rows in product(_slices(self.batch, b), _slices(height, r)):
            if all(isinstance(share, _Scatter) and not share.inside(batch, rows).any() for share in shares):
                continue  # an embedding touches few rows of a large vocabulary
            shape = (batch.stop - batch.start, rows.stop - rows.start, width)
            block = self.buffer[: prod(shape)].view(shape)
            for number, share in enumerate(shares):
                share.write(block, batch, rows, keep=number > 0)
            flat = block.flatten(1)
            self.sketch.add(self.accumulator[batch], name, flat, rows.start * width)
            self.squared[batch] += torch.linalg.vector_norm(flat, dim=1).square()

    def backward(self, logprob: Tensor) -> None:
        unused = sorted(name for name in self.parameters if self.calls[name] == 0)
        if unused:
            raise UnsupportedModule(
                f"the module of the trainable {', '.join(unused)} is never called: {REMEDY}"
            )
        # The hooks do the work; the gradients of the leaves themselves are dropped.
        torch.autograd.grad(logprob.sum(), self.leaves, allow_unused=True)
        for name in list(self.waiting):  # one of their uses has no influence on f
            self._sketch(name)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(i, min(i + step, length)) for i in range(0, length, step)]


@contextmanager
def _watched(collector: _Collector) -> Iterator[None]:
    """Weights frozen and hooks in place; both undone on the way out, whatever happens."""
    handles = [module.register_forward_hook(collector.forward_hook) for module in collector.hooked]
    try:
        for p in collector.parameters.values():
            p.requires_grad_(False)
        with torch.enable_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()
        for p in collector.parameters.values():
            p.requires_grad_(True)
