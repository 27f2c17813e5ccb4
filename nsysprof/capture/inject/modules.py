"""Open ranges around every call of an ``nn.Module``, forward and backward, through hooks that do not change the module.

In forward, torch's global hooks run before and after each call. In backward, the sequence number of each node in
autograd's graph shows which call created the node. Before a node runs, a hook opens the ranges of the node's call and
ends the ranges of other calls. Hooks on tensors or modules would add nodes to the graph.
"""

from __future__ import annotations

import bisect
import functools
import threading
import time
import weakref
from statistics import median
from typing import Any

from .annotate import begin, emitter, end
from .state import safely

_WRAPPED = ("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_SAMPLE_EACH, _MAX_SAMPLES = 16, 4096
_COMPILED = " (compiled)"
_LEAF = "torch::autograd::AccumulateGrad"
Names = dict[int, tuple[Any, str]]


class _Call:
    """A call of a module: the name of its range, the calls around it, and the names of all modules below its root."""

    __slots__ = ("chain", "depth", "name", "names", "run")

    def __init__(self, name: str, names: Names, around: _Call | None) -> None:
        self.name, self.names = name, names
        self.depth: int = around.depth + 1 if around else 0
        self.chain: tuple[_Call, ...] = (*(around.chain if around else ()), self)
        self.run = functools.partial(_node_runs, self)  # one hook for all nodes of the call


class _Here(threading.local):
    """The open calls and backward passes of a thread.

    ``stack``: module, call and range of each running call; ``marks`` and ``owners``: the sequence number from which
    autograd nodes belong to each call; ``tasks``: the id of each running backward pass, and what is open in it.
    """

    def __init__(self) -> None:
        self.stack: list[tuple[Any, _Call, Any]] = []
        self.marks: list[int] = []
        self.owners: list[_Call | None] = []
        self.tasks: list[tuple[int, list[tuple[_Call, Any]]]] = []


class _Hooks:
    """The data of the hooks: torch, the deepest level, the names by root, and the hooks' durations."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.depth: int | None = None
        self.names: dict[int, Names] = {}  # by the root's id: modules may have no hash
        self.running: set[int] = set()
        self.calls = self.nodes = 0
        self.taken: dict[str, list[int]] = {"enter": [], "leave": [], "node": []}

    def sample(self, what: str, began: int) -> None:
        """Record how long a hook took."""
        taken = self.taken[what]
        if len(taken) < _MAX_SAMPLES:
            taken.append(time.perf_counter_ns() - began)


_hooks = _Hooks()
_here = _Here()


def watch_modules(torch: Any, depth: int | None) -> None:
    """Open a range around each module call, down to ``depth`` levels of calls below the root (None: all levels)."""
    _hooks.torch, _hooks.depth = torch, depth
    module = torch.nn.modules.module
    module.register_module_forward_pre_hook(_entered)
    module.register_module_forward_hook(_left, always_call=True)
    _watch_compiled(module.Module)


def cost() -> dict[str, Any]:
    """Return the number of module calls, and the median times (ns) that the hooks take per call and per node."""
    taken = {what: round(median(each)) if each else 0 for what, each in _hooks.taken.items()}
    return {
        "calls": _hooks.calls,
        "per_call_ns": taken["enter"] + taken["leave"],
        "backward_nodes": _hooks.nodes,
        "per_node_ns": taken["node"],
    }


def _entered(module: Any, _args: Any) -> None:
    if _hooks.torch.compiler.is_compiling() or not emitter.on:
        return
    began = time.perf_counter_ns()
    _enter(module)
    _hooks.calls += 1
    if _hooks.calls % _SAMPLE_EACH == 0:
        _hooks.sample("enter", began)


def _left(module: Any, _args: Any, output: Any) -> None:
    if _hooks.torch.compiler.is_compiling() or not _here.stack:
        return
    began = time.perf_counter_ns()
    _leave(module, output)
    if _hooks.calls % _SAMPLE_EACH == 0:
        _hooks.sample("leave", began)


@safely
def _enter(module: Any, *, compiled: bool = False) -> None:
    here = _here
    around = here.stack[-1][1] if here.stack else None
    if around is None:
        del here.marks[:], here.owners[:]
        if here.tasks and _hooks.torch._C._current_graph_task_id() == -1:
            _end_tasks(here, 0)  # of a backward that raised
    # what runs forward within the backward of a call is computed again
    known = around or (here.tasks[-1][1][-1][0] if here.tasks and here.tasks[-1][1] else None)
    names = known.names if known else _names_of(module)
    name = _name(module, names, here.stack[-1][0] if here.stack else None, known)
    if compiled or "dynamo_ctx" in vars(module):  # hasattr would ask the program's own __getattr__
        name += _COMPILED
    depth = around.depth + 1 if around else 0
    if around is not None and _is_silent(module, name, around, depth):
        here.stack.append((module, around, None))
        return
    call = _Call(name, names, around)
    here.stack.append((module, call, begin(name)))
    _mark(here, call)


def _is_silent(module: Any, name: str, around: _Call, depth: int) -> bool:
    """Whether a module gets no range: a wrapped module, a module that is too deep, or a graph of a compiled module."""
    too_deep = _hooks.depth is not None and depth > _hooks.depth
    return too_deep or name == around.name or (around.name.endswith(_COMPILED) and not _is_named(module, around.names))


@safely
def _leave(module: Any, output: Any) -> None:
    here = _here
    at = next((at for at in range(len(here.stack) - 1, -1, -1) if here.stack[at][0] is module), None)
    if at is None:
        return
    while len(here.stack) > at:  # what an exception left open, too
        end(here.stack.pop()[2])
    _mark(here, here.stack[-1][1] if here.stack else None)
    if not here.stack and output is not None:
        _hook_nodes(here, output)


def _mark(here: _Here, call: _Call | None) -> None:
    number = _hooks.torch._C._autograd._get_sequence_nr()
    if here.marks and here.marks[-1] == number:
        here.owners[-1] = call
    else:
        here.marks.append(number)
        here.owners.append(call)


def _names_of(root: Any) -> Names:
    names = _hooks.names.get(id(root))
    if names is None or not _is_named(root, names):
        names = _hooks.names[id(root)] = {}
        weakref.finalize(root, _hooks.names.pop, id(root), None)
        _name_below(root, "", names)
    return names


def _name_below(module: Any, path: str, names: Names) -> None:
    """Name a module and all modules below it by their paths from the root, without pure wrappers."""
    names[id(module)] = weakref.ref(module), path or _kind(module)
    if _wraps(module):
        _name_below(_only_child(module), path, names)
        return
    for name, child in module._modules.items():
        if child is not None and not _is_named(child, names):
            _name_below(child, f"{path}.{name}" if path else name, names)


def _is_named(module: Any, names: Names) -> bool:
    known = names.get(id(module))
    return known is not None and known[0]() is module


def _name(module: Any, names: Names, parent: Any, around: _Call | None) -> str:
    """Return the name of a module; search a module that was added later below the module that calls it."""
    if not _is_named(module, names) and parent is not None and _is_named(parent, names):
        path = names[id(parent)][1]
        _name_below(parent, "" if around is not None and not around.depth else path, names)
    if _is_named(module, names):
        return names[id(module)][1]
    kind = _kind(module)  # made as it was called, belongs to no module
    return f"{around.name}.({kind})" if around is not None and around.depth else kind


def _kind(module: Any) -> str:
    """Return the class of a module, or of the module that it wraps, or was scripted or traced from."""
    inside = _inside(module)
    own, *above = type(inside).__mro__
    if len(above) > 1 and own.__name__ == f"FSDP{above[1].__name__}":  # what `fully_shard` makes of a class
        own = above[1]
    scripted = getattr(type(inside), "original_name", None)  # not of the module, whose __getattr__ is the program's
    return str((scripted and inside.original_name) or own.__name__)


def _wraps(module: Any) -> bool:
    children = module._modules
    return len(children) == 1 and next(iter(children)) in _WRAPPED and not module._parameters


def _only_child(module: Any) -> Any:
    return next(iter(module._modules.values()))


def _inside(module: Any) -> Any:
    while _wraps(module) and _only_child(module) is not None:
        module = _only_child(module)
    return module


def _hook_nodes(here: _Here, output: Any) -> None:
    """Make each autograd node created in the calls of a root open the ranges of its call before the node runs."""
    first, last = here.marks[0], here.marks[-1]
    with _hooks.torch._C.DisableTorchFunction():  # subclasses and modes of the program would see us ask
        seen = {tensor.grad_fn for tensor in _tensors(output, _hooks.torch.Tensor)} - {None}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        if node.name() == _LEAF:
            continue
        number = node._sequence_nr()
        if not first <= number < last:
            continue
        owner = here.owners[bisect.bisect_right(here.marks, number) - 1]
        if owner is not None:
            node.register_prehook(owner.run)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _tensors(value: Any, kind: type, depth: int = 0) -> list[Any]:
    """List the tensors in a module's return value, including lists, tuples, mappings and objects with fields."""
    if isinstance(value, kind):
        return [value]
    if depth > 4 or isinstance(value, (str, bytes, int, float, type(None))):
        return []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        slots = [name for each in type(value).__mro__ for name in vars(each).get("__slots__", ())]
        parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    return [tensor for part in parts for tensor in _tensors(part, kind, depth + 1)]


@safely
def _node_runs(call: _Call, _grads: Any) -> None:
    if not emitter.on or emitter.numbered:
        return
    began = time.perf_counter_ns()
    here, task = _here, _hooks.torch._C._current_graph_task_id()
    while here.tasks and here.tasks[-1][0] != task and here.tasks[-1][0] not in _hooks.running:
        _end_tasks(here, len(here.tasks) - 1)
    if not here.tasks or here.tasks[-1][0] != task:
        here.tasks.append((task, []))
        _hooks.running.add(task)
        _hooks.torch.autograd.Variable._execution_engine.queue_callback(functools.partial(_task_ended, task))
    opened = here.tasks[-1][1]
    if not (opened and opened[-1][0] is call):
        keep = 0
        while keep < min(len(opened), len(call.chain)) and opened[keep][0] is call.chain[keep]:
            keep += 1
        while len(opened) > keep:
            end(opened.pop()[1])
        for each in call.chain[keep:]:
            opened.append((each, begin(f"{each.name} backward")))
    _hooks.nodes += 1
    if _hooks.nodes % _SAMPLE_EACH == 0:
        _hooks.sample("node", began)


@safely
def _task_ended(task: int) -> None:
    _hooks.running.discard(task)
    for at, (number, _) in enumerate(_here.tasks):
        if number == task:
            _end_tasks(_here, at)
            break


def _end_tasks(here: _Here, first: int) -> None:
    while len(here.tasks) > first:
        for _, handle in reversed(here.tasks.pop()[1]):
            end(handle)


def _watch_compiled(module_class: Any) -> None:
    """Put a range around a module that ``module.compile()`` compiled, because its hooks become compiled code."""
    own = getattr(module_class, "compile", None)
    if own is None:
        return

    @functools.wraps(own)
    def compile_module(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        run = self._compiled_call_impl

        def ranged(*inputs: Any, **named: Any) -> Any:
            if _hooks.torch.compiler.is_compiling() or not emitter.on:
                return run(*inputs, **named)
            _enter(self, compiled=True)
            output = None
            try:
                output = run(*inputs, **named)
                return output
            finally:
                _leave(self, output)

        self._compiled_call_impl = ranged

    module_class.compile = compile_module
