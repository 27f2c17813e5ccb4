"""Trains GPT-2 of the transformers package from random weights, with one attention backend after the other.

    python analysis/training/gpt2.py -o losses-1.json --backend math flash cudnn --steps 100
    python analysis/training/gpt2.py -o seeds.json --backend math --seed 0 1 --steps 100
    python analysis/training/gpt2.py --draw losses-1.json losses-2.json -o losses.png

The text is the documentation of this project, a token for each byte. Weights in float32, products in bf16 (autocast),
AdamW, no dropout. Per run the file has the loss of every step, the time of every step between CUDA events, and the
peak of memory; it is whole after each run. `--draw` shows the losses of such files. Ranges: RUN::<backend>, in it
step<i>, in these forward, backward and optimizer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import nvtx
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "math": [SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
}
WARM_STEPS = 10  # not counted in times: allocation, autotuning of cuBLAS, and the first of everything
DOCS = Path(__file__).resolve().parents[2] / "docs"


def text() -> torch.Tensor:
    """The pages of the documentation as bytes."""
    pages = b"".join(page.read_bytes() for page in sorted(DOCS.glob("*.md")))
    return torch.frombuffer(bytearray(pages), dtype=torch.uint8).long()


def train(backend: str, seed: int, at: argparse.Namespace) -> dict[str, Any]:
    """One training run from the first weights of a seed, which also says which pieces of the text come when."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        n_layer=at.layers,
        n_positions=at.seq,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="sdpa",
    )
    model = transformers.GPT2LMHeadModel(config).to(at.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=at.device == "cuda")
    pages = text()
    starts = torch.randint(len(pages) - at.seq, (at.steps, at.batch), generator=torch.Generator().manual_seed(seed))
    pieces = pages[starts[:, :, None] + torch.arange(at.seq)].to(at.device)
    losses, times = [], []
    if at.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with nvtx.annotate(f"RUN::{backend}"), sdpa_kernel(BACKENDS[backend]):
        for number, tokens in enumerate(pieces):
            before = _mark(at.device)
            with nvtx.annotate(f"step{number}"):
                with nvtx.annotate("forward"), torch.autocast(at.device, torch.bfloat16):
                    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
                with nvtx.annotate("backward"):
                    loss.backward()
                with nvtx.annotate("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            times.append((before, _mark(at.device)))
        if at.device == "cuda":
            torch.cuda.synchronize()
    step_ns = [round(_between(*pair)) for pair in times][min(WARM_STEPS, at.steps // 2) :]
    tokens = at.batch * at.seq
    return {
        "backend": backend,
        "seed": seed,
        "losses": [round(float(loss), 6) for loss in losses],
        "step_ns": step_ns,
        "tokens_per_s": round(tokens / statistics.median(step_ns) * 1e9),
        "peak_bytes": torch.cuda.max_memory_allocated() if at.device == "cuda" else None,
    }


def _mark(device: str) -> Any:
    if device != "cuda":
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(before: Any, after: Any) -> float:
    return after - before if isinstance(before, int) else before.elapsed_time(after) * 1e6


def draw(files: list[Path], to: Path) -> None:
    """The losses of all runs, and how far each is from the first; a file's dashes are those of its machine."""
    from PIL import Image

    from nsysprof.bench.lines import LOOKS
    from nsysprof.charts.drawing import figure_png
    from nsysprof.charts.marks import Heading
    from nsysprof.charts.palette import RULE
    from nsysprof.charts.style import draw_axis, panel_grid, style
    from nsysprof.core.units import format_share

    trained = [json.loads(path.read_text()) for path in files]
    runs = [(number, run) for number, each in enumerate(trained) for run in each["runs"]]
    first, names = runs[0][1]["losses"], list(dict.fromkeys(run["backend"] for _, run in runs))
    steps, base = len(first), names[0]
    apart = [[abs(loss - own) for loss, own in zip(run["losses"], first, strict=True)] for _, run in runs]
    most = max(away / own for each in apart for away, own in zip(each, first, strict=True))
    heading = Heading(
        f"Over {steps} steps {' and '.join(names[1:])} follow the losses of {base}, at most {format_share(most)} away",
        f"GPT-2 small, {trained[0]['batch']} x {trained[0]['seq']:,} tokens a step, bf16 products, AdamW, one seed"
        f" · {trained[0]['device']}, {len(files)} machines",
        [(name, LOOKS[name][0]) for name in names],
        ["solid: machine 1, dashed: machine 2", "on the left all lines lie on each other"],
    )
    with style():
        figure, panels = panel_grid(heading, 2, high=3.6, left=0.9, right=0.35)
        parts = {"loss": [run["losses"] for _, run in runs], f"how far from {base} of machine 1": apart}
        for axes, (title, lines) in zip(panels, parts.items(), strict=True):
            for (number, run), values in zip(runs, lines, strict=True):
                dash = ("solid", (0, (4, 2)))[number % 2]
                colour = LOOKS[run["backend"]][0]
                axes.plot(values, clip_on=False, color=colour, linewidth=1.2, linestyle=dash)
            axes.set_title(title, loc="left")
            axes.set_xlim(0, steps - 1)
            if lines is apart:
                axes.set_yscale("symlog", linthresh=1e-4, linscale=0.6)
                axes.set_ylim(0, 0.2)
                ticks = {0.0: "0", 1e-4: "0.0001", 1e-3: "0.001", 1e-2: "0.01", 1e-1: "0.1"}
            else:
                axes.set_ylim(0, 15)
                ticks = {float(loss): f"{loss}" for loss in range(0, 16, 3)}
            draw_axis(axes, range(0, steps, 20), str, "step", gap=4)
            axes.yaxis.set_visible(True)
            axes.set_yticks(list(ticks), list(ticks.values()))
            axes.grid(axis="y", linewidth=0.5, color=RULE)
        picture = Image.open(BytesIO(figure_png(figure)))
    picture.quantize(256).save(to, optimize=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=["math", "flash", "cudnn"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0], help="a run of each backend for each")
    for name, default in {"layers": 12, "batch": 8, "seq": 1024, "steps": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--draw", nargs="+", type=Path, metavar="FILE", help="draw the losses of these, train nothing")
    at = parser.parse_args()
    if at.draw:
        draw(at.draw, at.output)
        return
    import transformers

    about: dict[str, Any] = {name: getattr(at, name) for name in ("layers", "batch", "seq", "steps")}
    about |= {"torch": torch.__version__, "transformers": transformers.__version__}
    about |= {"device": torch.cuda.get_device_name() if at.device == "cuda" else "cpu", "runs": [], "failed": {}}
    for seed, backend in itertools.product(at.seed, at.backend):
        try:
            run = train(backend, seed, at)
        except RuntimeError as error:  # a backend that cannot do it, memory that does not suffice
            about["failed"][backend] = str(error).splitlines()[0]
            print(f"{backend} seed {seed}: {about['failed'][backend]}")
        else:
            about["runs"].append(run)
            step, losses = statistics.median(run["step_ns"]) / 1e6, run["losses"]
            print(f"{backend} seed {seed}: {step:.2f} ms a step, loss {losses[0]:.4f} to {losses[-1]:.4f}")
        if at.output:
            at.output.write_text(json.dumps(about, indent=1) + "\n")
        if at.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
