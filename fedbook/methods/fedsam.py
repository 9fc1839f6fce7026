"""FedSAM: every local step uses the gradient at the worst point nearby, so that clients settle in
flat places.

Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization",
ICML 2022; the step is that of Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization",
ICLR 2021.

    eps = rho g / ||g||,    g = grad F_k(w)                                                      (a)
    w  <- w - eta grad F_k(w + eps)                                                              (b)

| symbol | here | default | where |
|---|---|---|---|
| rho | `rho` | 0.05 | FedGCR's code; the paper tunes it |

Differs from the paper: (b) goes through the chosen optimiser (SGD or AdamW), the server averages as
FedAvg does.
||g|| is over all trained tensors jointly. Running statistics (BatchNorm) come from the first pass
alone. The
perturbation is undone by putting w back, not by subtracting eps, so nothing drifts; a zero gradient
perturbs nothing. `clip` acts on the gradient of (b). A step costs two passes; dropout draws anew in
the second. Differs from FedGCR's code: FedSAM ran there with Adam at ten times the other methods'
learning rate; here `lr` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.methods.fedavg import fedavg
from fedbook.rounds import Batch, Local, LocalSolver, Method
from fedbook.rounds.lockstep import Step, client_norms, per_client


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(LocalSolver):
    rho: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rho >= 0:
            raise FedbookError(
                f"rho (alpha in Harmo-FL) must be at least 0, got {self.rho}", "try 0.05"
            )

    def step(self, local: Local, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        loss = local.loss(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        state = local.model.state_dict(keep_vars=True).values()
        before = [
            (t, t.detach().clone())
            for t in state
            if not isinstance(t, nn.Parameter) or t.grad is not None
        ]
        self.perturb(local.model)
        optimizer.zero_grad(set_to_none=True)
        local.loss(Batch(local, batch.index)).backward()
        with torch.no_grad():
            for t, value in before:
                t.copy_(value)
        self.clip_gradient(local.model)
        optimizer.step()  # (b)
        return loss.detach()

    def together(self, step: Step, optimizer: torch.optim.Optimizer) -> Tensor:
        params = list(step.stack.params.values())
        losses = step.losses()
        optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        moved = [p for p in params if p.grad is not None]
        before = [p.detach().clone() for p in moved]
        with torch.no_grad():
            norm = client_norms([p.grad for p in moved if p.grad is not None])
            for p in moved:
                assert p.grad is not None
                p.add_(p.grad * per_client(self.rho / norm.clamp(min=1e-12), p))  # (a)
        optimizer.zero_grad(set_to_none=True)
        again = step.again()
        again.losses().sum().backward()
        with torch.no_grad():
            for p, value in zip(moved, before):
                p.copy_(value)
        if self.clip is not None:
            step.clip_gradient(self.clip)
        step.move(optimizer)  # (b)
        return losses.detach()

    @torch.no_grad()
    def perturb(self, model: nn.Module) -> None:
        """w + eps, from the gradients at hand."""
        g = [(p, p.grad) for p in model.parameters() if p.grad is not None]
        norm = torch.stack([grad.norm() for _, grad in g]).norm()
        for p, grad in g:
            p.add_(grad * (self.rho / norm.clamp(min=1e-12)))  # (a)


def fedsam(rho: float = 0.05, **options: Any) -> Method:
    """FedSAM with radius `rho`; `options` are FedAvg's."""
    base = fedavg(**options)
    return base.replace(name="fedsam", solve=SharpnessAware(**vars(base.solve), rho=rho))
