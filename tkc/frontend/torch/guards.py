"""What a program was exported for: conditions on its sizes that PyTorch found while it traced.

An ``ExportedProgram`` keeps them beside its graph: :meth:`ExportedProgram.module` makes a module that checks them, and
they stand in no node. A program in memory has them as formulas over PyTorch's symbols, a loaded one as Python code over
its inputs (``L['x'].size()[1] % 4 == 0``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.dimensions import Shape
from tkc.frontend.torch.equal_sizes import environment
from tkc.frontend.torch.least_sizes import Least, asked_by_operators

_WRITTEN = "tkc_written_guards"
_LONGEST_TOLD = 200


@dataclass(frozen=True)
class Guards:
    """The conditions of a program: ``traced`` ones, of a program that ``torch.export`` made in this process, and
    ``written`` ones, of a loaded one, whose inputs are called by ``paths``."""

    traced: tuple[sympy.Basic, ...]
    written: tuple[str, ...]
    paths: Mapping[str, int]
    least: tuple[Least, ...] = ()
    """What its operators ask of sizes, before they are replaced by others."""

    @classmethod
    def of(cls, program: ExportedProgram) -> Guards:
        """Those of ``program``.

        Those that were to be checked by nodes of the graph are among them: PyTorch leaves out the nodes of conditions
        that it has no operators for (``int(x.shape[1] * 0.7) == 14``).
        """
        known = environment(program)
        # A graph of torch.compile has no example inputs, and is guarded by torch.compile.
        if known is None or program.example_inputs is None:
            return cls((), (), {})
        least = tuple(asked_by_operators(program.graph))
        conditions = [guard.expr for guard in known.guards]
        conditions += [asserted.expr for each in known.deferred_runtime_asserts.values() for asserted in each]
        traced = tuple(
            condition
            for condition in map(known.replace, conditions)
            # What holds of all sizes but 0 and 1, which the tracer thinks of as others, is granted as it is to a Dim.
            if not holds_in(condition, known.var_to_range)
        )
        # A loaded program does not know its inputs as sources of its symbols. Reading it may make a few guards anew.
        written = () if known.source_to_var else tuple(written_guards(program))
        return cls(traced, written, _paths(program) if written else {}, least)

    def written_over(self, shapes: Sequence[Shape | None]) -> list[str]:
        """Those that are written, over the names that sizes have in ``shapes``, those of the inputs.

        Raises :class:`UnsupportedModelError` for one that is about something else than sizes of inputs.
        """
        return [_over_sizes(guard, self.paths, shapes) for guard in self.written]


def written_guards(program: ExportedProgram) -> list[str]:
    """The conditions of a program as PyTorch writes and would run them; a file's may be anything."""
    guards = program.graph_module.meta.get(_WRITTEN, getattr(program, "_guards_code", None))
    return list(guards or ())


def keep_written_guards(program: ExportedProgram, harmless: Callable[[list[str]], list[str]]) -> None:
    """Have PyTorch run the ``harmless`` ones of a program's written conditions alone; all of them are still known."""
    guards = written_guards(program)
    program.graph_module.meta[_WRITTEN] = guards
    program._guards_code = harmless(guards)


def _over_sizes(guard: str, paths: Mapping[str, int], shapes: Sequence[Shape | None]) -> str:
    try:
        return ast.unparse(_OverSizes(paths, shapes).visit(ast.parse(guard, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError, LookupError, TypeError) as error:
        raise UnsupportedModelError(
            f"The program was exported for {guard[:_LONGEST_TOLD]}, which TKC cannot check ({error}). Export the model "
            "with a fixed size there, or compile the module itself."
        ) from error


def holds_in(condition: sympy.Basic, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]) -> bool:
    """Whether ``condition`` holds of all numbers in ``ranges``, as far as PyTorch can tell."""
    known = {symbol: ranges[symbol] for symbol in condition.free_symbols if symbol in ranges}
    try:
        return bound_sympy(condition, known).lower is sympy.true
    except Exception:  # what PyTorch bounds differs from function to function
        return False


def _paths(program: ExportedProgram) -> dict[str, int]:
    """The position of each input by its name in written conditions."""
    spec = program.call_spec.in_spec
    leaves = list(range(spec.num_leaves))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    signature = program.module_call_graph[0].signature
    names = (signature and signature.forward_arg_names) or []
    # What is left of the positional arguments is that of *args.
    named = dict(zip(names, args, strict=False)) | kwargs | {"args": args[len(names) :] or args, "flat_args": leaves}
    found = pytree.tree_leaves_with_path(named)
    return {f"L{pytree.keystr(path)}": position for path, position in found}


class _OverSizes(ast.NodeTransformer):
    """Writes names of sizes for those of inputs (``L['x'].size()[1]``)."""

    def __init__(self, paths: Mapping[str, int], shapes: Sequence[Shape | None]) -> None:
        self._paths = paths
        self._shapes = shapes

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[]), slice=ast.Constant(value=axis)
            ):
                shape = self._shapes[self._paths[ast.unparse(source)]]
                if shape is not None and isinstance(axis, int):
                    return ast.parse(str(shape[axis]), mode="eval").body
        raise TypeError(f"{ast.unparse(node)} is no size")
