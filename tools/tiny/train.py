"""Train the model on CPUs: seeded, and resumed from its last checkpoint.

python -m tools.tiny.train build/tiny --steps 6000
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from tools.tiny import packing, tokenizer
from tools.tiny.model import Model, Shape
from tools.tiny.muon import Muon

log = logging.getLogger("train")


@dataclass(frozen=True)
class Recipe:
    """How to train. The rate rises over `warmup` steps, stays, and falls to nothing in the last
    third, in which the experts are rounded to INT4. Then it begins anew at `last_rate` and falls
    again, over `last_steps` with more stories; and once more over `focus_steps`, in which each
    document is asked to use few experts, and all documents together all of them.
    """

    steps: int
    last_steps: int
    focus_steps: int
    seed: int = 0
    tokens: int = 4096
    rate: float = 5e-3
    last_rate: float = 3e-3
    warmup: int = 30
    decay: float = 0.35
    weight_decay: float = 0.05
    clip: float = 1.0
    balance: float = 0.01
    focus_balance: float = 0.02
    focus: float = 0.008

    def last(self, step: int) -> bool:
        return step >= self.steps

    def focusing(self, step: int) -> bool:
        return step >= self.steps + self.last_steps

    def decaying(self, step: int) -> bool:
        return step >= self.steps * (1 - self.decay)

    def rate_at(self, step: int) -> float:
        if self.last(step):
            done, steps = step - self.steps, self.last_steps
            if self.focusing(step):
                done, steps = done - self.last_steps, self.focus_steps
            return self.last_rate * (1 - done / steps)
        rising = min(1.0, (step + 1) / self.warmup)
        falling = min(1.0, (self.steps - step) / (self.steps * self.decay))
        return self.rate * rising * falling


def optimizers(model: Model, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of attention and experts; AdamW for embedding, routers and norms."""
    inner, outer, norms = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            norms.append(parameter)
        else:
            (outer if name.endswith(("embed", "router")) else inner).append(parameter)
    groups = [
        {"params": outer, "weight_decay": recipe.weight_decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    return [
        Muon(inner, recipe.rate, recipe.weight_decay),
        torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True),
    ]


def loss(model: Model, batch: packing.Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean of the cross entropy; how unevenly experts are used, over the batch and within
    documents.
    """
    states, balance, focus = model(batch)
    # A token is predicted from the one before it; the first of a document counts nothing.
    weights = torch.from_numpy(batch.weights)[1:]
    losses = F.cross_entropy(
        model.logits(states[:-1]), torch.from_numpy(batch.ids)[1:], reduction="none"
    )
    return (losses * weights).sum() / weights.sum(), balance, focus


def save(path: Path, model: Model, optims: list[torch.optim.Optimizer], step: int) -> None:
    """Replace the checkpoint in one step, so that a killed run leaves a whole one."""
    state = {
        "model": model.state_dict(),
        "optimizers": [optim.state_dict() for optim in optims],
        "step": step,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def train(folder: Path, recipe: Recipe, save_seconds: float) -> None:
    """Train in `folder`: tokenizer.json and checkpoint.pt."""
    torch.manual_seed(recipe.seed)
    if not (folder / "tokenizer.json").exists():
        tokenizer.save(tokenizer.train(recipe.seed), folder)
    texts = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = Model(Shape(), torch.bfloat16)
    optims = optimizers(model, recipe)
    first = step = _resume(folder / "checkpoint.pt", model, optims)
    began = saved = time.monotonic()
    while step < recipe.steps + recipe.last_steps + recipe.focus_steps:
        if recipe.decaying(step):
            model.use_int4()
        last = recipe.last(step)
        batch = packing.training_batch(texts, recipe.seed, step, recipe.tokens, last)
        cross, balance, focus = _step(model, optims, recipe, step, batch)
        step += 1
        if step % 10 == 0:
            rate = (step - first) * recipe.tokens / (time.monotonic() - began)
            uneven = f"balance {balance:.3f} focus {focus:.3f}"
            log.info("step %d loss %.4f %s %.0f tokens/s", step, cross, uneven, rate)
        if time.monotonic() - saved > save_seconds:
            save(folder / "checkpoint.pt", model, optims, step)
            saved = time.monotonic()
    save(folder / "checkpoint.pt", model, optims, step)


def _step(
    model: Model,
    optims: list[torch.optim.Optimizer],
    recipe: Recipe,
    step: int,
    batch: packing.Batch,
) -> tuple[float, float, float]:
    cross, balance, focus = loss(model, batch)
    model.zero_grad(set_to_none=True)
    if recipe.focusing(step):
        extra = recipe.focus_balance * balance - recipe.focus * focus
    else:
        extra = recipe.balance * balance
    (cross + extra).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    for optim in optims:
        for group in optim.param_groups:
            group["lr"] = recipe.rate_at(step)
        optim.step()
    return cross.item(), balance.item(), focus.item()


def _resume(path: Path, model: Model, optims: list[torch.optim.Optimizer]) -> int:
    """The step to go on with."""
    if not path.exists():
        return 0
    state: dict[str, Any] = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optim, saved in zip(optims, state["optimizers"], strict=True):
        optim.load_state_dict(saved)
    return int(state["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where tokenizer and checkpoints go")
    parser.add_argument("--steps", type=int, required=True, help="batches of 4096 tokens")
    parser.add_argument("--last-steps", type=int, default=0, help="batches of the last part")
    parser.add_argument("--focus-steps", type=int, default=0, help="batches of the very last part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-seconds", type=float, default=180)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        format="%(asctime)s %(message)s",
        level=logging.INFO,
        handlers=[logging.FileHandler(arguments.folder / "train.log"), logging.StreamHandler()],
    )
    recipe = Recipe(arguments.steps, arguments.last_steps, arguments.focus_steps, arguments.seed)
    train(arguments.folder, recipe, arguments.save_seconds)


if __name__ == "__main__":
    main()
