"""Parse kernel names: the qualified function, its words, and a short name for display."""

import re
from collections.abc import Sequence
from functools import lru_cache

_UNNAMED = re.compile(r"<unnamed>::|\(anonymous namespace\)::|\bunnamed>::")
_PLAIN = re.compile(r"(?:(?:void|static|const) )*([\w:~$.\-]+)(?=[<(\[]|$)")
_LETTERS = "fdilmjsbhat"
_TYPES = {"float", "double", "half", "bfloat16", "bool", "long", "int", "short", "uint8", "int8"}
# Words of template arguments that every kernel of a library has, so that they distinguish none.
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
        Eigen internal cusparse transformer_engine RangePolicy MDRangePolicy TeamPolicy Cuda CudaSpace RAJA policy
        cuda_exec_explicit iteration_mapping Direct IndexGlobal named_dim MaxOccupancyConcretizer Iterators
        numeric_iterator CombinedFunctorReducer FunctorAnalysis __parallel_for ParallelForAgent __transform
        wrapped_function zip_iterator tuple device_ptr policy_hub_t
        """,
    )
)
_VERSIONED = r"(?:THRUST|CUB)_\w*\d_NS|[Pp]olicy_?\d+\w*"  # parts of names that are versions of a library
# Kernels that run whatever their template arguments name -> the library, which stands for them.
_RUNNERS = {
    "cuda_parallel_launch_local_memory": "Kokkos",
    "cuda_parallel_launch_constant_memory": "Kokkos",
    "cuda_parallel_launch_global_memory": "Kokkos",
    "forall_cuda_kernel": "RAJA forall",
    "forallp_cuda_kernel": "RAJA forall",
    "_kernel_agent": "thrust",
}
# What compilers make of a region of source code, or of a function in a language other than C++: the function, the line,
# the language. NVIDIA's compilers name OpenMP regions after file, line and number, OpenACC regions after the line; see
# LLVM's getTargetEntryUniqueInfo for `__omp_offloading`.
_ORIGINS = [
    (re.compile(pattern), language)
    for pattern, language in (
        (r"__omp_offloading_[\da-f]+_[\da-f]+_(?P<function>\w+)_l(?P<line>\d+)", "OpenMP"),
        (r"nvkernel_(?P<function>\w+?)_F\d+L(?P<line>\d+)_\d+_?", "OpenMP"),
        (r"(?:\w{0,99}__(?=pgi_))?(?P<function>\w+?)_(?P<line>\d{2,})_gpu", "OpenACC"),
        (r"(?:\w{0,99}__(?=pgi_))?(?P<function>\w+?)_(?P<line>\d{2,})_gpu__red", "OpenACC reduction"),
        (r"(?P<function>[\w$]+?)_?\$ck_L(?P<line>\d+)_\d+\w*", "Cray"),
        (r"(?P<function>\w+?)[.$]_omp_fn[.$](?P<part>\d+)", "GCC"),
        (r"julia_(?:gpu_)?(?P<function>\w+?)_+\d+(?:\(.*)?", "Julia"),
        (r"(?:gpu_)?(?P<function>\w+)\((?=.*(?:CompilerMetadata<|CuDeviceArray<|CuKernelContext)).*", "Julia"),
        (r"(?P<function>cudapy::(?:[\w<>]+::)*\w+)(?:\$\d+|\[abi:[^\]]*\])*(?:\(.*)?", "Numba"),
        (r"(?P<function>\w+?)_(?=0)(?:\d+(?:de|[cde])){2,}\d*", "Triton"),
        (r"(?P<function>[a-z\d_]+?)_?(?:[A-Z]\w*)?6A6A\w*", "Mojo"),  # codes of its types, and a hash
    )
]
# a procedure in the names of LLVM's flang
_FORTRAN = re.compile(r"_Q(?:Q|(?:M[a-z\d_]+)?(?:F[a-z\d_]+)*P)([a-z\d_]+)")
# The beginnings of functions of libraries whose names can be taken at their word.
_LIBRARY = re.compile(
    r"(?:at|at_cuda_detail|c10|caffe2?|torch\w*|vision|vllm|sgl\w*|flashinfer|tensorrt_llm|fastertransformer|turbomind"
    r"|transformer_engine|apex|deep_gemm|fbgemm\w*|xformers|paddle|phi|tensorflow|stream_executor|xla|mxnet|mshadow"
    r"|onnxruntime|oneflow|mindspore|ggml|tcnn|nvinfer\w*|genericReformat|Eigen|dgl|faiss|raft|ML|MLCommon|cuml|cudf|cugraph"
    r"|cudnn\w*|cublas\w*|cusparse\w*|cusolver\w*|CUTENSOR_NAMESPACE|cutensor\w*|cutlass\w*|cub|thrust|dali)::|cu(?:blas|dnn|py)_"
)
_OWN_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Words of a function's own name that say nothing about what it does.
_NEUTRAL = frozenset(
    re.findall(
        r"\S+",
        """
        kernel kernels kern nvkernel cuda cudakernel gpu device dev global shared smem gmem sm parallel naive
        simple basic base baseline fast opt optimized my impl func fn op ref block blocks warp warps thread
        threads grid tile tiled tiles row rows col cols column columns vec vector vectorized matrix mat tensor
        array buffer data elem elems element elements value values strided stride coalesced unrolled unroll
        omp acc offload inplace atomic single multi batch batched generic typed template type fp float double
        half bf bfloat int integer long short char byte uint complex real to of and by in out ptr async forward fwd
        """,
    )
)
_BOILERPLATE = re.compile(
    r"_execute(?:_\w+?)?_kernel__5x_\w+|_kernel__5x_\w+|_aligna\d+|_alignc\d+|_stage\d+|_warpsize\w+?x\dx\d|_cga\dx\dx\d"
    r"|_kernel\d_\d|tilesize(?=\d)"
)
# The types that names of kernels have, C++'s and in the mangled form -> one word for each.
_DTYPES = {
    written: word
    for word, several in {
        "float": "f float32",
        "half": "float16 Half half_t __half 4HalfE",
        "bfloat16": "BFloat16 __nv_bfloat16 bfloat16_t 8BFloat16E",
        **{"double": "d", "int": "i", "uint32": "j", "long": "l", "uint64": "m", "short": "s"},
        **{"bool": "b", "uint8": "h", "int8": "a"},
    }.items()
    for written in several.split()
}


def dtype(text: str) -> str:
    """Return one word for a type in C++ or mangled notation; unknown types are unchanged."""
    last = text.rsplit("::", 1)[-1]
    if last in _DTYPES:
        return _DTYPES[last]
    return next((word for end, word in _DTYPES.items() if end[0].isdigit() and last.endswith(end)), last)


def origin(name: str) -> tuple[str, str, str] | None:
    """Return the source of a kernel if the name shows it: qualified function, line ("": unknown), language.

    ``__omp_offloading_10303_4e2ec6__Z4main_l21`` is ``main``, line 21, OpenMP. None for other names.
    """
    plain = "::".join(_mangled_path(name)[0]) if name.startswith(("_Z16julia_", "_ZN6cudapy")) else name
    for pattern, language in _ORIGINS:
        match = pattern.fullmatch(plain)
        if match:
            function, line = match["function"], match.groupdict().get("line") or ""
            fortran = _FORTRAN.fullmatch(function)
            mangled = function.startswith("_Z") and "::".join(_mangled_path(function)[0])
            return mangled or (fortran[1] if fortran else function.rstrip("_") or function), line, language
    return None


def function_name(name: str) -> str:
    """Return a qualified function name without return type, template arguments, parameters, anonymous namespaces."""
    found = origin(name)
    if found is not None:
        return found[0]
    if name.startswith("_Z"):
        return "::".join(_mangled_path(name)[0]) or name
    text = _UNNAMED.sub("", name)
    # Kernels return void, save where the type is an enable_if spelled out: its end is the start of the name.
    if "::type " in text:
        text = text.split("::type ", 1)[1]
    match = _PLAIN.match(text)
    return match[1] if match else re.split(r"[<(]", text.removeprefix("void "), maxsplit=1)[0]


def own_words(function: str) -> str:
    """Return the words in the last part of a qualified name: `ns::vectorAdd2_kernel` gives `vector add kernel`."""
    return " ".join([word for word in _OWN_WORDS.findall(function.rsplit("::", 1)[-1]) if len(word) > 1]).lower()


def is_plausible(function: str, words: str, only: Sequence[str]) -> bool:
    """Return whether the name of a function shows its purpose. It does if a library defines the function, or if all
    words of the name are neutral or in ``only``.

    The name `vectorAdd` shows an addition, but no single word of `explicit_euler_step` shows its purpose.
    """
    return _LIBRARY.match(function) is not None or all(word in only or word in _NEUTRAL for word in words.split())


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


@lru_cache(1 << 16)  # pieces of waits ask for the same kernels again and again
def short_name(name: str, width: int = 60) -> str:
    """Return a name for display, at most `width` characters: the function, and the parts that distinguish its
    instances.

    `void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<bool>, …>(…)` becomes
    `vectorized_elementwise FillFunctor bool`, and a region of OpenMP becomes `solve:204 (OpenMP)`. Different kernels
    may have the same short name, so never group by short names.
    """
    source = origin(name)
    if source is not None:
        function, line, language = source
        function = function.rsplit("::", 1)[-1]
        return _cut(f"{function.removesuffix('_kernel') or function}{f':{line}' if line else ''} ({language})", width)
    path = function_name(name).split("::")
    function = path[-1]
    words, numbers = _details(name)
    if function in ("Kernel", "Kernel2", "device_kernel") and words:
        base, words = words[0], words[1:]
    elif function in _RUNNERS:
        base = _RUNNERS[function]
    else:
        base = "::".join(path[-2:]) if function in ("kernel", "run", "operator") else function
        if len(base) > len("_kernel"):
            base = base.removesuffix("_kernel")
    parts = [base] + [word for word in words if word != base]
    if numbers and not re.search("elementwise|reduce|multi_tensor|cutlass_|Kokkos|RAJA", base):
        parts.append("x".join(numbers[:4]))
    text = " ".join(parts).strip() or name
    if len(text) > width:
        text = _BOILERPLATE.sub("", text)
    return _cut(text, width)


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]


def _details(name: str) -> tuple[list[str], list[str]]:
    """Words and numbers of the template arguments, in order, each word once."""
    mangled = name.startswith("_Z")
    tokens = _mangled_tokens(name) if mangled else [t for t in _demangled_tokens(name) if t.isdigit() or len(t) > 1]
    words: list[str] = []
    numbers: list[str] = []
    for token in tokens:
        if token.isdigit():
            numbers.append(token)
            continue
        word = re.sub(r"_kernel(?:_cuda|_impl)?$", "", dtype(token))
        if (
            word not in words
            and word not in _NOISE
            and not re.fullmatch(rf"_*|T\d+|\w*_(?:traits|params)|lambda\w*|{_VERSIONED}", word)
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


_CAST = re.compile(r"\((?:(?:un)?signed |const )*\w+\)(?=-?\d)")  # (int)4, (unsigned long)2, (bool)0
_QUALIFIER = re.compile(r"(?:\w+|<unnamed>|\(anonymous namespace\))::")
_SUFFIX = re.compile(r"(?<=\d)[uUlL]+\b")
_LAMBDA = re.compile(r"[\[{]\s*lambda\(([^()]*)\)\s*(?:\(instance (\d+)\)|#(\d+))?\s*[\]}]")


@lru_cache(maxsize=20_000)
def plain_name(kernel: str) -> str:
    """Return a kernel's name without the parts that Nsight Systems and Nsight Compute write differently.

    These parts are casts of template arguments, namespaces (some of which Nsight Compute omits), the notation of
    lambdas, and blanks. Different kernels may have the same plain name.
    """
    text = kernel.replace("true", "1").replace("false", "0")
    text = _LAMBDA.sub(lambda match: f"λ({match[1]}){match[2] or match[3] or 1}", text)
    text = _SUFFIX.sub("", _CAST.sub("", text))
    return "".join(_QUALIFIER.sub("", text).removeprefix("void ").split())
