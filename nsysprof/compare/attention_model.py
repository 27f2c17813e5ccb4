"""Compute the minimal bytes and FLOPs of an attention call by cause, from the shape of the call.

Fused attention reads Q, K and V and writes O: bytes grow with S·D. Unfused attention writes and reads the S × S score
matrix many times; the model counts the accesses of each kernel. The model ignores caches.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd

from nsysprof.compare.gap_ledger import SideLedger
from nsysprof.compare.op_causes import CAST_DOWN, CAST_UP, FUSED, GUARD, MASK_ADD, MASK_BUILD, PV, QK, SCALING, SOFTMAX
from nsysprof.compare.selection import Selection
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import RecordedRun
from nsysprof.hardware.attention_cost import AttentionShape, attention_flops, attention_traffic, item_bytes

_DTYPES = ("fp16", "bf16", "fp32")
_FLOAT32, _BOOL = 4, 1
# Longer numbers are no sizes: products of them would not fit into a float.
_PART = re.compile(r"([BHSD])=?0*([1-9]\d{0,9})")
# Sizes and types as names of ranges have them. `batch 3` counts batches and is no size, `batch=3` and `bs3` are.
_NAMED_SIZE = re.compile(
    r"(?<![a-z])(?:(batch=|batch[_ ]?size[ _=:]*|bs[=:]?)|(seq=|seq[_ ]?len(?:gth)?[ _=:]*))0*([1-9]\d{0,9})(?!\d)",
    re.IGNORECASE,
)
_NAMED_DTYPE = re.compile(
    r"(?<![a-z0-9])(?:fp8|fp16|bf16|fp32|tf32|fp64|int8|half|b?float(?:16|32|64))(?![a-z0-9])", re.IGNORECASE
)
_DTYPE_WORDS = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_FIELDS = {"B": "batch", "H": "heads", "S": "seq", "D": "head_dim"}
# The kernels of these causes in PyTorch: isneginf, all, a scalar, where; and the casts of the weights and the output.
_KERNEL_COUNTS = {GUARD: 4, CAST_DOWN: 2}


@dataclass(frozen=True)
class Expected:
    """The expected work of one call: ``flops`` of its matrix products; ``least_bytes``, which every implementation
    moves; ``matrix_bytes``, the size of one score matrix in the data type of the side (0 if fused); ``bytes_of``, the
    bytes by cause.
    """

    shape: AttentionShape
    dtype: str
    flops: int
    least_bytes: int
    matrix_bytes: int
    bytes_of: dict[str, int]

    @property
    def text(self) -> str:
        """The shape as text: `B=1 H=8 S=4096 D=64, fp16, causal`."""
        shape = self.shape
        sizes = f"B={shape.batch} H={shape.heads} S={shape.seq} D={shape.head_dim}"
        return f"{sizes}, {self.dtype}, {'causal' if shape.causal else 'not causal'}"

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all causes, 0 if no cause is modelled."""
        return sum(self.bytes_of.values())


Models = tuple[Expected | None, Expected | None]


def read_shape(text: str) -> RecordedRun:
    """Parse a shape such as `B=1,H=8,D=64,fp16,causal`; missing parts stay open.

    Raises `NsysprofError` for an invalid part.
    """
    known: dict[str, Any] = {"causal": False, "backward": False}
    for word in filter(None, re.split(r"[,\s]+", text)):
        size = _PART.fullmatch(word)
        if size:
            known[_FIELDS[size[1]]] = int(size[2])
        elif word in _DTYPES:
            known["dtype"] = word
        elif word in ("causal", "backward"):
            known[word] = True
        else:
            raise NsysprofError(f"not part of a shape: {word!r}", "--shape B=1,H=8,S=4096,D=64,fp16,causal")
    return RecordedRun((), **known)


def shape_of(name: str, run: RecordedRun | None) -> RecordedRun | None:
    """Return the run, with sizes from the name of its range (`RUN::flash::B4::S4096`) replacing the recorded ones."""
    return msgspec.structs.replace(run, **_sizes(name.split("::"))) if run else None


def _sizes(words: Iterable[str]) -> dict[str, Any]:
    """The sizes among some words, such as `B4` and `S=4096`, by field."""
    return {_FIELDS[part[1]]: int(part[2]) for part in map(_PART.fullmatch, words) if part}


def unlike_shapes(base: Selection, new: Selection) -> str:
    """Describe the differences between the shapes of two sides. Shapes come from run records or from the names in range
    paths.

    For example, `S=1024 and S=4096, fp16 and bf16`; empty if the sizes that are known for both sides are equal.
    """
    one, other = (_known_shape(side) for side in (base, new))
    differences = []
    for field in (*_FIELDS.values(), "dtype", "causal", "backward"):
        both = one.get(field), other.get(field)
        if None in both or both[0] == both[1]:
            continue
        if field in ("causal", "backward"):
            differences.append(f"{field} and not" if both[0] else f"not {field} and {field}")
        else:
            letter = next((f"{letter}=" for letter, name in _FIELDS.items() if name == field), "")
            differences.append(" and ".join(f"{letter}{value}" for value in both))
    return ", ".join(differences)


def _known_shape(side: Selection) -> dict[str, Any]:
    """The shape of a side by its run record and, taking precedence, by the names in its path."""
    run = side.loaded.runs.get(side.name)
    recorded = msgspec.structs.asdict(run) if run else {}
    known = {field: value for field, value in recorded.items() if value is not None}
    known |= _sizes(re.split(r"::|[/\s,;|]+", side.text))
    for part in _NAMED_SIZE.finditer(side.text):
        known["batch" if part[1] else "seq"] = int(part[3])
    for part in _NAMED_DTYPE.finditer(side.text):
        known["dtype"] = _DTYPE_WORDS.get(part[0].lower(), part[0].lower())
    return known


def shape_warnings(given: RecordedRun | None, sides: Iterable[Selection]) -> Iterator[str]:
    """Warn if ``--shape`` yields no model, and name the missing parts (of the side that lacks the fewest)."""
    if given is None:
        return
    runs = [shape_of(side.name, given) for side in sides if side.name not in side.loaded.runs]
    words = {**{field: f"{letter}=…" for letter, field in _FIELDS.items()}, "dtype": "|".join(_DTYPES)}
    lacking = [[word for field, word in words.items() if getattr(run, field) is None] for run in runs]
    if not lacking:
        yield "--shape has no effect, because the run record already has the shape of each range"
    elif all(lacking):
        least = min(lacking, key=len)
        known = [word.partition("=")[0] if "=" in word else "the dtype" for word in least]
        is_not = "is not" if len(known) == 1 else "are not"
        yield f"--shape has no effect, because {' and '.join(known)} {is_not} given: add {','.join(least)}"


def expected(run: RecordedRun | None, ledger: SideLedger) -> Expected | None:
    """Compute the `Expected` work of a call of this shape with these causes; None if the shape is not fully known."""
    if run is None or run.dtype not in _DTYPES or run.causal is None:
        return None
    if run.batch is None or run.heads is None or run.seq is None or run.head_dim is None:
        return None
    shape = AttentionShape(run.batch, run.heads, run.seq, run.head_dim, run.causal)
    least = attention_traffic(shape, run.dtype, backward=bool(run.backward))
    flops = attention_flops(shape, backward=bool(run.backward))
    if run.backward:
        return Expected(shape, run.dtype, flops, least, 0, {})
    if QK not in ledger.entries:
        return Expected(shape, run.dtype, flops, least, 0, {FUSED: least} if FUSED in ledger.entries else {})
    held = _FLOAT32 if CAST_UP in ledger.entries else item_bytes(run.dtype)
    known = _unfused(shape, item_bytes(run.dtype), held)
    kernels = {cause: entry.kernels / ledger.calls for cause, entry in ledger.entries.items()}
    bytes_of = {
        cause: size
        for cause, size in known.items()
        if cause in kernels and kernels[cause] == _KERNEL_COUNTS.get(cause, kernels[cause])
    }
    return Expected(shape, run.dtype, flops, least, shape.scores * held, bytes_of)


def _unfused(shape: AttentionShape, given: int, held: int) -> dict[str, int]:
    """The bytes of each cause of PyTorch's math attention: ``given`` and ``held`` are bytes of an element.

    For each score: Q·Kᵀ writes it; the mask is added in place; softmax reads and writes it; the guard of softmax
    compares it (a byte per score), searches for rows, and copies the result; P·V reads it; the weights are returned in
    the input's dtype.
    """
    scores, mask, each = shape.scores, shape.seq**2, shape.elements
    return {
        CAST_UP: 3 * each * (given + held),
        SCALING: 4 * each * held,
        MASK_BUILD: mask * (3 * _BOOL + _BOOL + held),
        QK: (2 * each + scores) * held,
        MASK_ADD: (2 * scores + mask) * held,
        SOFTMAX: 2 * scores * held,
        GUARD: scores * (3 * held + 2 * _BOOL),
        PV: (scores + 2 * each) * held,
        CAST_DOWN: (scores + each) * (held + given),
    }


def traffic_rows(base: Expected | None, new: Expected | None, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return ``cause`` and for each side ``base_bytes, base_bytes_per_s, new_bytes, new_bytes_per_s``, per call.

    There is one row per cause that is modelled on either side, in the order of ``gaps``; NaN if unknown.
    """
    models = {"base": base.bytes_of if base else {}, "new": new.bytes_of if new else {}}
    rows = gaps[gaps["cause"].isin([*models["base"], *models["new"]])]
    columns: dict[str, Any] = {"cause": rows["cause"]}
    for side, known in models.items():
        size = rows["cause"].map(known).astype(float)
        columns[f"{side}_bytes"] = size
        columns[f"{side}_bytes_per_s"] = size / rows[f"{side}_ns"].where(rows[f"{side}_ns"] > 0) * 1e9
    return pd.DataFrame(columns).reset_index(drop=True)
