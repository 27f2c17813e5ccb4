"""The minimal cost of PyTorch operators: FLOPs and bytes from the shapes and types of their inputs.

A multiply-add counts as two FLOPs. Each input is read once and each result written once, regardless of caches. Softmax
and norms count as five FLOPs per element. Products, convolutions and attention have their own formulas; all other
operators count as one FLOP per element.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Cost: TypeAlias = tuple[int | None, int | None, str]
_MOST = 1 << 48  # elements of a tensor: more are no shape
_PER_ELEMENT = 5  # FLOPs of softmax and norms: subtract, exponentiate or square, add, divide or scale
# Bytes of an element, by the names of types as PyTorch writes them, without `c10::`.
_ITEM_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "signed char", "char", "qint8", "quint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "short int"), 2),
    **dict.fromkeys(("float", "int", "complex<half>"), 4),
    **dict.fromkeys(("double", "long", "long int", "complex<float>"), 8),
    "complex<double>": 16,
}
_COMPARING = re.compile(r"eq|ne|lt|le|gt|ge|logical_\w+|isnan|isinf|isfinite|bitwise_not")
_UNARY = (
    r"abs|neg|exp|exp2|expm1|log|log2|log10|log1p|sqrt|rsqrt|square|reciprocal|sin|cos|tan|tanh|sigmoid|erf|erfinv|floor"
    r"|ceil|round|trunc|sign|sgn|relu|relu6|gelu|silu|mish|elu|leaky_relu|hardtanh|hardswish|hardsigmoid|softplus"
    r"|logit|clamp|clamp_min|clamp_max|threshold|isnan|isinf|isfinite|logical_not|bitwise_not|native_dropout|dropout"
    r"|cumsum|tril|triu|bernoulli|uniform|normal"
)
_BINARY = (
    r"add|sub|rsub|mul|div|true_divide|floor_divide|remainder|fmod|pow|atan2|maximum|minimum|where|masked_fill|lerp"
    r"|addcmul|addcdiv|eq|ne|lt|le|gt|ge|logical_(?:and|or|xor)|bitwise_\w+|mse_loss|prelu"
    r"|(?:gelu|silu|tanh|sigmoid|threshold|hardtanh|leaky_relu|elu|native_dropout|mse_loss)_backward"
)
_REDUCING = (
    r"sum|mean|amax|amin|max|min|aminmax|argmax|argmin|std|var|var_mean|prod|norm|linalg_vector_norm|logsumexp|any|all"
    r"|nansum|count_nonzero|nonzero"
)
# Where arguments stand: of convolutions (stride, padding, dilation), of attention whether it is causal.
_CONVOLUTIONS = {
    "cudnn_convolution": (3, 2, 4),
    "cudnn_convolution_relu": (3, 4, 5),
    "miopen_convolution": (4, 3, 5),
    "_conv_depthwise2d": (4, 5, 6),
    **dict.fromkeys(("convolution", "_convolution", "conv1d", "conv2d", "conv3d"), (3, 4, 5)),
}
_CAUSAL = {
    "scaled_dot_product_attention": 5,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_cudnn_attention_forward": 10,
    "_flash_attention_forward": 8,
    "_efficient_attention_forward": 9,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
    "_cudnn_attention_backward": 14,
    "_flash_attention_backward": 11,
    "_efficient_attention_backward": 14,
}
_HEADS_LAST = ("_flash_attention", "_efficient_attention")  # of batch, sequence, heads: others have heads before it


def flops_bytes(
    op: str, dims: Sequence[Sequence[int]], types: Sequence[str] = (), values: Sequence[str] = ()
) -> Cost | None:
    """Return FLOPs, bytes, and the kind of count (`matrix product`, `copy`) of an operator call such as `aten::mm`.

    ``dims``, ``types`` and ``values`` are PyTorch's ``Input Dims``, ``Input type`` and ``Concrete Inputs``. Bytes are
    None if types are missing. FLOPs of attention are None without ``values``, which show whether it is causal. Returns
    None for an unknown operator, or if the shapes do not fit the operator.
    """
    name = op.rsplit("::", 1)[-1].split(".")[0]
    name = name.rstrip("_") if not name.startswith("__") else name
    shapes = [_shape(each) for each in dims]
    sizes = [_item_bytes(each) for each in types]
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    sizes += [None] * (len(known) - len(sizes))
    for pattern, rule in _RULES:
        if pattern.fullmatch(name):
            try:
                return rule(_Call(name, known, sizes, values))
            except (IndexError, ValueError, TypeError):
                return None
    return None


def _shape(dims: Sequence[int]) -> Shape | None:
    """The sizes of a tensor, () for what is none, or None for what cannot be a shape."""
    if not isinstance(dims, list | tuple):
        return ()
    if any(not isinstance(size, int) or size < 0 for size in dims) or math.prod(dims) > _MOST:
        return () if dims and not isinstance(dims[0], int) else None
    return tuple(dims)


def _item_bytes(name: str) -> int | None:
    text = str(name).lower().replace("c10::", "")
    return 1 if text.startswith("float8") else _ITEM_BYTES.get(text)


def _moved(*tensors: tuple[Shape, int | None]) -> int | None:
    """The bytes of tensors, each given with its bytes per element; None if the element size of a tensor is unknown."""
    some = [(shape, size) for shape, size in tensors if shape]
    return (
        None if any(size is None for _, size in some) else sum(math.prod(shape) * (size or 0) for shape, size in some)
    )


class _Call(NamedTuple):
    """A call of an operator: its inputs, and the bytes of an element of each."""

    name: str
    dims: list[Shape]
    sizes: list[int | None]
    values: Sequence[str]

    @property
    def tensors(self) -> list[tuple[Shape, int | None]]:
        """The inputs that are tensors."""
        return [pair for pair in zip(self.dims, self.sizes, strict=False) if pair[0]]


_Rule: TypeAlias = Callable[[_Call], Cost | None]


def _product(call: _Call) -> Cost | None:
    first = 1 if call.name.startswith(("addm", "baddbmm", "_addm")) else 0
    left, right = call.dims[first : first + 2]
    if call.name == "linear":
        right = right[::-1]
    rows, columns = left if len(left) > 1 else (1, *left), right if len(right) > 1 else (*right, 1)
    if not left or not right or rows[-1] != columns[-2]:
        return None
    batch = _broadcast(rows[:-2], columns[:-2])
    out = (*batch, rows[-2], columns[-1])
    extra = call.dims[0] if first else call.dims[2] if call.name == "linear" and len(call.dims) > 2 else ()
    size = call.sizes[first]
    moved = _moved((left, size), (right, call.sizes[first + 1]), (out, size), (extra, size))
    return 2 * math.prod(out) * rows[-1], moved, "matrix product"


def _broadcast(*shapes: Shape) -> Shape:
    """The common shape of tensors; ValueError where they have none."""
    length = max(map(len, shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    out = tuple(next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True))
    if any(size not in (1, wide) for shape in padded for size, wide in zip(shape, out, strict=True)):
        raise ValueError("shapes that do not fit")
    return out


def _numbers(text: str, count: int) -> list[int]:
    found = [int(each) for each in re.findall(r"-?\d+", text)]
    return found * count if len(found) == 1 else found


def _convolution(call: _Call) -> Cost | None:
    given, weight = call.dims[:2]
    space = len(weight) - 2
    stride, padding, dilation = (_numbers(call.values[at], space) for at in _CONVOLUTIONS[call.name])
    if len(given) != space + 2 or min(stride) < 1:
        return None
    transposed = call.name in ("convolution", "_convolution") and call.values[6] == "True"
    if transposed:
        return 2 * math.prod(given) * math.prod(weight[1:]), None, "convolution"
    pairs = zip(given[2:], weight[2:], stride, padding, dilation, strict=True)
    reached = ((size + 2 * pad - hop * (core - 1) - 1) // step + 1 for size, core, step, pad, hop in pairs)
    out = (given[0], weight[0], *reached)
    if min(out) < 1 or not weight[1] or given[1] % weight[1]:  # a kernel larger than its input, or other channels
        return None
    flops = 2 * math.prod(out) * math.prod(weight[1:])
    return flops, _moved((given, call.sizes[0]), (weight, call.sizes[1]), (out, call.sizes[0])), "convolution"


def _convolution_backward(call: _Call) -> Cost | None:
    gradient, given, weight = call.dims[:3]
    wanted = re.findall(r"True|False", call.values[10])[:2] if len(call.values) > 10 else ["True", "True"]
    count = wanted.count("True")
    moved = _moved((gradient, call.sizes[0]), *((each, call.sizes[1]) for each in (given, weight) for _ in range(2)))
    return 2 * count * math.prod(gradient) * math.prod(weight[1:]), moved, "convolution"


def _attention(call: _Call) -> Cost | None:
    """Two products for each score that is not masked; backward four more, and no forward: see `attention_cost`."""
    backward = call.name.endswith("_backward")
    query, key, value = call.dims[1:4] if backward else call.dims[:3]
    if not len(query) == len(key) == len(value) == 4 or query[3] != key[3] or key[:3] != value[:3]:
        return None
    if call.name.startswith(_HEADS_LAST):
        query, key, value = ((shape[0], shape[2], shape[1], shape[3]) for shape in (query, key, value))
    causal = call.values[_CAUSAL[call.name]] if len(call.values) > _CAUSAL[call.name] else ""
    pairs = query[2] * key[2]
    if causal in ("True", "1", "2"):  # the last two are kinds of masks of efficient attention
        length = min(query[2], key[2])
        pairs = length * (length + 1) // 2 + (query[2] - length) * key[2]
    flops = 2 * query[0] * query[1] * pairs * (query[3] + value[3])
    out, size = (*query[:3], value[3]), call.sizes[1 if backward else 0]
    each = [(shape, size) for shape in (query, key, value, out)]
    moved = _moved(*each, *(each if backward else ()))
    return (2 if backward else 1) * flops if causal else None, moved, "attention"


def _pointwise(call: _Call) -> Cost | None:
    out = _broadcast(*call.dims)
    some = call.tensors
    wide = max((size for _, size in some if size is not None), default=None)
    size = 1 if _COMPARING.fullmatch(call.name) else wide
    mask = (out if call.name == "native_dropout" else (), 1)  # of what was kept, for the gradient
    return (math.prod(out), _moved(*some, (out, size), mask), "elementwise") if out else None


def _row_wise(call: _Call) -> Cost | None:
    some = call.tensors
    basis = "softmax" if "softmax" in call.name else "norm"
    return _PER_ELEMENT * math.prod(call.dims[0]), _moved(*some, some[0]), basis


def _reduction(call: _Call) -> Cost | None:
    return (math.prod(call.dims[0]), _moved((call.dims[0], call.sizes[0])), "reduction") if call.dims[0] else None


def _fused(call: _Call) -> Cost | None:
    """A kernel of `torch.compile`, whose arguments are what it reads and writes."""
    some = call.tensors
    most = max((math.prod(shape) for shape in call.dims if shape), default=0)
    return (most, _moved(*some), "fused elementwise") if most else None


def _copy(call: _Call) -> Cost | None:
    if not call.dims[0]:
        return None
    written = (call.dims[0], call.sizes[0])
    read = {"fill": ((), None), "zero": ((), None)}.get(call.name, written)
    return 0, _moved(written, (call.dims[1], call.sizes[1]) if call.name == "copy" else read), "copy"


def _embedding(call: _Call) -> Cost | None:
    """Rows of a table, read at most once each, and written. Indices may be one number for a whole row: not counted."""
    index = call.dims[1 if call.name == "embedding" else 2]
    rows = (*index, *call.dims[0][1:]) if call.name == "embedding" else index
    return 0, _moved((min(rows, call.dims[0], key=math.prod), call.sizes[0]), (rows, call.sizes[0])), "embedding"


_RULES: tuple[tuple[re.Pattern[str], _Rule], ...] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"mm|bmm|matmul|mv|dot|linear|_?addmm\w*|addmv|baddbmm", _product),
        ("|".join(_CONVOLUTIONS), _convolution),
        (r"convolution_backward", _convolution_backward),
        ("|".join(_CAUSAL), _attention),
        (r"_?(?:log_)?softmax(?:_backward_data)?", _row_wise),
        (r"(?:native_|cudnn_|_fused_)?(?:layer|batch|group|instance|rms)_norm(?:_backward)?", _row_wise),
        (rf"(?:{_REDUCING})", _reduction),
        (r"copy|clone|contiguous|_to_copy|fill|zero", _copy),
        (r"embedding|gather", _embedding),
        (r"triton_poi_fused\w*", _fused),
        (rf"(?:{_UNARY}|{_BINARY})", _pointwise),
    )
)
