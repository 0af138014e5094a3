"""Sizes that nothing has, or that overflow."""

from __future__ import annotations

from onnx import ModelProto

from tests.frontend.hostile_onnx.files import DEEP, HUGE, changed, from_body


def _sizes(name: str, body: str, output: str = "float[n] y", inputs: str = "float[4] x") -> None:
    from_body(f"sizes: {name}", body, inputs, output)


_sizes("ConstantOfShape", f"s = Constant<value_ints = [{HUGE}]>() y = ConstantOfShape(s)")
_sizes("ConstantOfShape of an initializer", "y = ConstantOfShape(s)", inputs=f"float[4] x, int64[1] s = {{{HUGE}}}")
_sizes("ConstantOfShape by way of others", f"a = Constant<value_ints = [{1 << 20}]>() s = Mul(a, a) "
       "y = ConstantOfShape(s)")  # fmt: skip
_sizes("ConstantOfShape by way of Identity", f"a = Constant<value_ints = [{HUGE}]>() s = Identity(a) "
       "y = ConstantOfShape(s)")  # fmt: skip
_sizes("ConstantOfShape by way of Shape", "s = Shape(x) y = ConstantOfShape(s)", inputs=f"float[{HUGE}] x")
_sizes("ConstantOfShape and more", f"s = Constant<value_ints = [{HUGE}]>() c = ConstantOfShape(s) y = Add(c, x)")
_sizes("ConstantOfShape of a scalar", f"s = Constant<value_int = {HUGE}>() y = ConstantOfShape(s)")
_sizes("ConstantOfShape of integers", f"s = Constant<value_ints = [{HUGE}]>() y = ConstantOfShape"
       "<value = int64[1] {1}>(s)", "int64[n] y")  # fmt: skip
_sizes("ConstantOfShape just fitting", f"s = Constant<value_ints = [{1 << 36}]>() y = ConstantOfShape"
       "<value = int64[1] {1}>(s)", "int64[n] y")  # fmt: skip
_sizes("ConstantOfShape in a branch", f"y = If(c) <then_branch = a () => (float[n] t) {{ s = Constant<value_ints = "
       f"[{HUGE}]>() t = ConstantOfShape(s) }}, else_branch = b () => (float[n] e) {{ e = Relu(x) }}>",
       inputs="float[4] x, bool c")  # fmt: skip
_sizes("ConstantOfShape of many dimensions", f"s = Constant<value_ints = [{', '.join(['2'] * 60)}]>() "
       "y = ConstantOfShape(s)", "float y")  # fmt: skip
_sizes("Expand", f"s = Constant<value_ints = [{HUGE}, 4]>() y = Expand(x, s)", "float[n, m] y")
_sizes("Expand that overflows", f"s = Constant<value_ints = [{1 << 62}, 4]>() y = Expand(x, s)", "float[n, m] y")
_sizes("Expand of a constant", f"a = Constant<value_float = 1.0>() s = Constant<value_ints = [{HUGE}]>() "
       "y = Expand(a, s)")  # fmt: skip
_sizes("Expand of integers", f"a = Constant<value_int = 1>() s = Constant<value_ints = [{HUGE}]>() b = Expand(a, s) "
       "y = ConstantOfShape(b)")  # fmt: skip
_sizes("Tile", f"s = Constant<value_ints = [{HUGE}]>() y = Tile(x, s)")
_sizes("Tile of a constant", f"a = Constant<value_ints = [1]>() s = Constant<value_ints = [{HUGE}]>() y = Tile(a, s)",
       "int64[n] y")  # fmt: skip
_sizes("Tile that is negative", "s = Constant<value_ints = [-1]>() y = Tile(x, s)")
_sizes("Range", f"a = Constant<value_int = 0>() b = Constant<value_int = {HUGE}>() c = Constant<value_int = 1>() "
       "y = Range(a, b, c)", "int64[n] y")  # fmt: skip
_sizes("Range without steps", "a = Constant<value_int = 0>() b = Constant<value_int = 1>() y = Range(a, b, a)",
       "int64[n] y")  # fmt: skip
_sizes("Range of numbers", "a = Constant<value_float = 0.0>() b = Constant<value_float = 1e30>() "
       "c = Constant<value_float = 1e-30>() y = Range(a, b, c)")  # fmt: skip
_sizes("Range by way of others", "a = Constant<value_int = 0>() b = Constant<value_int = 1048576>() d = Mul(b, b) "
       "c = Constant<value_int = 1>() y = Range(a, d, c)", "int64[n] y")  # fmt: skip
_sizes("Pad", f"s = Constant<value_ints = [0, {HUGE}]>() y = Pad(x, s)")
_sizes("Pad that is negative", f"s = Constant<value_ints = [-{HUGE}, 0]>() y = Pad(x, s)")
_sizes("Pad of a constant", f"a = Constant<value_ints = [1]>() s = Constant<value_ints = [0, {HUGE}]>() y = Pad(a, s)",
       "int64[n] y")  # fmt: skip
_sizes("Pad, reflected", f's = Constant<value_ints = [0, {HUGE}]>() y = Pad<mode = "reflect">(x, s)')
_sizes("Resize", f"s = Constant<value_ints = [1, 1, {HUGE}]>() y = Resize(x, , , s)",
       "float[a, b, n] y", "float[1, 1, 4] x")  # fmt: skip
_sizes("Resize by scales", "s = Constant<value_floats = [1.0, 1.0, 1e12]>() y = Resize(x, , s)", "float[a, b, n] y",
       "float[1, 1, 4] x")  # fmt: skip
_sizes("Resize by scales that are none", "s = Constant<value_floats = [1.0, 1.0, -1.0]>() y = Resize(x, , s)",
       "float[a, b, n] y", "float[1, 1, 4] x")  # fmt: skip
_sizes("Resize by infinity", "s = Constant<value_floats = [1.0, 1.0, 3e38]>() y = Resize(x, , s)",
       "float[a, b, n] y", "float[1, 1, 4] x")  # fmt: skip
_sizes("OneHot", f"i = Constant<value_ints = [1]>() d = Constant<value_int = {HUGE}>() "
       "v = Constant<value_floats = [0.0, 1.0]>() y = OneHot(i, d, v)", "float[m, n] y")  # fmt: skip
_sizes("Reshape", f"s = Constant<value_ints = [{HUGE}, -1]>() y = Reshape(x, s)", "float[n, m] y")
_sizes("Reshape that overflows", f"s = Constant<value_ints = [{1 << 62}, 4, 4]>() y = Reshape(x, s)",
       "float[n, m, k] y")  # fmt: skip
_sizes("Unsqueeze", f"s = Constant<value_ints = [{HUGE}]>() y = Unsqueeze(x, s)", "float[n, m] y")
_sizes("window", f"s = Constant<value_int = {HUGE}>() y = HannWindow(s)")
_sizes("EyeLike", "y = EyeLike(x)", f"float[{1 << 20}, {1 << 20}] y", f"float[{1 << 20}, {1 << 20}] x")
_sizes("outer product", "a = Unsqueeze(x, z) y = Mul(a, x)", f"float[{1 << 20}, {1 << 20}] y",
       f"float[{1 << 20}] x, int64[1] z = {{1}}")  # fmt: skip
_sizes("input of 2^40", "y = Relu(x)", f"float[{HUGE}] y", f"float[{HUGE}] x")
_sizes("input of 2^80", "y = Relu(x)", f"float[{HUGE}, {HUGE}] y", f"float[{HUGE}, {HUGE}] x")
_sizes("random numbers", f"y = RandomNormal<shape = [{HUGE}]>()")
_sizes("DepthToSpace", f"y = DepthToSpace<blocksize = {HUGE}>(x)", "float[a, b, c, d] y", "float[1, 4, 1, 1] x")
_sizes("MaxPool that pads", f"y = MaxPool<kernel_shape = [1], pads = [0, {HUGE}]>(x)", "float[a, b, n] y",
       "float[1, 1, 4] x")  # fmt: skip
_sizes("Conv that pads", f"y = Conv<kernel_shape = [1], pads = [0, {HUGE}]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 1] w")  # fmt: skip
_sizes("Conv without stride", "y = Conv<kernel_shape = [1], strides = [0]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 1] w")  # fmt: skip
_sizes("Conv that dilates", f"y = Conv<kernel_shape = [2], dilations = [{HUGE}]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 2] w")  # fmt: skip
_sizes("ConvTranspose", f"y = ConvTranspose<strides = [{HUGE}]>(x, w)", "float[a, b, n] y",
       "float[1, 1, 4] x, float[1, 1, 2] w")  # fmt: skip
_sizes("MaxPool without stride", "y = MaxPool<kernel_shape = [1], strides = [0]>(x)", "float[a, b, n] y",
       "float[1, 1, 4] x")  # fmt: skip
_sizes("Split", f"a, b = Split<num_outputs = {HUGE}>(x) y = Add(a, b)")
_sizes("doubled forty times", " ".join(
    f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(40)).replace("v0", "x") + " y = Relu(v40)")  # fmt: skip
_sizes("doubled forty times, known", "v0 = Constant<value_ints = [1, 2]>() " + " ".join(
    f"v{i + 1} = Concat<axis = 0>(v{i}, v{i})" for i in range(40)) + " y = ConstantOfShape(v40)")  # fmt: skip
_sizes("names that overflow", "y = Relu(x)", "float[n] y", "float[n, m, k, l] x")
_sizes("CumSum far off", f"a = Constant<value_int = {HUGE}>() y = CumSum(x, a)")
_sizes("TopK", f"k = Constant<value_ints = [{HUGE}]>() y, i = TopK(x, k)")
_sizes("Slice", f"a = Constant<value_ints = [0]>() b = Constant<value_ints = [{HUGE}]>() "
       "s = Constant<value_ints = [0]>() y = Slice(x, a, b, a, s)")  # fmt: skip
_sizes("BitShift", "a = Constant<value_int = 1>() y = BitShift<direction = \"LEFT\">(a, b)", "int64 y",
       f"float[4] x, int64 b = {{{HUGE}}}")  # fmt: skip
_sizes("power", "a = Constant<value_int = 10>() b = Constant<value_int = 1000000000>() y = Pow(a, b)", "int64 y")
_sizes("division by zero", "a = Constant<value_int = 1>() b = Constant<value_int = 0>() y = Div(a, b)", "int64 y")
_sizes("least number by minus one", f"a = Constant<value_int = {-(1 << 63)}>() b = Constant<value_int = -1>() "
       "y = Div(a, b)", "int64 y")  # fmt: skip


def _dimension(name: str, text: str) -> None:
    def change(model: ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "n"
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_param = text
        for _ in range(2):
            model.graph.output[0].type.tensor_type.shape.dim.add()

    changed(f"dimension: {name}", change)


_dimension("nested", "(" * DEEP + "n" + ")" * DEEP)
_dimension("negated", "-" * DEEP + "n")
_dimension("long sum", "+".join(["n"] * DEEP))
_dimension("nested sum", "(n+" * 150 + "n" + ")" * 150)
_dimension("power", "n*9**9**9**9")
_dimension("large", "n*" + "9" * 100_000)
_dimension("larger than int64", f"n*{1 << 70}")
_dimension("division by zero", "n//0")
_dimension("call", "__import__('os').system('true')")
_dimension("null character", "n\0+1")
_dimension("keyword", "None+n")
_dimension("surrogate escape", "n\U0010ffff")
_dimension("megabyte", "n" * 1_000_000)
_dimension("shift", "n<<99999999999")
_dimension("truth", "n+True")
