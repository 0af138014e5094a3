"""What the fuzzer found, as small as it could be made: each was wrong, crashed, hung or failed inside TKC once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.fuzz.found import check, tensor


def test_one_element_with_bound_variables() -> None:
    """Internal: "Let cannot bind the same var to two different values" where all lanes were the only element."""

    class Model(nn.Module):
        def forward(self, v0):
            return (F.gelu(v0, approximate="tanh"),)

    check(Model, [tensor(0, (1,), "float32", "plain")], [{}])


def test_a_bound_value_that_simplifies() -> None:
    """Internal: "Binding of variable operand as I.Range(3.0, 4.0) conflicts with previous binding"."""

    class Model(nn.Module):
        def forward(self, v0):
            return F.hardswish(v0 - v0), torch.clamp(v0 - v0 + 2.0, -1.0, 1.0)

    check(Model, [tensor(0, ("n0", 3), "float32", "special integers")], [{"n0": 4}, {"n0": 1}, {"n0": 257}])


def test_attention_over_a_symbolic_number_of_heads() -> None:
    """Internal: int() of a SizeVar."""

    class Model(nn.Module):
        def forward(self, v0, v1, v2):
            return (F.scaled_dot_product_attention(v0, v1, v2),)

    check(
        Model,
        [
            tensor(0, (2, "n0", 5, 4), "float32", "plain"),
            tensor(1, (2, "n0", 7, 4), "float32", "plain"),
            tensor(2, (2, "n0", 7, 4), "float32", "plain"),
        ],
        [{"n0": 5}, {"n0": 1}],
    )


def test_sizes_of_concatenations() -> None:
    """Internal: "Inconsistent buffers T_multiply and lv19 mapped to the same relax var"."""

    class Model(nn.Module):
        def forward(self, v0, v1):
            rolled = F.elu(torch.sqrt(torch.roll(v0, 5, 1)))
            halves = torch.cat((v1[:, : v1.shape[1] // 2], v1[:, v1.shape[1] // 2 :]), 1)
            return rolled, F.elu(halves * 2), torch.expm1(halves) + halves

    inputs = [tensor(0, (1, "n0", 1), "int64", "integers"), tensor(1, (3, "n1"), "float32", "plain")]
    check(Model, inputs, [{"n0": 2, "n1": 4}, {"n0": 17, "n1": 5}])


def test_sizes_that_padding_and_repetition_add_up() -> None:
    """Internal: "Inconsistent buffers T_multiply and lv8 mapped to the same relax var"."""

    class Model(nn.Module):
        def forward(self, v0):
            flat = v0.reshape((-1,))
            padded = F.pad(flat, (3, 0))
            joined = torch.cat((flat[1:], flat)) * 2
            return F.selu(F.pad(flat, (1, 1), value=1)), F.elu(joined), F.elu(padded.repeat(2) + 1), F.elu(flat[1:])

    check(Model, [tensor(0, ("n0", 4), "float32", "plain")], [{"n0": 2}, {"n0": 33}])


def test_a_divisor_that_simplifies_to_zero() -> None:
    """Internal: "Divide by zero" where whole numbers minus themselves are divided by."""

    class Model(nn.Module):
        def forward(self, v0, v1):
            nothing = v0 - v0
            return (
                v1 / nothing,
                v1 / nothing.clamp(0, 0),
                v1 / torch.where(v0 > v0, 2.0, 0.0),
                v1.reciprocal() / (v0 * 0),
            )

    check(Model, [tensor(0, (1,), "int64", "integers"), tensor(1, (3, 1), "float32", "integers")], [{}])


def test_a_reshape_that_divides_by_a_formula() -> None:
    """Internal: "The padding factor (n0 + 2) * 2 is not divisible by n0 + 2", of a view."""

    class Model(nn.Module):
        def __init__(self, tensors):
            super().__init__()
            self.register_buffer("v1", tensors[0])

        def forward(self, v0, v2):
            padded = F.pad(v0, (0, 2, 1, 0), value=1)
            self.v1.add_(v2)
            return torch.stack((padded, padded), 1), torch.stack((padded, padded, padded), 0).reshape(-1, 6)

    inputs = [
        tensor(0, (1, "n0"), "int64", "below", bound=5),
        tensor(1, (), "float32", "plain", role="buffer"),
        tensor(2, (), "float32", "plain"),
    ]
    check(Model, inputs, [{"n0": 2}, {"n0": 7}], [1])


def test_a_size_asserted_together_with_another() -> None:
    """Internal: "relax.matmul is left"; of several conditions in one, none was seen to settle the size of the data."""

    class Model(nn.Module):
        def __init__(self, tensors):
            super().__init__()
            self.register_buffer("v30", tensors[0])

        def forward(self, v5, v25, v31, v43, v4):
            v8 = torch.div(v4[: v5.sum().item()].clone(), -1)
            v26 = torch.bmm(v8, v25)
            self.v30[1:-2] = v31
            return (torch.mean(v26, dim=(2,), keepdim=True)[v43],)

    inputs = [
        tensor(5, (4,), "bool", "chosen", bound=4),
        tensor(25, (3, "n0", 3), "float32", "integers"),
        tensor(30, (4,), "bool", "flags", role="buffer"),
        tensor(31, (1,), "bool", "flags"),
        tensor(43, (3,), "bool", "chosen", bound=2),
        tensor(4, (4, "n1", "n0"), "int32", "integers"),
    ]
    check(Model, inputs, [{"n0": 5, "n1": 7}], [30])
