"""A small GPT with random weights: prefill, decode with a KV cache, or training, by one backend after the other.

    python workloads/gpt.py --backend math flash --seq 512 1024
    python workloads/gpt.py --decode --cuda-graph --layers 12 --heads 16 --kv-heads 4 --width 1024
    python workloads/gpt.py --train --batch 8 --dtype bf16

Per layer RMSNorm, grouped-query attention with rotary positions, RMSNorm, and a GELU MLP of 4 x width; the embedding
is the output projection as well. Every backend is checked against the whole model in float64 before it is measured:
decoding has to give the logits of one pass over all tokens. NVTX ranges beside those of all workloads: prefill,
step<i>, forward, backward, optimizer; in these embedding, layer<i> with attention and mlp, and head.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from _attention import BACKENDS, Problem
from _results import WorkloadError
from _workload import Axis, Case, Cost, Flag, Mode, Work, Workload, main

if TYPE_CHECKING:
    import torch

    from _attention import Attend
    from _measure import Results, Step

    # Weights by name; those of a layer are called `<layer>.<name>`.
    Weights = Mapping[str, torch.Tensor]
    Angles = tuple[torch.Tensor, torch.Tensor]
    # The attention of a layer: queries, and the keys and values of the new tokens, to what it comes to.
    Layer = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

LEARNING_RATE = 1e-3
CHECKED_GRADIENTS = ("embedding", "0.qkv", "0.up")
_NAMES = ("attention_norm", "qkv", "proj", "mlp_norm", "up", "down")
_EPSILON = 1e-5
_ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
# Every layer rounds anew, so that logits are further off than the output of one attention.
_TOLERANCES = {"fp16": 1e-2, "bf16": 8e-2, "fp32": 1e-4}


# ---- sizes and cost


def head_dim(at: Case) -> int:
    """The size of a head. Raises `WorkloadError` for sizes that make no model."""
    hint = "--width must be a multiple of --heads, and --heads a multiple of --kv-heads"
    if at.width % at.heads or at.heads % at.kv_heads:
        raise WorkloadError(f"width {at.width}, {at.heads} heads and {at.kv_heads} key heads do not fit together", hint)
    if at.width // at.heads % 2:
        raise WorkloadError(f"rotary positions need heads of an even size, not {at.width // at.heads}", hint)
    if at.backward and (at.decode or at.cuda_graph):
        raise WorkloadError("--train works with neither --decode nor --cuda-graph", "leave out one of them")
    return int(at.width // at.heads)


def cost(at: Case) -> Cost:
    """FLOPs of all products: the weights once for each token, the scores that are not masked; three times for training.

    Bytes: weights, tokens, and the keys and values that are kept; a decoding call reads them again for each token.
    """
    item, size = _ITEM_BYTES[at.dtype], head_dim(at)
    kept = 2 * at.layers * at.batch * at.kv_heads * size  # of one token: its keys and values
    layer = at.width * (2 * at.width + 2 * at.kv_heads * size + 8 * at.width)
    weights, head = at.layers * layer, at.vocab * at.width
    new = at.new_tokens if at.decode else at.seq
    if at.decode:
        pairs = at.batch * at.heads * sum(at.seq + step + 1 for step in range(new))
    else:
        pairs = at.batch * at.heads * at.seq * (at.seq + 1) // 2
    logits = new if at.decode or at.backward else 1
    flops = 2 * at.batch * (new * weights + logits * head) + 4 * size * at.layers * pairs
    read, again = (weights + head) * item, 0
    if at.backward:
        flops, item, read = 3 * flops, 4, 3 * (weights + head) * 4  # float32 weights with two moments
        written = read
    elif at.decode:
        read += kept * at.seq * item
        written, again = kept * new * item, (new - 1) * read
    else:
        written = kept * new * item
    tokens = at.batch * new
    return Cost(
        flops=flops,
        read_bytes=read + 8 * tokens,
        written_bytes=written + at.batch * logits * at.vocab * item * (not at.backward),
        tokens=tokens,
        extra_bytes=dict.fromkeys(BACKENDS, again),
    )


# ---- the model


def _named(name: str) -> Any:
    """An NVTX range, but not in code that is being compiled, which could not be one piece with it."""
    import nvtx
    import torch

    return nullcontext() if torch.compiler.is_compiling() else nvtx.annotate(name)


def _tensors(at: Case) -> dict[str, torch.Tensor]:
    """Weights in float32 on the CPU, such that a layer adds a variance of about 1 / layers to what passes through."""
    import torch

    generator = torch.Generator().manual_seed(at.seed)
    width, deep = at.width, (2 * at.layers) ** -0.5

    def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale * columns**-0.5)

    weights = {"embedding": normal(at.vocab, width) * width**0.5, "norm": torch.ones(width)}
    for layer in range(at.layers):
        parts = {
            "attention_norm": torch.ones(width),
            "qkv": normal((at.heads + 2 * at.kv_heads) * head_dim(at), width),
            "proj": normal(width, width, deep),
            "mlp_norm": torch.ones(width),
            "up": normal(4 * width, width),
            "down": normal(width, 4 * width, deep),
        }
        weights |= {f"{layer}.{name}": tensor for name, tensor in parts.items()}
    return weights


def _tokens(at: Case) -> torch.Tensor:
    """(batch, prompt and what follows it) of tokens: given, so that all backends decode the same."""
    import torch

    more = at.new_tokens if at.decode else 1
    generator = torch.Generator().manual_seed(at.seed + 1)
    return torch.randint(at.vocab, (at.batch, at.seq + more), generator=generator)


def _dtype(at: Case) -> torch.dtype:
    import torch

    return {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[at.dtype]


def _rotations(at: Case, dtype: torch.dtype) -> Angles:
    """Cosine and sine of the angles of each position, a column for each half of a head."""
    import torch

    half = head_dim(at) // 2
    speed = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(at.seq + at.new_tokens, dtype=torch.float64)[:, None] * speed
    return angle.cos().to(at.device, dtype), angle.sin().to(at.device, dtype)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads turned by the angles of their positions."""
    import torch

    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _model(
    at: Case, weights: Weights, tokens: torch.Tensor, angles: Angles, attend: Layer, last: int | None = None
) -> torch.Tensor:
    """Logits of (batch, new tokens), at all of them or the ``last`` ones; ``angles`` are those of their positions."""
    from torch.nn.functional import embedding, gelu, linear, rms_norm

    size, width = head_dim(at), at.width
    split = [at.heads * size, at.kv_heads * size, at.kv_heads * size]
    with _named("embedding"):
        x = embedding(tokens, weights["embedding"])
    for layer in range(at.layers):
        own = {name: weights[f"{layer}.{name}"] for name in _NAMES}
        with _named(f"layer{layer}"):
            with _named("attention"):
                normed = rms_norm(x, (width,), own["attention_norm"].to(x.dtype), _EPSILON)
                parts = linear(normed, own["qkv"]).split(split, dim=-1)
                q, k, v = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts)
                out = attend(layer, _turned(q, *angles), _turned(k, *angles), v)
                x = x + linear(out.transpose(1, 2).flatten(2), own["proj"])
            with _named("mlp"):
                normed = rms_norm(x, (width,), own["mlp_norm"].to(x.dtype), _EPSILON)
                x = x + linear(gelu(linear(normed, own["up"])), own["down"])
    with _named("head"):
        x = x if last is None else x[:, -last:]
        normed = rms_norm(x, (width,), weights["norm"].to(x.dtype), _EPSILON) * width**-0.5
        return linear(normed, weights["embedding"])


# ---- what is measured


def prepare(at: Case) -> Work:
    """A model with random weights and tokens, the same for every backend and device."""
    head_dim(at)
    weights, tokens = functools.cache(lambda: _tensors(at)), _tokens(at)

    def build(attend: Attend) -> Step:
        kind = _training if at.backward else _decoding if at.decode else _prefilling
        return kind(at, weights(), tokens, attend)

    return Work(build, lambda: _float64(at, weights(), tokens), tokens=cost(at).tokens)


def _on_device(at: Case, weights: Weights) -> dict[str, torch.Tensor]:
    return {name: tensor.to(at.device, _dtype(at), copy=True) for name, tensor in weights.items()}


def _size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _compiled(at: Case, function: Any) -> Any:
    """The function, compiled where that is asked for; anew, as code of earlier shapes counts towards a limit."""
    import torch

    if not at.compile:
        return function
    torch._dynamo.reset()
    return torch.compile(function)


def _graphed(at: Case, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph where that is asked for: its replay, which leaves its result where it was captured."""
    import torch

    if not at.cuda_graph:
        return call
    if at.device != "cuda":
        raise RuntimeError("CUDA graphs need a GPU")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay(_reads: object = call) -> Any:  # a graph does not keep alive what it reads: weights, tokens, cache
        graph.replay()
        return out

    return replay


def _cache(at: Case, weights: Weights, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the keys and values of all layers: (layers, batch, heads of keys, length, size of a head) each."""
    size = (at.layers, at.batch, at.kv_heads, length, head_dim(at))
    empty = weights["embedding"].new_empty
    return empty(size), empty(size)


def _prefilling(at: Case, tensors: Weights, tokens: torch.Tensor, attend: Attend) -> Step:
    """The prompt in one pass: its keys and values go into the cache, the logits of its last token come out."""
    from _measure import Step

    weights, prompt = _on_device(at, tensors), tokens[:, : at.seq].to(at.device)
    keys, values = _cache(at, weights, at.seq)
    cos, sin = (angles[: at.seq] for angles in _rotations(at, _dtype(at)))

    def layer(number: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys[number].copy_(k)
        values[number].copy_(v)
        return attend(q, k, v)

    model = _compiled(at, lambda: _model(at, weights, prompt, (cos, sin), layer, last=1))

    def run() -> torch.Tensor:
        with _named("prefill"):
            return model()

    call = _graphed(at, run)
    inputs, outputs = _size([*weights.values(), prompt]), _size([keys, values])
    return Step(call, lambda: {"output": call()}, lambda: None, inputs, outputs)


def _decoding(at: Case, tensors: Weights, tokens: torch.Tensor, attend: Attend) -> Step:
    """New tokens one by one, each seeing the keys and values of all before it.

    The cache is filled beforehand, by any backend. The tokens are given; the likeliest next one is computed as well.
    """
    import torch

    from _measure import Step

    weights, tokens = _on_device(at, tensors), tokens.to(at.device)
    length = at.seq + at.new_tokens
    keys, values = _cache(at, weights, length)
    angles = _rotations(at, _dtype(at))

    def attend_from(start: int) -> Layer:
        def layer(number: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            end = start + k.shape[2]
            keys[number][:, :, start:end] = k
            values[number][:, :, start:end] = v
            if not start:
                return _whole_prompt(q, k, v)
            return attend(q, keys[number][:, :, :end], values[number][:, :, :end])

        return layer

    def model(start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        at_new = angles[0][start:end], angles[1][start:end]
        logits = _model(at, weights, tokens[:, start:end], at_new, attend_from(start), last=1)
        return logits, logits.argmax(dim=-1)

    model(0, at.seq)
    compiled = _compiled(at, model)
    steps = [
        _graphed(at, functools.partial(compiled, at.seq + step, at.seq + step + 1)) for step in range(at.new_tokens)
    ]

    def call() -> list[torch.Tensor]:
        logits = []
        for number, step in enumerate(steps):
            with _named(f"step{number}"):
                logits.append(step()[0])
        return logits

    cache = _size([keys, values])
    return Step(
        call=call,
        results=lambda: {"output": torch.cat(call(), dim=1)},
        reset=lambda: None,
        inputs_bytes=_size([*weights.values(), tokens]) + cache,
        outputs_bytes=at.batch * at.new_tokens * at.vocab * _ITEM_BYTES[at.dtype],
    )


def _whole_prompt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention by whatever PyTorch picks, also where a single backend is allowed around it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    kinds = [kind for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
             if (kind := getattr(SDPBackend, name, None)) is not None]  # fmt: skip
    with sdpa_kernel(kinds):
        more = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        out: torch.Tensor = scaled_dot_product_attention(q, k, v, is_causal=True, **more)
        return out


def _training(at: Case, tensors: Weights, tokens: torch.Tensor, attend: Attend) -> Step:
    """A training step: float32 weights, products in the dtype (autocast), and AdamW.

    The loss is the mean cross entropy of the next tokens, scaled for the backward pass as fp16 needs it.
    """
    import torch

    from _measure import Step

    weights = {name: tensor.to(at.device, copy=True).requires_grad_() for name, tensor in tensors.items()}
    tokens = tokens.to(at.device)
    cos, sin = (angles[: at.seq] for angles in _rotations(at, _dtype(at)))
    optimizer = torch.optim.AdamW(weights.values(), lr=LEARNING_RATE, capturable=at.device == "cuda")
    # Gradients of a mean are too small for fp16: scaled up, and down again before the optimizer.
    scale = float(tokens[:, 1:].numel()) if at.dtype == "fp16" else 1.0
    losses: list[torch.Tensor] = []

    def layer(_: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v)

    def forward() -> torch.Tensor:
        with torch.autocast(at.device, _dtype(at), enabled=at.dtype != "fp32"):
            logits = _model(at, weights, tokens[:, :-1], (cos, sin), layer)
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    model = _compiled(at, forward)

    def call() -> torch.Tensor:
        with _named("forward"):
            loss = model()
        with _named("backward"):
            (loss * scale).backward()
        with _named("optimizer"):
            if scale != 1:
                torch._foreach_div_([weight.grad for weight in weights.values()], scale)
            optimizer.step()
        losses.append(loss.detach())
        return loss

    def results() -> dict[str, torch.Tensor]:
        loss = call()
        return {"output": loss, **{f"grad_{name}": weights[name].grad for name in CHECKED_GRADIENTS}}

    def reset() -> None:
        for weight in weights.values():
            weight.grad = None

    size = _size(list(weights.values()))
    return Step(
        call,
        results,
        reset,
        inputs_bytes=3 * size,
        outputs_bytes=size,
        facts=lambda: {"losses": [float(loss) for loss in losses]},
        repeats=False,
    )


def _float64(at: Case, tensors: Weights, tokens: torch.Tensor) -> Results:
    """What the results have to be: one pass of the whole model over all tokens, in float64."""
    import torch

    from _reference import Attention

    exact = tensors if at.backward else {name: tensor.to(_dtype(at)) for name, tensor in tensors.items()}
    weights = {name: tensor.to(at.device, torch.float64).requires_grad_(at.backward) for name, tensor in exact.items()}
    tokens = tokens.to(at.device)

    def layer(_: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shared = (part.repeat_interleave(at.heads // at.kv_heads, dim=1) for part in (k, v))
        out: torch.Tensor = Attention.apply(q, *shared, True)
        return out

    seen = at.seq + at.new_tokens if at.decode else at.seq
    cos, sin = (each[:seen] for each in _rotations(at, torch.float64))
    last = None if at.backward else at.new_tokens if at.decode else 1
    logits = _model(at, weights, tokens[:, :seen], (cos, sin), layer, last)
    if not at.backward:
        return {"output": logits.cpu()}
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    grads = {f"grad_{name}": weights[name].grad.cpu() for name in CHECKED_GRADIENTS}
    return {"output": loss.detach().cpu(), **grads}


def _of_either(make: Callable[[Any], Attend], at: Case) -> Attend:
    """A backend's attention of a whole sequence, causal, or of one new token, which sees all keys."""
    sizes = {"batch": at.batch, "heads": at.heads, "kv_heads": at.kv_heads, "head_dim": head_dim(at)}
    seq, keys = (1, at.seq + at.new_tokens) if at.decode else (at.seq, at.seq)
    return make(Problem(**sizes, seq=seq, kv_seq=keys, causal=not at.decode, dtype=at.dtype, device=at.device))


WORKLOAD = Workload(
    name="gpt",
    says="GPT",
    axes={
        "batch": Axis("B", "batch", 1),
        "layers": Axis("L", "layers", 4),
        "heads": Axis("H", "heads", 8),
        "kv_heads": Axis("K", "number of key/value heads", 2),
        "width": Axis("W", "width of the model", 512),
        "vocab": Axis("V", "size of the vocabulary", 8192),
        "seq": Axis("S", "tokens of the prompt", 512),
        "new_tokens": Axis("N", "new tokens per decoding call", 1),
    },
    sweep="seq",
    backends={
        name: replace(backend, make=functools.partial(_of_either, backend.make), tolerances=_TOLERANCES)
        for name, backend in BACKENDS.items()
    },
    cost=cost,
    prepare=prepare,
    flags={
        "decode": Flag("generate tokens with a KV cache instead of processing the prompt", "decode", "", default=False),
        "cuda_graph": Flag("replay a CUDA graph of each step", "cuda graph", "", default=False),
        "compile": Flag("compile the model with torch.compile", "compiled", "", default=False),
    },
    mode=Mode("train", "a training step: forward, backward and AdamW", "", "training step"),
    default_backends=("math", "flash"),
    base=("math", "naive"),
    trial={"seq": 64, "width": 128, "vocab": 256},
    reference="the whole model",
    flops="all matrix products, without masked scores",
    traffic="the data that a decoding call reads again for each new token",
    tokens_shown=True,
)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD))
