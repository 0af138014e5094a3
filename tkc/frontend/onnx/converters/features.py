"""What ``ai.onnx.ml`` does to features before a model: scaling, normalization, imputation, encoding."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from tkc.frontend.onnx.converters.shared import Converted, Converter, scalar
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.values import ConversionError


def _as_float(node: Node, position: int = 0) -> relax.Expr:
    tensor = node.tensor(position)
    return tensor if node.dtype(position) == "float32" else node.emit(relax.op.astype(tensor, "float32"))


def _scaler(node: Node) -> Converted:
    """Features less their offsets, times their scales."""
    x = _as_float(node)
    offset, scale = (np.array(node.attribute(name, (0.0,)), "float32") for name in ("offset", "scale"))
    # Vectors: TVM would multiply out what numbers without dimensions are added to and multiplied with.
    difference = node.emit(relax.op.subtract(x, relax.const(offset, "float32")))
    return relax.op.multiply(difference, relax.const(scale, "float32"))


def _normalizer(node: Node) -> Converted:
    """Rows divided by their largest element, or their norm; those of which it is 0 stay."""
    x, kind = _as_float(node), node.attribute("norm", "MAX")
    if kind == "MAX":
        size = node.emit(relax.op.max(x, [-1], True))
    elif kind == "L1":
        size = node.emit(relax.op.sum(relax.op.abs(x), [-1], True))
    elif kind == "L2":
        size = node.emit(relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), [-1], True)))
    else:
        raise ConversionError(f"has norm {kind!r}; expected MAX, L1 or L2: correct the model")
    return relax.op.where(relax.op.equal(size, scalar(0, "float32")), x, relax.op.divide(x, size))


def _imputer(node: Node) -> Converted:
    """One value replaced, NaN or a number, by one for all features or one for each."""
    dtype = node.dtype(0)
    is_float = "float" in dtype
    values = node.attribute("imputed_value_floats" if is_float else "imputed_value_int64s")
    replaced = node.attribute("replaced_value_float" if is_float else "replaced_value_int64", 0)
    if not values:
        raise ConversionError(f"has no values to impute in {dtype}; correct the model")
    x = node.tensor(0)
    of_nan = is_float and np.isnan(replaced)
    found = relax.op.isnan(x) if of_nan else relax.op.equal(x, scalar(replaced, dtype))
    return relax.op.where(found, relax.const(np.array(values, dtype), dtype), x)


def _one_hot_encoder(node: Node) -> Converted:
    """1 where a category is that of the position; of one that is unknown zeros, or, without ``zeros``, an error."""
    categories = node.attribute("cats_int64s")
    if not categories:
        raise ConversionError("has no categories; correct the model")
    known = relax.const(np.array(categories, "int64"), "int64")
    x = node.tensor(0)
    if node.dtype(0) != "int64":
        x = node.emit(relax.op.astype(x, "int64"))
    found = node.emit(relax.op.equal(node.emit(relax.op.expand_dims(x, [-1])), known))
    result = node.emit(relax.op.astype(found, "float32"))
    if not node.attribute("zeros", 1):
        missing = relax.op.subtract(scalar(1, "float32"), relax.op.max(result, [-1]))
        # An index that is out of range of an axis of one where the category is unknown.
        node.note_indices(node.emit(relax.op.astype(missing, "int64")), 1)
    return result


def _encoding(node: Node, part: str, dtypes: dict[str, str]) -> np.ndarray:
    """The keys or values of a LabelEncoder."""
    tensor = node.attribute(f"{part}_tensor")
    if tensor is not None:
        return np.asarray(onnx.numpy_helper.to_array(tensor)).ravel()
    for name, dtype in dtypes.items():
        given = node.attribute(f"{part}_{name}")
        if given:
            return np.array(given, dtype)
    raise ConversionError(f"has no {part}; correct the model")


def _label_encoder(node: Node) -> Converted:
    """Values looked up by keys, NaN among them; a default of those that are no key."""
    dtypes = {"int64s": "int64", "floats": "float32"}
    keys, values = (_encoding(node, part, dtypes) for part in ("keys", "values"))
    if len(keys) != len(values):
        raise ConversionError(f"has {len(keys)} keys and {len(values)} values; correct the model")
    dtype, x = str(values.dtype), node.tensor(0)
    default = node.attribute("default_tensor")
    if default is not None:
        number = onnx.numpy_helper.to_array(default).ravel()[0]
    else:
        is_whole = values.dtype.kind in "iu"
        number = node.attribute("default_int64", -1) if is_whole else node.attribute("default_float", -0.0)
    wide = node.emit(relax.op.expand_dims(x, [-1]))
    found = relax.op.equal(wide, relax.const(keys.astype(node.dtype(0)), node.dtype(0)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        of_nan = relax.op.logical_and(relax.op.isnan(wide), relax.const(np.isnan(keys), "bool"))
        found = relax.op.logical_or(found, of_nan)
    found = node.emit(relax.op.astype(node.emit(found), "int32"))
    place = node.emit(relax.op.argmax(found, -1))
    result = node.emit(relax.op.take(relax.const(values, dtype), place, 0, mode="clip"))
    is_known = relax.op.greater(node.emit(relax.op.max(found, [-1])), scalar(0, "int32"))
    return relax.op.where(is_known, result, scalar(number.item() if hasattr(number, "item") else number, dtype))


def _feature_vectorizer(node: Node) -> Converted:
    """Columns of all inputs, as float32, side by side."""
    parts = []
    for i in range(len(node.inputs)):
        if i and node.rank(i) == 2:
            node.require_shape(i, [node.shape(0)[0], node.shape(i)[1]])
        part = _as_float(node, i)
        parts.append(part if node.rank(i) == 2 else node.emit(relax.op.expand_dims(part, [0])))
    return relax.op.concat(parts, 1)


ML_CONVERTERS: dict[str, Converter] = {
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "Scaler": _scaler,
}
