"""What a kernel is, by its name: family, math unit, attention backend and cause.

The rules are data (`kernels.toml`, ordered, the first match wins). Asking is by candidates: every expression
needs some word of letters, and the words that occur in names are few and repeat, so each distinct word is
compared with the rules' words once and an expression is searched only in names that hold its word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nsysprof.errors import NsysprofError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FAMILIES = (
    "gemm",
    "attention",
    "softmax",
    "elementwise",
    "reduction",
    "copy",
    "fill",
    "mask",
    "norm",
    "rng",
    "communication",
    "memcpy",
    "memset",
    "graph",
    "other",
)
MATH_UNITS = ("tensor core", "FP32 FMA", "unknown")
SHIPPED_RULES = Path(__file__).with_name("kernels.toml")
UNMATCHED = "unmatched"

_KEYS = {"name", "match", "where", "family", "math_unit", "attention_backend", "cause"}
_TYPE_GROUPS = ("src", "dst")
_COMMON = {"kernel", "cuda", "native", "triton", "fused", "cutlass", "cudnn", "lambda", "void", "functor"}
_DTYPES = {
    "f": "float",
    "d": "double",
    "i": "int",
    "j": "uint32",
    "l": "long",
    "m": "uint64",
    "s": "short",
    "b": "bool",
    "h": "uint8",
    "a": "int8",
    "float16": "half",
    "float32": "float",
    "Half": "half",
    "half_t": "half",
    "__half": "half",
    "BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "bfloat16_t": "bfloat16",
    "4HalfE": "half",
    "8BFloat16E": "bfloat16",
}


@dataclass(frozen=True)
class Rule:
    """One rule as read from a file; `patterns` are not compiled until a name needs them."""

    name: str
    patterns: tuple[str, ...]
    on_function: bool
    family: str
    math_unit: str
    attention_backend: str | None
    causes: tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """Ordered rules; `checks` are (pattern, rule index) in asking order, `words` what letters each needs."""

    rules: tuple[Rule, ...]
    checks: tuple[tuple[str, int], ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Kinds:
    """One entry per name asked, in the order asked.

    `family` is one of FAMILIES, `math_unit` one of MATH_UNITS, `attention_backend` None unless the name tells,
    `cause` a finer label (the family where no rule says more), `rule` the rule that decided or "unmatched".
    """

    family: list[str]
    math_unit: list[str]
    attention_backend: list[str | None]
    cause: list[str]
    rule: list[str]


def load_rules(extra: Path | None = None) -> Rules:
    """The shipped rules; those of the file `extra` (same format) are asked first.

    Raises NsysprofError with file, rule and reason when a file cannot be read or a rule is not well formed.
    """
    own = _read_rules(Path(extra), check=True) if extra is not None else ()
    return _indexed(own + _shipped())


def classify(rules: Rules, names: Sequence[str]) -> Kinds:
    """Kinds of the kernels with these names: demangled, mangled or short, as the report has them.

    Equal names get equal answers; pass distinct names, 20,000 take a fraction of a second.
    """
    needs: dict[str, list[int]] = {}
    for number, word in enumerate(rules.words):
        needs.setdefault(word, []).append(number)
    always = frozenset(needs.pop("", ()))
    starts: dict[str, list[str]] = {}
    for word in needs:
        starts.setdefault(word[:2], []).append(word)
    known: dict[str, frozenset[int]] = {}
    kinds = Kinds([], [], [], [], [])
    for name in names:
        candidates = set(always)
        for word in set(_WORDS(name.lower())):
            found = known.get(word)
            if found is None:
                found = frozenset(number for need in _inside(word, starts) for number in needs[need])
                known[word] = found
            candidates |= found
        _append(kinds, *_first_match(rules, candidates, name))
    return kinds


def split(name: str, rules: Rules | None = None) -> str:
    """The cause label of one kernel: what `Kinds.cause` says for it."""
    return classify(load_rules() if rules is None else rules, [name]).cause[0]


_WORDS = re.compile(r"[a-z]{2,}").findall


def _inside(word: str, starts: dict[str, list[str]]) -> list[str]:
    """The needed words that stand anywhere in this word; `starts` lists them by their first two letters."""
    return [
        need
        for at in range(len(word) - 1)
        for need in starts.get(word[at : at + 2], ())
        if word.startswith(need, at)
    ]


def _first_match(
    rules: Rules, candidates: Iterable[int], name: str
) -> tuple[Rule | None, re.Match[str] | None]:
    function: str | None = None
    for number in sorted(candidates):
        pattern, index = rules.checks[number]
        rule = rules.rules[index]
        if rule.on_function:
            if function is None:
                function = function_name(name)
            match = _compiled(pattern).search(function)
        else:
            match = _compiled(pattern).search(name)
        if match is not None:
            return rule, match
    return None, None


def _append(kinds: Kinds, rule: Rule | None, match: re.Match[str] | None) -> None:
    if rule is None or match is None:
        kinds.family.append("other")
        kinds.math_unit.append("unknown")
        kinds.attention_backend.append(None)
        kinds.cause.append("other")
        kinds.rule.append(UNMATCHED)
        return
    kinds.family.append(rule.family)
    kinds.math_unit.append(rule.math_unit)
    kinds.attention_backend.append(rule.attention_backend)
    kinds.cause.append(_cause(rule, match))
    kinds.rule.append(rule.name)


def _cause(rule: Rule, match: re.Match[str]) -> str:
    groups = {
        key: _dtype(text) if key in _TYPE_GROUPS else text for key, text in match.groupdict().items() if text
    }
    for cause in rule.causes:
        if all(field in groups for field in _fields(cause)):
            return re.sub(r"\{(\w+)\}", lambda field: groups[field[1]], cause)
    return rule.family


def _dtype(text: str) -> str:
    """A type as C++ or the mangled form writes it -> one word for it; unknown types stay as they are."""
    last = text.rsplit("::", 1)[-1]
    if last in _DTYPES:
        return _DTYPES[last]
    return next((word for end, word in _DTYPES.items() if end[0].isdigit() and last.endswith(end)), last)


def _fields(cause: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", cause)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# ---- reading rule files


@cache
def _shipped() -> tuple[Rule, ...]:
    return _read_rules(SHIPPED_RULES, check=False)


def _indexed(rules: tuple[Rule, ...]) -> Rules:
    checks = tuple((pattern, index) for index, rule in enumerate(rules) for pattern in rule.patterns)
    return Rules(rules, checks, tuple(_needed_word(pattern) for pattern, _ in checks))


def _needed_word(pattern: str) -> str:
    """The longest run of letters, lowercase, that every match of the expression holds; "" for none.

    Reads only what stands outside groups, classes and escapes: may miss a word but never names a wrong one.
    """
    runs, run, depth, at = [], "", 0, 0
    while at < len(pattern):
        char = pattern[at]
        if depth == 0 and char.isascii() and char.isalpha():
            run += char
            at += 1
            continue
        if run:
            # A quantifier after a letter belongs to that letter alone.
            runs.append(run[:-1] if char in "?*{" else run)
            run = ""
        if char == "|" and depth == 0:
            return ""
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
        depth += (char == "(") - (char == ")")
        at += 1
    runs.append(run)
    runs = [found.lower() for found in runs if len(found) > 1]
    return max(
        (found for found in runs if found not in _COMMON), key=len, default=max(runs, key=len, default="")
    )


def _class_end(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _read_rules(path: Path, check: bool) -> tuple[Rule, ...]:
    try:
        tables = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise NsysprofError(f"{path}: cannot read the rule file: {error.strerror}", f"ls -l {path}") from None
    except UnicodeDecodeError as error:
        raise NsysprofError(
            f"{path}: not UTF-8 text: byte {error.start} is {error.reason}", _format_hint()
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise NsysprofError(f"{path}: not TOML: {error}", _format_hint()) from None
    entries = tables.get("rule")
    if (
        set(tables) - {"rule"}
        or not isinstance(entries, list)
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise NsysprofError(f"{path}: expected nothing but [[rule]] tables", _format_hint())
    return tuple(_rule(path, number, entry, check) for number, entry in enumerate(entries, 1))


def _rule(path: Path, number: int, entry: dict[str, Any], check: bool) -> Rule:
    label = entry.get("name")
    where = f"{path}: rule {number}" + (f' ("{label}")' if isinstance(label, str) else "")
    match = entry.get("match")
    patterns = [match] if isinstance(match, str) else match
    cause = entry.get("cause", entry.get("family"))
    causes = [cause] if isinstance(cause, str) else cause
    if check:
        reason = next(_reasons(entry, patterns, causes), None)
        if reason is not None:
            raise NsysprofError(f"{where}: {reason}", _format_hint())
    return Rule(
        str(label),
        tuple(patterns or ()),
        entry.get("where") == "function",
        str(entry["family"]),
        str(entry.get("math_unit", "unknown")),
        entry.get("attention_backend"),
        tuple(causes or ()),
    )


def _reasons(entry: dict[str, Any], patterns: Any, causes: Any) -> Iterator[str]:
    """Why this entry is no rule; the first reason counts, later ones may follow from it."""
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        yield f"unknown key {unknown[0]!r}; keys are {', '.join(sorted(_KEYS))}"
    for key in ("name", "match", "family"):
        if key not in entry:
            yield f"{key!r} is missing"
    for key in ("name", "where", "family", "math_unit", "attention_backend"):
        if not isinstance(entry.get(key, ""), str):
            yield f"{key!r} must be a string"
    for key, values in (("match", patterns), ("cause", causes)):
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
            yield f"{key!r} must be a string or a list of strings, none of them empty"
    allowed = {"family": FAMILIES, "math_unit": MATH_UNITS, "where": ("name", "function")}
    for key, choices in allowed.items():
        if entry.get(key, choices[0]) not in choices:
            yield f"{key} {entry[key]!r} is not one of {', '.join(choices)}"
    yield from _expression_reasons(patterns, causes)


def _expression_reasons(patterns: list[str], causes: list[str]) -> Iterator[str]:
    groups: set[str] = set()
    for pattern in patterns:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            yield f"expression {pattern!r} does not compile: {error}"
            continue
        groups |= set(compiled.groupindex)
        if compiled.search("") is not None:
            yield f"expression {pattern!r} matches every name"
    for field in (field for cause in causes for field in _fields(cause) if field not in groups):
        yield f"cause uses {{{field}}}, which no expression names as a group"


def _format_hint() -> str:
    return f"the format, with examples: head -32 {SHIPPED_RULES}"


# ---- names

_UNNAMED = re.compile(r"<unnamed>::|\(anonymous namespace\)::|\bunnamed>::")
_PLAIN = re.compile(r"(?:(?:void|static|const) )*([\w:~$.\-]+)(?=[<(\[]|$)")
_LETTERS = "fdilmjsbhat"
_TYPES = {"float", "double", "half", "bfloat16", "bool", "long", "int", "short", "uint8", "int8"}
# Words of template arguments that every kernel of a library has, and so tell none apart.
_NOISE = frozenset(
    re.findall(
        r"\S+",
        """
        at native cuda std detail binary_internal memory array Array char void const unsigned lambda
        operator instance TrivialOffsetCalculator OffsetCalculator StoreWithCast LoadWithoutCast
        StoreWithoutCast gpu_kernel_impl_nocast gpu_kernel_impl gpu_kernel gpu ReduceOp
        func_wrapper_t c10 cutlass flash pytorch_flash templates TensorInfo TensorListMetadata
        TensorIterator TensorIteratorBase TensorBase true false enable_sm90 enable_sm90_or_later
        AUnaryFunctor BUnaryFunctor BinaryFunctor CUDAGeneratorImpl Params kernel u ul
        curandStatePhilox4_32_10 thrust cub cuda_cub at_cuda_detail core vllm moe dev Kokkos Impl
        Eigen internal cusparse transformer_engine
        """,
    )
)
_BOILERPLATE = re.compile(
    r"_execute(?:_\w+?)?_kernel__5x_\w+|_kernel__5x_\w+|_aligna\d+|_alignc\d+|_stage\d+|_warpsize\w+?x\dx\d|_cga\dx\dx\d"
    r"|_kernel\d_\d|tilesize(?=\d)"
)


def function_name(name: str) -> str:
    """The function's qualified name: no return type, template arguments, parameters, anonymous namespaces."""
    if name.startswith("_Z"):
        return "::".join(_mangled_path(name)[0]) or name
    text = _UNNAMED.sub("", name)
    # Kernels return void, save where the type is an enable_if spelled out: its end is the start of the name.
    if "::type " in text:
        text = text.split("::type ", 1)[1]
    match = _PLAIN.match(text)
    return match[1] if match else re.split(r"[<(]", text.removeprefix("void "), maxsplit=1)[0]


def _mangled_path(name: str) -> tuple[list[str], int]:
    """Identifiers of an Itanium-mangled function's name, and where its arguments or parameters begin."""
    at = 2 + (name[2:3] == "N")
    path: list[str] = []
    while at < len(name):
        digits = re.compile(r"\d+").match(name, at)
        if digits:
            end = digits.end() + int(digits[0])
            if not name[digits.end() : end].startswith("_GLOBAL__N_"):
                path.append(name[digits.end() : end])
            at = end
        elif name[at] in "KVrL":
            at += 1
        elif name[at] == "S" and name[at + 1 : at + 2] == "t":
            path.append("std")
            at += 2
        else:
            break
        if not name.startswith("_ZN"):
            break
    return path, at


def short_name(name: str, width: int = 60) -> str:
    """A name for display, at most `width` characters: the function and what tells its instances apart.

    `void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<bool>, …>(…)` becomes
    `vectorized_elementwise FillFunctor bool`. Different kernels may share it: never group by it.
    """
    path = function_name(name).split("::")
    function = path[-1]
    words, numbers = _details(name)
    if function in ("Kernel", "Kernel2", "device_kernel") and words:
        base, words = words[0], words[1:]
    else:
        base = "::".join(path[-2:]) if function in ("kernel", "run", "operator") else function
        if len(base) > len("_kernel"):
            base = base.removesuffix("_kernel")
    parts = [base] + [word for word in words if word != base]
    if numbers and not re.search("elementwise|reduce|multi_tensor|cutlass_", base):
        parts.append("x".join(numbers[:4]))
    text = " ".join(parts).strip() or name
    if len(text) > width:
        text = _BOILERPLATE.sub("", text)
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]


def _details(name: str) -> tuple[list[str], list[str]]:
    """Words and numbers of the template arguments, in order, each word once."""
    mangled = name.startswith("_Z")
    tokens = (
        _mangled_tokens(name)
        if mangled
        else [t for t in _demangled_tokens(name) if t.isdigit() or len(t) > 1]
    )
    words: list[str] = []
    numbers: list[str] = []
    for token in tokens:
        if token.isdigit():
            numbers.append(token)
            continue
        word = re.sub(r"_kernel(?:_cuda|_impl)?$", "", _dtype(token))
        if (
            word not in words
            and word not in _NOISE
            and not re.fullmatch(r"_*|T\d+|\w*_(?:traits|params)|lambda\w*", word)
        ):
            words.append(word)
    return [w for w in words if w not in _TYPES] + [w for w in words if w in _TYPES], numbers


def _demangled_tokens(name: str) -> list[str]:
    text = _UNNAMED.sub("", name)
    begin = text.find("<")
    if begin < 0 or "(" in text[:begin]:
        return []
    text = text[begin : _closing(text, begin)]
    text = re.sub(r"\(bool\)\d", "", text)
    text = re.sub(r"\([\w: ]+\)(?=-?\d)", "", text)
    text = re.sub(r"unsigned (?:int|long|char)", "", text)
    # What a functor's lambda takes is its type; that of the indexing wrapper around it is always int.
    text = re.sub(r"[\[{]lambda\((?!int\))([^()]*)\)[^\]}]*[\]}]", r" \1 ", text)
    text = re.sub(r"[\[{]lambda\(int\)[^\]}]*[\]}]", "", text)
    for _ in range(3):
        text = re.sub(r"\([^()]*\)", "", text)
    return re.findall(r"(?<![\w#])(?:[A-Za-z_]\w*|\d+(?=u?l?\b))", text)


def _closing(text: str, begin: int) -> int:
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "<") - (text[at] == ">")
        if depth == 0:
            return at + 1
    return len(text)


def _mangled_tokens(name: str) -> list[str]:
    _, at = _mangled_path(name)
    tokens: list[str] = []
    while at < len(name):
        number = re.compile(r"L[a-z](\d+)E").match(name, at)
        length = re.compile(r"\d+").match(name, at)
        back_reference = re.compile(r"[ST][\dA-Z]*_|St|Sa").match(name, at)
        if back_reference:
            at = back_reference.end()
        elif number:
            if number[0][1] != "b":
                tokens.append(number[1])
            at = number.end()
        elif length:
            at = length.end() + int(length[0])
            if not name.startswith("_GLOBAL__N_", length.end()):
                tokens.append(name[length.end() : at])
        else:
            if name[at] in _LETTERS and name[at - 1] in "I" + _LETTERS:
                tokens.append(name[at])
            at += 1
    return tokens
