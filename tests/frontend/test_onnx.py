"""The ONNX frontend: real models, ONNX's own backend tests, weights in files, symbolic sizes, and bad input."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.runner import Runner

import tkc
from tests.frontend.onnx_execution import EVERY_CASE, compiled, evaluated, parsed
from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.onnx.importer import import_onnx
from tkc.frontend.onnx.initializers import ALIGNMENT
from tkc.runtime.signature import SizeRange, TensorSpec

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def relative_error(actual: np.ndarray, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected number."""
    return float(np.abs(actual - expected.numpy()).max() / expected.abs().max())


# Whole models


# They take the longest to generate code for; their operators are those of the others, or tested by themselves.
LONG = {"light_densenet121", "light_inception_v1", "light_inception_v2"}


@pytest.mark.parametrize("path", sorted(LIGHT.glob("light_*.onnx")), ids=lambda path: path.stem)
@pytest.mark.daily(2)
def test_light_models_give_their_expected_outputs(path: Path) -> None:
    """Each model that onnx ships runs on the image its own test runner uses."""
    if path.stem in LONG and not EVERY_CASE:
        pytest.skip("takes long; TKC_EVERY_ONNX_CASE=1 runs it")
    (spec,) = import_onnx(path).signature.inputs
    count = int(np.prod(spec.shape))
    image = (np.arange(count).reshape(spec.shape) / count).astype(spec.dtype)
    (output,) = compiled(path)(image)
    expected = numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_0.pb")))
    Runner.assert_similar_outputs([expected], [output], rtol=1e-3, atol=1e-7)


def tiny_llama() -> torch.nn.Module:
    """A Llama of two layers with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tiny_bert() -> torch.nn.Module:
    """A BERT of two layers with random weights."""
    config = transformers.BertConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.BertModel(config).eval()


def exported(model: torch.nn.Module, path: Path, external: bool) -> Path:
    """The file that torch.onnx writes, with batch and sequence symbolic."""
    ids = torch.randint(0, 128, (2, 7))
    dims = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("seq", min=2, max=512)}
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    shapes = dict.fromkeys(arguments, dims)
    program = torch.onnx.export(model, (), kwargs=arguments, dynamic_shapes=shapes, dynamo=True, verbose=False)
    program.save(path, external_data=external)
    return path


@pytest.mark.parametrize(("build", "external"), [(tiny_llama, True), (tiny_bert, False)])
@pytest.mark.daily(2)
def test_transformers_exported_by_torch_agree_with_eager(
    build: Callable[[], torch.nn.Module], external: bool, tmp_path: Path
) -> None:
    """One import serves two sizes, padding included."""
    torch.manual_seed(0)
    model = build()
    path = exported(model, tmp_path / "model.onnx", external)
    assert [spec.shape for spec in import_onnx(path).signature.inputs] == [("batch", "seq")] * 2
    call = compiled(path)
    for batch, length in ((1, 5), (3, 33)):
        ids = torch.randint(0, 128, (batch, length))
        mask = torch.ones_like(ids)
        mask[0, : length // 3] = 0
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask).to_tuple()
        outputs = call(ids.numpy(), mask.numpy())
        assert len(outputs) == len(expected)
        # What a padded position holds is nobody's concern, and not the same in eager mode.
        assert relative_error(outputs[0][mask.bool()], expected[0][mask.bool()]) < 1e-4
        for output, reference in zip(outputs[1:], expected[1:], strict=True):
            assert relative_error(output, reference) < 1e-4


@pytest.mark.daily(1)
def test_positions_table_bounds_the_sequence(tmp_path: Path) -> None:
    """A sequence that slices a table of positions is no longer than the table."""
    imported = import_onnx(exported(tiny_bert(), tmp_path / "bert.onnx", external=False))
    assert imported.signature.sizes == {"batch": SizeRange(0), "seq": SizeRange(1, 512)}


# Operators


def test_functions_of_the_model_are_expanded() -> None:
    """An operator that the model defines needs no converter."""
    model = parsed(
        "g (float[N] x) => (float[N] y) { y = local.twice(x) }",
        functions='<domain: "local", opset_import: ["": 21]> twice (a) => (b) { b = Add(a, a) }',
        imports=', "local": 1',
    )
    np.testing.assert_array_equal(evaluated(model, np.arange(3, dtype="float32"))[0], [0, 2, 4])


BRANCHES = """g (float[N] x, bool flag) => (float[N] y) {
    c = Constant<value = bool {CONDITION}>()
    t = And(flag, c)
    two = Constant<value = float {2.0}>()
    y = If(CHOICE) <
        then_branch = a () => (float[N] u) { u = Mul(x, two) },
        else_branch = b () => (float[N] v) { v = Neg(x) }
    >
}"""


@pytest.mark.daily(1)
@pytest.mark.parametrize(("choice", "condition", "flag", "factor"), [
    ("t", 1, True, 2), ("t", 1, False, -1), ("c", 0, True, -1), ("c", 1, True, 2),
])  # fmt: skip
def test_branches(choice: str, condition: int, flag: bool, factor: int) -> None:
    """A branch is taken by a value known at import, or by one known when the model runs."""
    model = BRANCHES.replace("CONDITION", str(condition)).replace("CHOICE", choice)
    x = np.arange(1, 4, dtype="float32")
    np.testing.assert_array_equal(evaluated(model, x, np.array(flag))[0], factor * x)


# Sizes


def test_shape_arithmetic_stays_symbolic() -> None:
    """A shape put together from pieces of shapes is known but for its symbols."""
    model = parsed(
        """g (float[batch, seq, 6] x) => (float[a, b, c] y) {
        shape = Shape(x)
        first = Constant<value = int64 {0}>()
        zero = Constant<value = int64[1] {0}>()
        one = Constant<value = int64[1] {1}>()
        two = Constant<value = int64[1] {2}>()
        batch = Gather(shape, first)
        rows = Unsqueeze(batch, zero)
        columns = Slice(shape, one, two)
        merged = Mul(rows, columns)
        rest = Constant<value = int64[2] {3, -1}>()
        target = Concat<axis = 0>(merged, rest)
        y = Reshape(x, target)
    }"""
    )
    imported = import_onnx(model)
    (output,) = imported.signature.outputs
    assert output.shape == ("batch * seq", 3, 2)
    assert imported.signature.sizes == {"batch": SizeRange(0), "seq": SizeRange(0)}
    call = compiled(model)
    for shape in ((2, 5, 6), (1, 1, 6)):
        x = np.random.default_rng(0).random(shape, dtype="float32")
        np.testing.assert_array_equal(call(x)[0], x.reshape(-1, 3, 2))


def test_dimensions_may_be_expressions_of_others() -> None:
    """An input as long as two others together says so, and fits them."""
    model = parsed(
        """g (float[past, 4] cache, float[new, 4] x, float["past + new", 4] mask) => (float[T, 4] y) {
        whole = Concat<axis = 0>(cache, x)
        y = Mul(whole, mask)
    }"""
    )
    assert import_onnx(model).signature.inputs[2].shape == ("past + new", 4)
    cache, x, mask = (np.random.default_rng(i).random((n, 4), dtype="float32") for i, n in enumerate((3, 2, 5)))
    np.testing.assert_array_equal(compiled(model)(cache, x, mask)[0], np.concatenate([cache, x]) * mask)


def test_sizes_that_a_broadcast_makes_equal_become_one() -> None:
    """Two names for what the graph adds are one size."""
    imported = import_onnx(parsed("g (float[a, 4] x, float[b, 4] y) => (float[c, 4] z) { z = Add(x, y) }"))
    assert [spec.shape for spec in (*imported.signature.inputs, *imported.signature.outputs)] == [("a", 4)] * 3
    assert list(imported.signature.sizes) == ["a"]


def test_unnamed_dimensions_get_names() -> None:
    """A dimension without a name takes its input's."""
    imported = import_onnx(parsed("g (float[?, 4] x) => (float[?, 4] y) { y = Neg(x) }"))
    assert imported.signature.inputs == (TensorSpec("x", ("x_0", 4), "float32"),)


def test_shape_computed_from_data() -> None:
    """A reshape follows an input, with 0 and -1 as ONNX means them."""
    graph = "g (float[N, 6] x, int64[2] shape) => (float[a, b] y) { y = Reshape(x, shape) }"
    x = np.random.default_rng(0).random((2, 6), dtype="float32")
    np.testing.assert_array_equal(evaluated(graph, x, np.array([-1, 3]))[0], x.reshape(-1, 3))
    np.testing.assert_array_equal(evaluated(graph, x, np.array([0, 6]))[0], x)


# Weights


def model_with_weights(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Multiplies rows of the input by each weight in turn."""
    width = next(iter(weights.values())).shape[0]
    names = ["a.b", *(f"step{i}" for i in range(len(weights) - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], w], [names[i + 1]]) for i, w in enumerate(weights)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width]) for name in ("a.b", "y")]
    initializers = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    # As models before ONNX IR version 4 do, this one lists its initializers among its inputs.
    graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def square(count: int, width: int = 32) -> Sequence[np.ndarray]:
    """Random matrices whose products stay small."""
    return np.random.default_rng(1).random((count, width, width), dtype="float32") / width


def test_weights_keep_their_names_and_are_no_inputs() -> None:
    """Each weight is found under its initializer's name, whatever that is."""
    # Names that would clash if they were shortened or taken for variables of the builder.
    weights = dict(zip(("a_b", "onnx::x", "x", "lv", "gv"), square(5), strict=True))
    model = model_with_weights(weights)
    imported = import_onnx(model)
    assert [spec.name for spec in imported.signature.inputs] == ["a.b"]
    assert list(imported.parameters) == list(weights)
    x = np.eye(32, dtype="float32")
    expected = functools.reduce(np.matmul, weights.values(), x)
    np.testing.assert_allclose(compiled(model)(x)[0], expected, rtol=1e-4)


@pytest.mark.parametrize("padding", [0, 24])
def test_external_weights_are_read_from_beside_the_model(padding: int, tmp_path: Path) -> None:
    """Weights in a file are aligned, right, and safe from what is done to the tensors."""
    weights = dict(zip(("first", "second"), square(2), strict=True))
    path = external_model(weights, tmp_path, padding)
    imported = import_onnx(path)
    for name, weight in weights.items():
        assert torch.equal(imported.parameters[name], torch.from_numpy(weight))
        assert imported.parameters[name].data_ptr() % ALIGNMENT == 0
    imported.parameters["first"].zero_()
    assert torch.equal(import_onnx(path).parameters["first"], torch.from_numpy(weights["first"]))


def external_model(weights: dict[str, np.ndarray], folder: Path, padding: int = 0) -> Path:
    """A model whose weights stand one after the other in a file, behind some bytes of padding."""
    model = model_with_weights(weights)
    content = bytes(padding)
    for tensor in model.graph.initializer:
        entries = {"location": "weights.bin", "offset": len(content), "length": len(tensor.raw_data)}
        content += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.extend(
            onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in entries.items()
        )
    (folder / "weights.bin").write_bytes(content)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_types_that_numpy_lacks(dtype: torch.dtype) -> None:
    """Narrow floats keep their type and their bits."""
    values = torch.linspace(-2, 2, 2048).to(dtype)
    data_type = {torch.bfloat16: "BFLOAT16", torch.float8_e4m3fn: "FLOAT8E4M3FN", torch.float8_e5m2: "FLOAT8E5M2"}[
        dtype
    ]
    kind = getattr(TensorProto, data_type)
    tensor = helper.make_tensor("w", kind, [2048], values.view(torch.uint8).numpy().tobytes(), raw=True)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2048])
    ones = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2048])
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "x"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [ones], [output], [tensor])
    imported = import_onnx(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]))
    assert imported.parameters["w"].dtype == dtype
    assert torch.equal(imported.parameters["w"].float(), values.float())


def test_unused_weights_are_left_out() -> None:
    """What no node reads is no parameter."""
    model = model_with_weights(dict(zip(("used", "unused"), square(2), strict=True)))
    del model.graph.node[1]
    model.graph.output[0].name = model.graph.node[0].output[0]
    assert list(import_onnx(model).parameters) == ["used"]


# Bad input


def test_missing_file() -> None:
    """A path to nothing is the user's mistake."""
    with pytest.raises(UsageError, match=r"no ONNX file at 'nowhere\.onnx'"):
        import_onnx("nowhere.onnx")


@pytest.mark.parametrize("keep", [0, 1, 2, 40, 1000])
def test_file_cut_short(keep: int, tmp_path: Path) -> None:
    """A part of a file is recognized wherever the cut is."""
    path = tmp_path / "cut.onnx"
    path.write_bytes(model_with_weights({"w": square(1)[0]}).SerializeToString()[:keep])
    with pytest.raises(UnsupportedModelError, match=r"cut\.onnx.* cut short"):
        import_onnx(path)


def test_file_that_is_not_onnx(tmp_path: Path) -> None:
    """Text is no model."""
    path = tmp_path / "notes.onnx"
    path.write_text("These are my notes, and no model at all.\n" * 20)
    with pytest.raises(UnsupportedModelError, match=r"notes\.onnx.* not ONNX"):
        import_onnx(path)


def test_external_file_missing_cut_or_elsewhere(tmp_path: Path) -> None:
    """Each way in which a weight file can be wrong is told with the weight's name."""
    path = external_model({"w": square(1)[0]}, tmp_path)
    with pytest.raises(UsageError, match=r"'w'.*pass the path"):
        import_onnx(onnx.load(path, load_external_data=False))
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    with pytest.raises(UnsupportedModelError, match=r"'w' needs 4096 bytes .* has 100"):
        import_onnx(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UnsupportedModelError, match=r"'w' stands in the file 'weights\.bin'"):
        import_onnx(path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../weights.bin"
    onnx.save(model, path)
    with pytest.raises(UnsupportedModelError, match="outside the model's folder"):
        import_onnx(path)


def test_unknown_operators_are_all_listed() -> None:
    """The error lists every node, with domain and name, and no other."""
    model = parsed(
        "g (float[N] x) => (float[N] y) { a = acme.Frobnicate(x)  b = Sin(a)  c = acme.Twist(b)  y = Nonsense(c) }",
        imports=', "acme": 1',
    )
    for node, name in zip(model.graph.node, ("one", "two", "three", "four"), strict=True):
        node.name = name
    with pytest.raises(UnsupportedModelError) as caught:
        import_onnx(model)
    message = str(caught.value)
    assert "3 nodes" in message
    for entry in ("'one' (acme.Frobnicate)", "'three' (acme.Twist)", "'four' (Nonsense)"):
        assert entry in message
    assert "Sin" not in message


@pytest.mark.parametrize(("graph", "opset", "message"), [
    ("g (float[N] x) => (float[N] y) { y = Neg(x) }", 999, "opset 999"),
    ("g (complex64[N] x) => (complex64[N] y) { y = Identity(x) }", 21, "'x' has elements of type complex64"),
    ("g (float x) => (float[N] y) { y = Neg(missing) }", 21, "no valid ONNX.*missing"),
    ("g (float[N] x, int64[K] axes) => (float y) { y = ReduceSum<keepdims = 0>(x, axes) }", 21,
     r"'y' \(ReduceSum\) needs input 1 \(axes\) to be a vector of fixed length"),
    ("g (float[2, 3] x) => (float[a, b] y) { s = Constant<value = int64[2] {4, 5}>()  y = Expand(x, s) }", 21, "'y'"),
])  # fmt: skip
def test_models_that_cannot_be_imported(graph: str, opset: int, message: str) -> None:
    """The error names what is wrong."""
    with pytest.raises(UnsupportedModelError, match=message):
        import_onnx(parsed(graph, opset))


def test_input_without_a_shape() -> None:
    """The error names the input, and what gives it one: an example, of as many dimensions."""
    model = parsed("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedModelError, match=r"'x' is a tensor without a shape, .*example_kwargs"):
        import_onnx(model)
    executable = tkc.compile(model, target="cpu", kernels="none", example_args=(np.zeros(2, "float32"),))
    assert [len(spec.shape) for spec in executable.signature.inputs] == [1]
    np.testing.assert_array_equal(executable(x=np.ones(3, "float32")), -np.ones(3, "float32"))
