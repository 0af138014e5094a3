"""Importing PyTorch models: real transformers, every way to call a model, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from tests.frontend import execution, models
from tests.frontend.torch_models import Counting, tensors
from tkc.errors import UsageError
from tkc.frontend.torch.importer import import_torch
from tkc.passes.graph.updates import updates
from tkc.runtime.signature import Constant, SizeRange, TensorSpec

pytestmark = pytest.mark.usefixtures("same_numbers_every_time")


def outputs_of(model: nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """The model's flattened outputs by PyTorch."""
    with torch.no_grad():
        return pytree.tree_leaves(model(**inputs))


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", (models.BERT, models.VIT), ids=lambda case: case.name)
def test_transformer_agrees_with_pytorch(case: models.Case) -> None:
    """One import serves every batch and sequence size, and computes what PyTorch does before any pass of ours.

    Of the others, ``test_compiled_models.py`` says so after all passes.
    """
    model = case.model()
    imported = import_torch(model, (), case.inputs(2, 7), case.dynamic_shapes)
    named = {dim.__name__ for axes in case.dynamic_shapes.values() for dim in (axes or {}).values()}
    assert set(imported.signature.sizes) == named
    run = execution.executable(imported)
    for batch, sequence in ((2, 7), (3, 13)):
        inputs = case.inputs(batch, sequence)
        pairs = zip(run(*tensors(inputs)), outputs_of(model, inputs), strict=True)
        assert max(execution.relative_error(*pair) for pair in pairs) < 1e-4


@pytest.mark.daily(1)
@pytest.mark.parametrize("case", models.MOE_CASES, ids=lambda case: case.name)
def test_experts_are_grouped_products(case: models.Case) -> None:
    """Each layer's experts are two grouped products over sorted tokens, with the weight as the model stores it."""
    layers = 1 + case.options.get("first_k_dense_replace", 0)
    imported = import_torch(case.model(num_hidden_layers=layers), (), case.inputs(2, 7), case.dynamic_shapes)
    found = [function.attrs for function in imported.module.functions.values() if "tkc.op" in (function.attrs or {})]
    layouts = [attrs["tkc.weight_layout"] for attrs in found if attrs["tkc.op"] == "grouped_matmul"]
    assert layouts == ["gnk", "gnk"]
    assert imported.module.script().count("cls.grouped_matmul") == 2


@pytest.mark.daily(1)
def test_attention_of_matrix_products_agrees_with_pytorch() -> None:
    """A model with eager attention has no attention operator, and agrees all the same."""
    case = models.LLAMA
    model = case.model(attn_implementation="eager", num_hidden_layers=1)
    imported = import_torch(model, (), case.inputs(2, 7), case.dynamic_shapes)
    assert "R.nn.attention" not in imported.module.script()
    inputs = case.inputs(3, 5)
    (found,), (expected,) = execution.executable(imported)(*tensors(inputs)), outputs_of(model, inputs)
    assert execution.relative_error(found, expected) < 1e-4


@pytest.mark.daily(1)
def test_bfloat16_model_computes_in_bfloat16() -> None:
    """Weights, activations and results are bfloat16, and close to the float32 model."""
    case = models.QWEN3_MOE
    imported = import_torch(case.model(torch.bfloat16), (), case.inputs(2, 7), case.dynamic_shapes)
    weights = {name: tensor.dtype for name, tensor in imported.parameters.items() if "weight" in name or "proj" in name}
    assert set(weights.values()) == {torch.bfloat16}
    inputs = case.inputs(2, 7)
    (found,), (expected,) = execution.executable(imported)(*tensors(inputs)), outputs_of(case.model(), inputs)
    assert found.dtype == torch.bfloat16
    assert execution.relative_error(found.float(), expected) < 5e-2


def test_weights_are_the_models_own_tensors_and_tied_ones_come_once() -> None:
    """No weight is copied, and one that has two names is one parameter."""
    case = models.LLAMA
    model = case.model(tie_word_embeddings=True, num_hidden_layers=1)
    imported = import_torch(model, (), case.inputs(2, 7), case.dynamic_shapes)
    own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    found = [tensor.data_ptr() for tensor in imported.parameters.values()]
    assert len(set(found)) == len(found)
    assert set(found) <= own
    assert len(found) == len({parameter.data_ptr() for parameter in model.parameters()}) + 1  # the rotary frequencies
    assert len(imported.module["main"].params) == len(imported.signature.inputs) + len(found)


@dataclass
class Pair:
    """A user's own result type."""

    total: torch.Tensor
    parts: list[torch.Tensor]


pytree.register_dataclass(Pair, serialized_type_name=f"{__name__}.Pair")


class Nested(nn.Module):
    """Takes and returns structures, and has a buffer and an unused weight."""

    offset: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(4.0))
        self.register_buffer("scale", torch.tensor(2.0))
        self.unused = nn.Parameter(torch.ones(7))

    def forward(
        self, first: torch.Tensor, more: dict[str, Any], *, factor: float = 1.0, last: torch.Tensor | None = None
    ) -> tuple[Pair, dict[str, torch.Tensor | None]]:
        """Every input takes part in some output."""
        left, right = more["pair"]
        total = first * factor + left - right + self.offset
        return Pair(total, [left * self.scale, right]), {"last": last, "nothing": None, "double": total.double()}


def _nested_call(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    first, left, right, last = (torch.randn(rows, 4) for _ in range(4))
    return (first, {"pair": (left, right)}), {"last": last, "factor": 0.5}


def test_structures_and_keyword_arguments() -> None:
    """The signature has every leaf in order, and puts results back into the model's structure."""
    model = Nested()
    args, kwargs = _nested_call(3)
    rows = {0: Dim("rows", min=2, max=9)}
    shapes = {"first": rows, "more": {"pair": (rows, rows)}, "factor": None, "last": rows}
    imported = import_torch(model, args, kwargs, shapes)
    signature = imported.signature
    leaves = pytree.tree_leaves((args, kwargs))
    assert [leaf.value if isinstance(leaf, Constant) else "tensor" for leaf in signature.leaves] == [
        "tensor" if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    assert all(spec.shape == ("rows", 4) for spec in signature.inputs)
    assert signature.sizes == {"rows": SizeRange(2, 9)}
    assert pytree.treespec_loads(signature.in_spec) == pytree.tree_structure((args, kwargs))
    assert [value.value for _, value in signature.constant_outputs] == [None]
    assert set(imported.parameters) == {"offset"}

    args, kwargs = _nested_call(5)
    found: list[Any] = execution.executable(imported)(*tensors((args, kwargs)))
    for position, constant in signature.constant_outputs:
        found.insert(position, constant.value)
    result, named = pytree.tree_unflatten(found, pytree.treespec_loads(signature.out_spec))
    expected, expected_named = model(*args, **kwargs)
    assert isinstance(result, Pair)
    assert torch.allclose(result.total, expected.total)
    assert torch.equal(result.parts[1], expected.parts[1])
    assert named["nothing"] is None
    assert named["double"].dtype == torch.float64
    assert torch.equal(named["last"], expected_named["last"])


class Attending(nn.Module):
    """PyTorch's own transformer layers, which return what they were not asked for as None."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The attended sequence, and no weights."""
        x = self.encoder(x)
        return self.attention(x, x, x, need_weights=False)


def test_pytorch_transformer_layers() -> None:
    """What PyTorch would run as one fused operator is decomposed; a None result is a constant of the signature."""
    model = Attending().eval()
    imported = import_torch(model, (torch.randn(2, 5, 8),), dynamic_shapes=({0: Dim("batch", min=2)},))
    assert imported.signature.constant_outputs[0][0] == 1
    x = torch.randn(3, 5, 8)
    (found,) = execution.executable(imported)(x)
    assert execution.relative_error(found, model(x)[0].detach()) < 1e-5


@pytest.mark.daily(1)
def test_saved_program(saved: Path) -> None:
    """A .pt2 file is complete: weights, signature, symbolic sizes."""
    case = models.LLAMA
    imported = import_torch(saved)
    assert len(imported.signature.sizes) == 2
    inputs = case.inputs(3, 9)
    (found,) = execution.executable(imported)(*tensors(inputs))
    (expected,) = outputs_of(case.model(num_hidden_layers=1), inputs)
    assert execution.relative_error(found, expected) < 1e-4


def test_exported_program_takes_no_examples(saved: Path) -> None:
    """What a program already has cannot be given again."""
    with pytest.raises(UsageError, match="exported already"):
        import_torch(saved, (torch.ones(1),))


def test_state_that_the_model_changes_is_part_of_the_signature() -> None:
    """Also a scalar, which would be a constant otherwise; its new value is returned behind the results."""
    imported = import_torch(Counting(), (torch.ones(3),))
    assert imported.signature.state == (TensorSpec("count", (), "int64"),)
    assert set(imported.parameters) == {"count"}
    (update,) = updates(imported.module["main"])
    assert update.target.name_hint == "count" and len(imported.module["main"].ret_struct_info.fields) == 2


class Caching(nn.Module):
    """Holds the tensors of its cache in an object; one of them is registered too."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = [torch.zeros(2, 4), torch.zeros(2, 4)]
        self.register_buffer("keys", self.tensors[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds ``x`` to both."""
        for tensor in self.tensors:
            tensor.add_(x)
        return self.keys + self.tensors[1]


def test_tensors_that_are_held_without_being_registered_are_state() -> None:
    """Under the name of the buffer of the same memory, if there is one; and once."""
    model = Caching()
    names = [spec.name for spec in import_torch(model, (torch.ones(2, 4),)).signature.state]
    assert len(names) == 2 and "keys" in names
    assert all(torch.equal(tensor, torch.zeros(2, 4)) for tensor in model.tensors)


def test_inputs_keep_their_place_when_unused() -> None:
    """An input that the model ignores is still one of the function's parameters."""

    class First(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x

    imported = import_torch(First(), (torch.ones(2), torch.ones(3)))
    assert imported.signature.inputs == (TensorSpec("x", (2,), "float32"), TensorSpec("y", (3,), "float32"))
    assert torch.equal(execution.executable(imported)(torch.ones(2), torch.ones(3))[0], torch.ones(2))


def test_weights_have_names_that_generated_code_can_have() -> None:
    """Of modules in a sequence, and of those whose names only a dictionary allows; none twice."""
    layers = {"a-b": torch.nn.Linear(3, 3), "a_b": torch.nn.Linear(3, 3)}

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*torch.nn.ModuleDict(layers).values())
            self.named = torch.nn.ModuleDict(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.named["a-b"](self.named["a_b"](x))

    for model in (Named(), torch.nn.Sequential(*layers.values())):
        imported = import_torch(model, (torch.ones(2, 3),))
        names = [variable.name_hint for variable in imported.module["main"].params]
        assert len(set(names)) == len(names) == 5
        assert all(name.isidentifier() for name in names)
