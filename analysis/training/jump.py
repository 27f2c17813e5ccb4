"""Why do the losses of gpt2.py jump at step 46? The weights or the pieces of text, and what takes the jump away.

    git archive 1240a3a1 docs | tar x -C old          # the text that was trained on
    python analysis/training/jump.py --docs old/docs -o analysis/training/jump.json

The file has, of one seed and backend `math`: `losses` of 60 steps, `weights_on_pieces` (mean loss of the weights of a
step on the pieces of another, no gradient), `along` (loss at step 46 after a part of the update before it, with the
mean cosine between a token's last hidden state and the mean of all), `layers` (after the update of one layer alone),
and `variants`, each of 70 steps with one suspect left out: the highest loss after step 20, its step, whether the losses
still `jump` (by more than 2 from one step to the next, after step 20), and the mean of the last ten. The file is whole
after each part.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpt2
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

AT, STEPS, JUMP = 46, 70, 2.0
AROUND = range(AT - 2, AT + 3)
CHANGES: dict[str, dict[str, Any]] = {
    "as in gpt2.py": {},
    "pieces of steps 46 and 60 swapped": {"swap": (46, 60)},
    "pieces of steps 45 and 60 swapped": {"swap": (45, 60)},
    "no update at step 45": {"skip": 45},
    "float32 throughout": {"autocast": False},
    "AdamW with beta2 0.95": {"betas": (0.9, 0.95)},
    "seed 1": {"seed": 1},
    "seed 2": {"seed": 2},
    "AdamW with epsilon 1e-5": {"eps": 1e-5},
    "gradients clipped at 1": {"clip": 1.0},
    "20 steps of warm-up": {"warm_up": 20},
    "learning rate 1e-4": {"lr": 1e-4},
}


def start(seed: int, **options: Any) -> tuple[Any, Any, torch.Tensor]:
    """The model, its optimizer and the pieces of text of gpt2.py."""
    import transformers

    torch.manual_seed(seed)
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(n_layer=12, n_positions=1024, attn_implementation="sdpa", **off)
    model = transformers.GPT2LMHeadModel(config).to("cuda")
    pages = gpt2.text()
    starts = torch.randint(len(pages) - 1024, (100, 8), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 3e-4, "fused": True, **options})
    return model, optimizer, pages[starts[:, :, None] + torch.arange(1024)].cuda()


def step(model: Any, optimizer: Any, tokens: torch.Tensor, autocast: bool = True, clip: float = 1e30) -> float:
    """One step of training; its loss."""
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return round(float(loss.detach()), 6)


def look(model: Any, tokens: torch.Tensor) -> tuple[float, float]:
    """The loss of pieces, and the mean cosine between the last hidden states and their mean."""
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        out = model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    logits = out.logits[:, :-1].float().flatten(0, 1)
    units = functional.normalize(out.hidden_states[-1][:, 20:].float().flatten(0, 1), dim=1)
    cosine = units @ functional.normalize(units.mean(0), dim=0)
    return round(float(functional.cross_entropy(logits, tokens[:, 1:].flatten())), 3), round(float(cosine.mean()), 3)


def vary(
    seed: int = 0,
    warm_up: int = 0,
    autocast: bool = True,
    clip: float = 1e30,
    swap: tuple[int, int] = (0, 0),
    skip: int = -1,
    **options: Any,
) -> dict[str, Any]:
    """Train with one change."""
    model, optimizer, pieces = start(seed, **options)
    full, losses, order = optimizer.param_groups[0]["lr"], [], list(range(STEPS))
    order[swap[0]], order[swap[1]] = order[swap[1]], order[swap[0]]
    for number, at in enumerate(order):
        optimizer.param_groups[0]["lr"] = full * min(1.0, (number + 1) / (warm_up or 1)) * (number != skip)
        losses.append(step(model, optimizer, pieces[at], autocast, clip))
    late = losses[20:]
    jump = max(new - old for old, new in itertools.pairwise(late))
    return {
        "highest_after_20": max(late),
        "at_step": 20 + late.index(max(late)),
        "jump": round(jump, 3) if jump > JUMP else None,
        "last_10": round(sum(losses[-10:]) / 10, 3),
    }


def explain() -> dict[str, Any]:
    """Everything about the jump itself."""
    model, optimizer, pieces = start(0)
    losses, matrix = [], {}
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    for number, tokens in enumerate(pieces[:60]):
        if number in AROUND:
            matrix[number] = {other: look(model, pieces[other])[0] for other in AROUND}
        weights = {name: each.detach().clone() for name, each in model.named_parameters()}
        losses.append(step(model, optimizer, tokens))
        if number == AT - 1:
            before, after = weights, {name: each.detach().clone() for name, each in model.named_parameters()}

    def with_weights(choose: Callable[[str], torch.Tensor]) -> tuple[float, float]:
        with torch.no_grad():
            for name, each in model.named_parameters():
                each.copy_(choose(name))
        return look(model, pieces[AT])

    parts = (0, 0.25, 0.5, 0.75, 1, 1.25)
    along = {part: with_weights(lambda name, part=part: before[name].lerp(after[name], part)) for part in parts}
    one = {n: with_weights(lambda name, n=n: (after if f".h.{n}." in name else before)[name])[0] for n in range(12)}
    return {"losses": losses, "weights_on_pieces": matrix, "along": along, "layers": one}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=gpt2.DOCS, help="the text")
    parser.add_argument("-o", "--output", type=Path, required=True)
    at = parser.parse_args()
    gpt2.DOCS = at.docs
    with sdpa_kernel([SDPBackend.MATH]):
        answer = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, **explain()}
        answer["variants"] = {}
        for name, change in CHANGES.items():
            at.output.write_text(json.dumps(answer, indent=1) + "\n")
            answer["variants"][name] = found = vary(**change)
            print(f"{name}: {'jumps' if found['jump'] else 'no jump'}, {found}", flush=True)
    at.output.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
