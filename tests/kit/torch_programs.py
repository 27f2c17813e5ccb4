"""Programs that a capture records: run as `python torch_programs.py NAME`, they know nothing of who records them.

Each prints what it computed, so that a recording that changes a bit of it shows.
"""

# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call, unused-ignore"
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nvtx
import torch
import torch.utils.checkpoint
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

RECORDED = "NSYSPROF_CAPTURE" in os.environ


def mark(name: str) -> contextlib.AbstractContextManager[Any]:
    """A range of torch.cuda.nvtx, which raises without CUDA unless nsysprof records."""
    if not RECORDED or torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return torch.cuda.nvtx.range(name)


class Attention(nn.Module):
    """Attention over itself, with a function between its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return self.out(nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))


class Block(nn.Module):
    """A block of a decoder; its gate is computed before the attention, and used after it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), Attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 16))

    def forward(self, x: Any) -> Any:
        gate = torch.sigmoid(x)
        with mark("by hand"):
            normed = self.norm(x)
        with mark("by hand"):
            attended = self.attn(normed)
        x = x + gate * attended
        with mark("by hand"):
            fed = self.mlp(x)
        return x + fed


class Decoder(nn.Module):
    """Two blocks and a head, whose output is in a dict."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"layers": nn.ModuleList([Block(), Block()])})
        self.head, self.reentrant = nn.Linear(16, 4), reentrant

    def forward(self, x: Any) -> dict[str, Any]:
        for layer in self.model["layers"]:  # type: ignore[union-attr]
            if self.reentrant is None:
                x = layer(x)
            else:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.reentrant)
        return {"logits": [self.head(x)]}


class Grown(nn.Module):
    """A module that comes while its root runs, and one that belongs to none."""

    def forward(self, x: Any) -> Any:
        if not hasattr(self, "late"):
            self.late = nn.Linear(16, 16)
        return nn.Tanh()(self.late(x))


class Bad(nn.Module):
    """Raises in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        self.inner(x)
        raise ValueError("bad")


class Guarded(nn.Linear):
    """Has no hash, and fails where it is asked for what it has not."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(16, 1)
        self.built = True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "built" in vars(self):
                raise KeyError(name) from None
            raise


class Watching(TorchFunctionMode):
    """Prints every function of torch that is called."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        print("called", getattr(function, "__name__", function))
        return function(*args, **(kwargs or {}))


def show(name: str, *tensors: Any) -> None:
    """Print the bits of tensors."""
    print(name, [tensor.detach().double().sum().item().hex() for tensor in tensors], flush=True)


def train(name: str, model: Any, x: Any, optimizer: Any = None) -> None:
    """One step, in a range of that name; prints its loss and gradients."""
    with mark(name):
        out = model(x)
        loss = (out["logits"][0] if isinstance(out, dict) else out).pow(2).mean()
        loss.backward()
    show(name, loss, *(each.grad for each in model.parameters() if each.grad is not None))
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def modules() -> None:
    """Every kind of module call."""
    x = torch.randn(2, 8, 16)
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(3):
        train(f"decoder {number}", model, x, optimizer)
    convolved = [nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 1)]
    train("cnn", nn.Sequential(*convolved), torch.randn(2, 1, 8, 8))
    wide = x.clone().requires_grad_()
    train("checkpoint", Decoder(reentrant=False), wide)
    train("reentrant", Decoder(reentrant=True), wide)
    train("parallel", nn.DataParallel(Decoder()), x)
    train("late", nn.Sequential(Grown(), nn.Linear(16, 1)), x)
    with mark("bad"), contextlib.suppress(ValueError):
        nn.Sequential(nn.Linear(16, 16), Bad())(x)
    train("after bad", nn.Linear(16, 1), x)
    with mark("threads"):
        threads = [threading.Thread(target=model, args=(x,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with mark("generator"):
        list(_generated(model, x))
    plain = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))
    train("traced", torch.jit.trace(plain, x), x)
    train("scripted", torch.jit.script(plain), x)
    train("symbolic", torch.fx.symbolic_trace(plain), x)
    print(make_fx(plain)(x).code)
    show("per sample", torch.func.vmap(torch.func.grad(lambda each: plain(each).sum()))(x))
    print([len(torch.export.export(plain, (x,), strict=strict).graph.nodes) for strict in (False, True)])
    with Watching():
        show("watched", Guarded()(x))
    for in_place in (False, True):
        compiled: Any = Decoder()
        if in_place:
            compiled.compile(backend="aot_eager")
        else:
            compiled = torch.compile(compiled, backend="aot_eager")
        train(f"compiled {in_place}", compiled, x)
        train(f"compiled {in_place} again", compiled, x)


def _generated(model: Any, x: Any) -> Iterator[Any]:
    for _ in range(2):
        yield model(x)


@nvtx.annotate("decorated")
def _decorated() -> int:
    return 7


def ranges() -> None:
    """Ranges of the program of every kind; names that JSON and Kineto would not take; threads; the end by an error."""
    with nvtx.annotate("annotated", domain="mine"):
        torch.ones(2) + 1
    print(_decorated(), nvtx.push_range("pushed"), nvtx.pop_range())
    handle = nvtx.start_range("started")
    nvtx.end_range(handle)
    for name in ('quo"te', "back\\slash", "new\nline", "ünïcödé 😀", "50%u", "</script>", "x" * 300, ""):
        with nvtx.annotate(name):
            torch.ones(1)
    with torch.autograd.profiler.record_function('their "own"'):
        torch.ones(1)
    if RECORDED:
        print(torch.cuda.nvtx.range_push("outer"), torch.cuda.nvtx.range_push("inner"))
        print(torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.range_pop())
        torch.cuda.nvtx.mark("marked")
        with torch.autograd.profiler.emit_nvtx():
            torch.ones(1)
    thread = threading.Thread(target=lambda: torch.ones(3).cumsum(0))
    thread.start()
    thread.join()
    raise RuntimeError("the end of it")


class Numbers(torch.utils.data.Dataset[Any]):
    """Eight rows of random numbers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Any:
        return torch.full((4,), float(at)).cumsum(0)


def loaders() -> None:
    """Workers of a DataLoader, forked and spawned, a fork that leaves by sys.exit, and one by an exception."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context=method)
        for number, batch in enumerate(loader):
            train(f"{method} {number}", model, batch, optimizer)
    for leave in (lambda: sys.exit(7), lambda: os._exit(8), lambda: train("child", model, torch.ones(2, 4))):
        child = os.fork()
        if child == 0:
            leave()
            sys.exit(9)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(3)


def waits() -> None:
    """Waits for a signal, in the middle of a range."""
    with nvtx.annotate("waiting"):
        torch.ones(3).sum()
        print("ready", flush=True)
        while True:
            time.sleep(0.05)


def dies() -> None:
    """Gets the signal whose name is its argument."""
    with nvtx.annotate("dying"):
        torch.ones(3).sum()
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        time.sleep(60)


def replaced() -> None:
    """Puts another program into its process, after a name that is none."""
    with nvtx.annotate("before"):
        torch.ones(3).sum()
    try:
        os.execv("/no/such/program", ["none"])
    except OSError:
        with nvtx.annotate("still here"):
            torch.ones(3).sum()
    os.execlp(sys.executable, sys.executable, "-c", "print('the other program')")


def itself() -> None:
    """Profiles itself."""
    torch.ones(3).sum()
    with torch.autograd.profiler.profile(use_kineto=True) as own:
        torch.ones(3).cumsum(0)
    print(sum(event.count for event in own.key_averages() if event.key == "aten::cumsum"))


def ranks() -> None:
    """Data-parallel training by two ranks, whose wrapper is seen through, without a launcher that takes a second."""
    with tempfile.TemporaryDirectory() as folder:
        place = {"WORLD_SIZE": "2", "STORE": str(Path(folder, "store"))}
        command = [sys.executable, __file__, "rank"]
        started = [subprocess.Popen(command, env={**os.environ, **place, "RANK": number}) for number in "01"]
        print([each.wait() for each in started])


def rank() -> None:
    """One of the ranks."""
    number, store = int(os.environ["RANK"]), f"file://{os.environ['STORE']}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    model = nn.parallel.DistributedDataParallel(Decoder())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        train(f"distributed {step}", model, torch.randn(2, 8, 16), optimizer)
    torch.distributed.destroy_process_group()


def many() -> None:
    """Thirty steps of an optimizer."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(30):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    programs: dict[str, Callable[[], None]] = {
        each.__name__: each for each in (modules, ranges, loaders, waits, dies, replaced, itself, ranks, rank, many)
    }
    torch.manual_seed(0)
    torch.set_num_threads(1)
    programs[sys.argv[1]]()
