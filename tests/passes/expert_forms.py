"""Mixtures of experts as authors write them, and what only looks like them.

Each form is a model of ``x [tokens, SIZE]``; weights are its parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZE, HIDDEN, EXPERTS, TOP_K = 16, 24, 4, 2


class Experts(nn.Module):
    """Stacked weights and a router; ``form`` computes with them."""

    def __init__(self, form: Callable[[Experts, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.form = form
        self.router = nn.Linear(SIZE, EXPERTS, bias=False)
        self.w13 = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN, SIZE) / 4)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, SIZE, HIDDEN) / 4)
        self.b13 = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN))
        self.b2 = nn.Parameter(torch.randn(EXPERTS, SIZE))
        self.layers = nn.ModuleList(Layer() for _ in range(EXPERTS))
        self.shared = Layer()
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The form's result, ``[tokens, SIZE]``."""
        return self.form(self, x)


class Layer(nn.Module):
    """One expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(SIZE, HIDDEN, bias=False), nn.Linear(SIZE, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, SIZE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Its rows are computed each alone."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def chosen(m: Experts, x: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax before the choice, weights that add up to one."""
    weights, indices = m.router(x).float().softmax(-1).topk(TOP_K, -1)
    return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), indices


def softmax_after(m: Experts, x: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of the chosen logits."""
    logits, indices = m.router(x).topk(TOP_K, -1)
    return logits.softmax(-1), indices


def sigmoid(m: Experts, x: Tensor) -> tuple[Tensor, Tensor]:
    """Sigmoid scores, scaled."""
    scores = m.router(x).sigmoid()
    weights, indices = scores.topk(TOP_K, -1)
    return weights * 2.5, indices


def scattered(m: Experts, x: Tensor) -> Tensor:
    """A weight for each expert, zero for those that were not chosen."""
    weights, indices = chosen(m, x)
    return torch.zeros(x.shape[0], EXPERTS, dtype=x.dtype).scatter(1, indices, weights)


def swiglu(h: Tensor) -> Tensor:
    """Of halves, the gate's first."""
    gate, up = h.chunk(2, -1)
    return F.silu(gate) * up


def expert(m: Experts, e: int, x: Tensor) -> Tensor:
    """One expert by stacked weights."""
    return F.linear(swiglu(F.linear(x, m.w13[e])), m.w2[e])


def dense_columns(m: Experts, x: Tensor) -> Tensor:
    """A loop over modules, with columns of scattered weights."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + weights[:, e : e + 1] * layer(x)
    return y


def dense_compared(m: Experts, x: Tensor) -> Tensor:
    """Weights by comparison with the choices, stacked parameters."""
    weights, indices = softmax_after(m, x)
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        y += expert(m, e, x) * ((indices == e) * weights).sum(-1, keepdim=True)
    return y


def dense_selected(m: Experts, x: Tensor) -> Tensor:
    """Weights by where, and a shared expert."""
    weights, indices = sigmoid(m, x)
    y: Tensor = m.shared(x)
    for e in range(EXPERTS):
        y = y + torch.where(indices == e, weights, 0.0).sum(-1)[:, None] * expert(m, e, x)
    return y


def dense_python_sum(m: Experts, x: Tensor) -> Tensor:
    """Python's sum, weights of an unbound tensor."""
    weights = scattered(m, x).unbind(-1)
    total: Tensor = sum(layer(x) * w.unsqueeze(-1) for layer, w in zip(m.layers, weights, strict=True)) + x
    return total


def dense_with_biases(m: Experts, x: Tensor) -> Tensor:
    """Projections with biases."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e in range(EXPERTS):
        h = F.linear(x, m.w13[e], m.b13[e])
        y = y + weights[:, e, None] * F.linear(swiglu(h), m.w2[e], m.b2[e])
    return y


def dense_weighted_inside(m: Experts, x: Tensor) -> Tensor:
    """Weights before the last projection."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e in range(EXPERTS):
        y = y + F.linear(swiglu(F.linear(x, m.w13[e])) * weights[:, e, None], m.w2[e])
    return y


def dense_stack(m: Experts, x: Tensor) -> Tensor:
    """All experts' results in one tensor."""
    return (torch.stack([layer(x) for layer in m.layers], 1) * scattered(m, x)[..., None]).sum(1)


def dense_stack_einsum(m: Experts, x: Tensor) -> Tensor:
    """The same by einsum."""
    return torch.einsum("te,ted->td", scattered(m, x), torch.stack([layer(x) for layer in m.layers], 1))


def dense_mask(m: Experts, x: Tensor) -> Tensor:
    """Scores times a mask, divided by their sum."""
    scores = m.router(x).softmax(-1)
    mask = torch.zeros_like(scores).scatter_(1, scores.topk(TOP_K, -1).indices, 1.0)
    weights = scores * mask
    weights = weights / weights.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + weights[:, e, None] * layer(x)
    return y


def dense_masked_softmax(m: Experts, x: Tensor) -> Tensor:
    """Softmax of logits of which all but the best are minus infinity."""
    logits = m.router(x)
    keep = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, logits.topk(TOP_K, -1).indices, True)
    weights = logits.masked_fill(~keep, float("-inf")).softmax(-1)
    y = torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + layer(x) * weights[:, e].unsqueeze(1)
    return y


def dense_one_hot(m: Experts, x: Tensor) -> Tensor:
    """Weights of a one-hot table."""
    weights, indices = chosen(m, x)
    dense = (F.one_hot(indices, EXPERTS) * weights[..., None]).sum(1)
    h = torch.einsum("td,efd->tef", x, m.w13)
    return torch.einsum("tef,edf,te->td", swiglu(h), m.w2, dense)


def stacked_bmm(m: Experts, x: Tensor) -> Tensor:
    """Products of a batch of experts."""
    h = torch.bmm(x.expand(EXPERTS, -1, -1), m.w13.transpose(1, 2))
    y = torch.bmm(swiglu(h), m.w2.transpose(1, 2))
    return (y * scattered(m, x).t()[..., None]).sum(0)


def stacked_broadcast(m: Experts, x: Tensor) -> Tensor:
    """Products that broadcast, weights before the last."""
    h = x[None] @ m.w13.mT
    return ((swiglu(h) * scattered(m, x).T.unsqueeze(-1)) @ m.w2.mT).sum(dim=0)


def stacked_biases(m: Experts, x: Tensor) -> Tensor:
    """gpt-oss: biases, and interleaved halves with limits."""
    h = torch.bmm(x.repeat(EXPERTS, 1).view(EXPERTS, -1, SIZE), m.w13.mT) + m.b13[:, None]
    gate, up = h[..., ::2].clamp(max=7.0), h[..., 1::2].clamp(-7.0, 7.0)
    y = torch.bmm((up + 1) * gate * torch.sigmoid(gate * 1.702), m.w2.mT) + m.b2[:, None, :]
    return (y * scattered(m, x).transpose(0, 1)[..., None]).sum(0)


def gathered_einsum(m: Experts, x: Tensor) -> Tensor:
    """Mixtral's gpt-fast: weights fetched for each token."""
    weights, indices = chosen(m, x)
    gate, up = m.w13[:, :HIDDEN][indices], m.w13[:, HIDDEN:][indices]
    h = F.silu(torch.einsum("ti,taoi->tao", x, gate)) * torch.einsum("ti,taoi->tao", x, up)
    y = torch.einsum("tao,taio->tai", h, m.w2[indices])
    return torch.einsum("tai,ta->ti", y, weights)


def gathered_bmm(m: Experts, x: Tensor) -> Tensor:
    """Copies of tokens, each with its expert's weights."""
    weights, indices = sigmoid(m, x)
    flat = indices.flatten()
    rows = x.repeat_interleave(TOP_K, 0)
    h = swiglu(torch.bmm(rows[:, None], m.w13[flat].mT).squeeze(1))
    y = torch.bmm(h[:, None], m.w2[flat].transpose(1, 2)).view(x.shape[0], TOP_K, SIZE)
    return (y * weights[..., None]).sum(1)


def gathered_columns(m: Experts, x: Tensor) -> Tensor:
    """Weights first, rows as columns; biases."""
    weights, indices = softmax_after(m, x)
    h = (m.w13[indices] @ x[:, None, :, None]).squeeze(-1) + m.b13[indices]
    y = (m.w2[indices] @ swiglu(h).unsqueeze(-1)).squeeze(-1) + m.b2[indices]
    return (weights.unsqueeze(-1) * y).sum(dim=-2)


Form = Callable[[Experts, Tensor], Tensor]

DENSE: dict[str, Form] = {
    form.__name__: form
    for form in (
        *(dense_columns, dense_compared, dense_selected, dense_python_sum, dense_with_biases, dense_weighted_inside),
        *(dense_stack, dense_stack_einsum, dense_mask, dense_masked_softmax, dense_one_hot),
    )
}
"""Experts one by one, each for all tokens."""

STACKED: dict[str, Form] = {form.__name__: form for form in (stacked_bmm, stacked_broadcast, stacked_biases)}
"""Products with all experts' weights."""

GATHERED: dict[str, Form] = {form.__name__: form for form in (gathered_einsum, gathered_bmm, gathered_columns)}
"""Weights that are fetched for each token."""


def all_weighted(m: Experts, x: Tensor) -> Tensor:
    """Soft routing: no expert's weight is zero."""
    weights, y = m.router(x).softmax(-1), torch.zeros_like(x)
    _, indices = weights.topk(TOP_K, -1)
    for e, layer in enumerate(m.layers):
        y = y + weights[:, e : e + 1] * layer(x) * (indices[:, :1] >= 0)
    return y


def among_ones(m: Experts, x: Tensor) -> Tensor:
    """Weights that were written among ones."""
    weights, indices = chosen(m, x)
    dense, y = torch.ones(x.shape[0], EXPERTS).scatter(1, indices, weights), torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + dense[:, e : e + 1] * layer(x)
    return y


def weighted_before_activation(m: Experts, x: Tensor) -> Tensor:
    """What is zero before a bias is not zero after it."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e in range(EXPERTS):
        y = y + F.linear(swiglu(F.linear(x, m.w13[e])) * weights[:, e, None], m.w2[e], m.b2[e])
    return y


def another_expert(m: Experts, x: Tensor) -> Tensor:
    """Weights of the next expert, of which one is counted twice."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + weights[:, max(e, 1), None] * layer(x)
    return y


def an_expert_less(m: Experts, x: Tensor) -> Tensor:
    """The first expert is left out."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e in range(1, EXPERTS):
        y = y + weights[:, e, None] * m.layers[e](x)
    return y


def other_activation(m: Experts, x: Tensor) -> Tensor:
    """One expert has another activation."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e in range(EXPERTS):
        h = F.linear(x, m.w13[e])
        h = swiglu(h) if e else F.gelu(h[:, :HIDDEN]) * h[:, HIDDEN:]
        y = y + weights[:, e, None] * F.linear(h, m.w2[e])
    return y


def other_tokens(m: Experts, x: Tensor) -> Tensor:
    """One expert sees other rows, and their order matters."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + weights[:, e, None] * layer(x if e else x.flip(0))
    return y


def rows_mixed(m: Experts, x: Tensor) -> Tensor:
    """An expert adds up over tokens."""
    weights, y = scattered(m, x), torch.zeros_like(x)
    for e, layer in enumerate(m.layers):
        y = y + weights[:, e, None] * (layer(x) - layer(x).mean(0, keepdim=True))
    return y


def choices_permuted(m: Experts, x: Tensor) -> Tensor:
    """Each choice has the weights of the other's expert in the second product."""
    weights, indices = chosen(m, x)
    h = torch.einsum("td,tkfd->tkf", x, m.w13[indices])
    return torch.einsum("tkf,tkdf,tk->td", swiglu(h), m.w2[indices.flip(1)], weights)


def weights_of_all_groups(m: Experts, x: Tensor) -> Tensor:
    """The weights of a choice are summed over tokens' other choices before the activation."""
    weights, indices = chosen(m, x)
    h = torch.einsum("td,tkfd->tf", x, m.w13[indices])
    return torch.einsum("tf,tkdf,tk->td", swiglu(h), m.w2[indices], weights)


UNLIKE: dict[str, Form] = {
    form.__name__: form
    for form in (
        *(all_weighted, among_ones, weighted_before_activation, another_expert, an_expert_less, other_activation),
        *(other_tokens, rows_mixed, choices_permuted, weights_of_all_groups),
    )
}
