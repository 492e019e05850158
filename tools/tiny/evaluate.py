"""Held-out perplexity and use of experts per domain, and sums, as the tables of the model card.

python -m tools.tiny.evaluate src/kt/tiny
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from tools.tiny import asking, packing, unpacked
from tools.tiny.text.corpus import DOMAINS, document

TOKENS: Final = 16_384
"""Of each domain."""
SUMS: Final = 300
BEGIN, END = "<!-- measured by tools/tiny/evaluate.py -->", "<!-- end of measured -->"


@dataclass(frozen=True)
class Use:
    """perplexity of what the model itself has to say; counts [layers, experts]: how often each was
    chosen, over all tokens.
    """

    perplexity: float
    counts: Tensor

    def hot(self) -> Tensor:
        """The quarter of each layer's experts that is used most, [layers, experts / 4], sorted."""
        return self.counts.topk(self.counts.shape[1] // 4, 1).indices.sort(1).values

    def hot_share(self) -> Tensor:
        """What part of all choices they take, per layer."""
        return self.counts.gather(1, self.hot()).sum(1) / self.counts.sum(1)

    def in_common(self, other: Use) -> float:
        """Hot experts that both have, mean over layers."""
        pairs = zip(self.hot().tolist(), other.hot().tolist(), strict=True)
        return sum(len(set(one) & set(two)) for one, two in pairs) / len(self.counts)


def held_out(tokenizer: Tokenizer, domain: str, tokens: int) -> Iterator[packing.Row]:
    """About `tokens` tokens of documents that training did not see; sums are of held-out pairs."""
    rng = Random(f"held out {domain}")
    while tokens > 0:
        row = packing.encode(tokenizer, document(rng, domain, test=True))
        tokens -= len(row[0])
        yield row


@torch.no_grad()
def use(model: Any, tokenizer: Tokenizer, domain: str, tokens: int = TOKENS) -> Use:
    """Measured on held-out documents, one at a time. model: of transformers."""
    config = model.config
    counts = torch.zeros(config.num_hidden_layers, config.num_experts)
    total = weight = 0.0
    for ids, counted in held_out(tokenizer, domain, tokens):
        output = model(torch.tensor([ids]), output_router_logits=True)
        own = torch.tensor(counted[1:]) == 1
        losses = F.cross_entropy(output.logits[0, :-1], torch.tensor(ids[1:]), reduction="none")
        total += float(losses[own].sum())
        weight += float(own.sum())
        for layer, scores in enumerate(output.router_logits):
            chosen = scores.topk(config.num_experts_per_tok, -1).indices.flatten()
            counts[layer] += torch.bincount(chosen, minlength=config.num_experts)
    return Use(float(torch.tensor(total / weight).exp()), counts)


def report(uses: dict[str, Use], right: dict[str, float]) -> str:
    """The tables, in Markdown."""
    lines = [
        "| domain | perplexity | choices that the 4 most used of 16 experts get | by layer |",
        "|---|---|---|---|",
    ]
    for domain, found in uses.items():
        share = found.hot_share()
        layers = ", ".join(f"{value:.0%}" for value in share.tolist())
        lines.append(f"| {domain} | {found.perplexity:.3f} | {share.mean():.0%} | {layers} |")
    lines += ["", "| | right, of held-out pairs |", "|---|---|"]
    lines += [f"| {kind} | {part:.1%} |" for kind, part in right.items()]
    lines += ["", "Of a layer's 4 most used experts, two domains have in common (mean):", ""]
    lines += ["| | " + " | ".join(uses) + " |", "|---" * (len(uses) + 1) + "|"]
    common = {frozenset(pair): uses[pair[0]].in_common(uses[pair[1]]) for pair in _pairs(uses)}
    for one in uses:
        cells = [f"{common.get(frozenset((one, two)), 4.0):.1f}" for two in uses]
        lines.append(f"| {one} | " + " | ".join(cells) + " |")
    lines += ["", "Choices of each expert, in percent:", "", "| layer | domain | experts 0 to 15 |"]
    lines.append("|---|---|---|")
    for layer in range(len(next(iter(uses.values())).counts)):
        for domain, found in uses.items():
            shares = found.counts[layer] / found.counts[layer].sum() * 100
            row = " ".join(f"{share:.0f}" for share in shares.tolist())
            lines.append(f"| {layer} | {domain} | {row} |")
    return "\n".join(lines)


def _pairs(uses: dict[str, Use]) -> Iterator[tuple[str, str]]:
    return combinations(uses, 2)


def into_card(card: Path, tables: str) -> None:
    """Replace what stands between the marks."""
    pattern = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    text, count = pattern.subn(f"{BEGIN}\n{tables}\n{END}", card.read_text())
    if count != 1:
        raise SystemExit(f"{card} has no place for the tables")
    card.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the shipped model")
    parser.add_argument("--card", action="store_true", help="write the tables into its README.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as folder:
        model = unpacked.model(arguments.folder, Path(folder))
        uses = {domain: use(model, tokenizer, domain) for domain in DOMAINS}
    tables = report(uses, asking.sums_right(arguments.folder, SUMS))
    print(tables)
    if arguments.card:
        into_card(arguments.folder / "README.md", tables)


if __name__ == "__main__":
    main()
