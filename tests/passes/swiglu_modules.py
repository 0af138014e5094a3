"""Modules with SwiGLU in them, for what is asked of any rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional as F
from tvm import relax, tirx
from tvm.ir import IRModule

from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.passes.graph.found import Found, Refusal
from tkc.passes.graph.layout import kernel_call
from tkc.passes.rules.rule import Rule, Site

CHANNELS = 8


def built(write: Callable[[relax.BlockBuilder, relax.Var], relax.Expr | Sequence[relax.Expr]]) -> IRModule:
    """A module whose ``main`` is one dataflow block that ``write`` fills, over ``x [tokens, CHANNELS]``."""
    tokens = tirx.Var("tokens", "int64")
    x = relax.Var("x", relax.TensorStructInfo((tokens, CHANNELS), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(write(builder, x))
        builder.emit_func_output(out)
    return builder.get()


def rule_for(name: str, recognize: Callable[[Site], Found | Refusal | None]) -> Rule[Found]:
    """A rule that looks at the operator ``name``."""
    return Rule("test", "swiglu", frozenset([name]), recognize, kernel_call)


def operand(site: Site) -> relax.Expr:
    """What the operator at ``site`` is applied to."""
    return site.root.args[0]


def named(site: Site, name: str) -> relax.Var:
    """The bound variable of that name."""
    (var,) = (var for var in site.graph.var2val if var.name_hint == name)
    return var


def swiglu_of(site: Site, gate: relax.Expr, up: relax.Expr, *replaced: relax.Var, consumed: str = "") -> Found:
    """The plain kernel in place of the site and ``replaced``; the variables named in ``consumed`` must vanish."""
    replaces = dict.fromkeys((site.var, *replaced), 0)
    vanishing = frozenset(named(site, name) for name in consumed.split())
    return Found(SwiGLUParameters(CHANNELS, "float32"), {"gate": gate, "up": up}, replaces, vanishing)


def gated(x: Tensor) -> Tensor:
    """SwiGLU of two halves."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up
