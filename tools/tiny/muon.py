"""The optimizer: Muon for the matrices inside the layers, AdamW for the rest.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) makes the momentum of a matrix
orthogonal before it is applied. The size of a step is matched to AdamW's as in Moonlight
(arXiv:2502.16982), so that both share one learning rate.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5
_RMS: Final = 0.2


def orthogonal(matrices: Tensor) -> Tensor:
    """About U V^T of each matrix U S V^T in [count, n, k], by Newton-Schulz in bfloat16."""
    a, b, c = _COEFFICIENTS
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum for parameters [..., n, k], each of them a stack of matrices."""

    def __init__(
        self, parameters: list[Tensor], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if gradient is None:
            return
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum = state["momentum"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        nesterov = gradient.lerp(momentum, group["momentum"])
        update = orthogonal(nesterov.view(-1, *parameter.shape[-2:])).view(parameter.shape)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * _RMS * max(parameter.shape[-2:]) ** 0.5)
