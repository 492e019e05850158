"""Train the model on CPUs: seeded, and resumed from its last checkpoint.

python -m tools.tiny.train build/tiny --steps 6000
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, distributed
from torch.nn import functional as F

from tools.tiny import packing, tokenizer
from tools.tiny.model import Model, Shape
from tools.tiny.muon import Muon

log = logging.getLogger("train")


@dataclass(frozen=True)
class Recipe:
    """How to train. The rate rises over `warmup` steps, stays, and falls to nothing in the last
    third, in which the experts are rounded to INT4.
    """

    steps: int
    seed: int = 0
    tokens: int = 8192
    workers: int = 2
    rate: float = 3e-3
    warmup: int = 100
    decay: float = 0.35
    weight_decay: float = 0.05
    clip: float = 1.0
    balance: float = 0.003

    def decaying(self, step: int) -> bool:
        return step >= self.steps * (1 - self.decay)

    def rate_at(self, step: int) -> float:
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


def loss(model: Model, batch: packing.Batch) -> tuple[Tensor, Tensor]:
    """Weighted mean of the cross entropy, and the load-balancing loss."""
    states, balance = model(batch)
    # A token is predicted from the one before it; the first of a document counts nothing.
    weights = torch.from_numpy(batch.weights)[1:]
    losses = F.cross_entropy(
        model.logits(states[:-1]), torch.from_numpy(batch.ids)[1:], reduction="none"
    )
    return (losses * weights).sum() / weights.sum(), balance


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


def work(rank: int, folder: Path, recipe: Recipe, save_seconds: float) -> None:
    """One of recipe.workers processes, on one core each: a share of each batch."""
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(str(folder / "rendezvous"), recipe.workers),
        rank=rank,
        world_size=recipe.workers,
    )
    model = Model(Shape(), torch.bfloat16)
    optims = optimizers(model, recipe)
    step = _resume(folder / "checkpoint.pt", model, optims)
    texts = Tokenizer.from_file(str(folder / "tokenizer.json"))
    began = saved = time.monotonic()
    first, share = step, recipe.tokens // recipe.workers
    while step < recipe.steps:
        if recipe.decaying(step):
            model.use_int4()
        number = step * recipe.workers + rank
        batch = packing.training_batch(texts, recipe.seed, number, share)
        cross, balance = _step(model, optims, recipe, step, batch)
        step += 1
        if rank == 0 and step % 10 == 0:
            rate = (step - first) * recipe.tokens / (time.monotonic() - began)
            log.info("step %d loss %.4f balance %.3f %.0f tokens/s", step, cross, balance, rate)
        if rank == 0 and time.monotonic() - saved > save_seconds:
            save(folder / "checkpoint.pt", model, optims, step)
            saved = time.monotonic()
    if rank == 0:
        save(folder / "checkpoint.pt", model, optims, step)
        torch.save(model.state_dict(), folder / "model.pt")


def train(folder: Path, recipe: Recipe, save_seconds: float) -> None:
    """Train in `folder`: tokenizer.json, checkpoint.pt and, at the end, model.pt.

    This process is the first worker; whoever stops it stops them all at the end of a step.
    """
    if not (folder / "tokenizer.json").exists():
        tokenizer.save(tokenizer.train(recipe.seed), folder)
    (folder / "rendezvous").unlink(missing_ok=True)
    others = multiprocessing.get_context("spawn")
    for rank in range(1, recipe.workers):
        arguments = (rank, folder, recipe, save_seconds)
        others.Process(target=work, args=arguments, daemon=True).start()
    work(0, folder, recipe, save_seconds)


def _step(
    model: Model,
    optims: list[torch.optim.Optimizer],
    recipe: Recipe,
    step: int,
    batch: packing.Batch,
) -> tuple[float, float]:
    cross, balance = loss(model, batch)
    model.zero_grad(set_to_none=True)
    (cross + recipe.balance * balance).backward()
    parameters = list(model.parameters())
    gradients = torch.cat([p.grad.flatten() for p in parameters])
    distributed.all_reduce(gradients)
    gradients /= recipe.workers
    for parameter, part in zip(
        parameters, gradients.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = part.view_as(parameter)
    torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
    for optim in optims:
        for group in optim.param_groups:
            group["lr"] = recipe.rate_at(step)
        optim.step()
    return cross.item(), balance.item()


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
    parser.add_argument("--steps", type=int, required=True, help="batches of 8192 tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-seconds", type=float, default=180)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        format="%(asctime)s %(message)s",
        level=logging.INFO,
        handlers=[logging.FileHandler(arguments.folder / "train.log"), logging.StreamHandler()],
    )
    train(arguments.folder, Recipe(arguments.steps, arguments.seed), arguments.save_seconds)


if __name__ == "__main__":
    main()
