"""DSA-IGN: splits the embedding of a sample into what its label says (z) and what its client says
(u).

Guo, Wang, Tang and Lin, "Client2Vec: Improving Federated Learning by Distribution Shifts Aware
Client Indexing", 2024, section 3.2 and appendix D.2. With D and L the embeddings of a sample and of
its label's sentence (`models/clip.py`):

    I = [D, D], as 32 patches of 32                                     decomposition block:
    [Z, U] = TransformerEncoder(I + position)                   3 layers, 8 heads, feed-forward 2048
    Dhat = [Z, U] W                                                     W: 1024 x 512
    L_sim   = 1 - cos(z, L)                                             z predicts the label
    L_orth  = || Z U^T ||_1                                   u is independent of all z of the batch
    L_recon = || Dhat - D ||^2                                          nothing is lost
    L_div   = (1/B) sum_j log sum_{k != j} exp cos(u_j, u_k)            the u of a batch differ
    loss    = L_div + L_sim + L_orth + L_recon

| symbol | here | default | where |
|---|---|---|---|
| layers, heads, width, ffn | `layers`, `heads`, `width`, `ffn` | 3, 8, 32, 2048 | appendix D.2 |
| projection | `projection` | "linear", or "mlp" (two layers) | appendix D.3, Figure 8 |
| B | `batch_size` | 128 | section 3.2: the batch a client uploads |
| E | `epochs` | 500 | Table 6: 100 and 500; Table 1's numbers are those of 500 |

Differs from the paper, where it would not work or does not say:
- A learned code of the position is added to the patches. Patches p and p + 16 of [D, D] are equal,
  and attention does not know an order, so that without it Z = U exactly. `position=False` shows it.
- Layers normalise first. In torch's default order (`norm_first=False`) all u become one vector
  within a hundred steps, L_div stays at log(B - 1) + 1, and it does not recover.
- L_orth is the mean of |cos(z_j, u_k)| over all pairs, in [0, 1]; the printed sum grows as B^2 and
  drowns the other terms (`orth="sum"`). L_recon is the mean over samples of the distance squared,
  a sum over all 512 numbers of an embedding, not their mean.
- The optimiser is not named; Adam with 1e-3 here. No dropout (torch's layers have 0.1 unless told
  otherwise), which was not needed and nearly doubles the time of a step on a CPU.

A layer is torch's, with the same names and numbers, in an order that suits a CPU; `fedbook bench
index` measures its worth.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedbook.errors import FedbookError

LOSSES = ("div", "sim", "orth", "recon")


class FeedForward(torch.autograd.Function):
    """relu(x A^T + a) B^T + b over chunks of rows that fit a processor's cache; the hidden layer is
    never kept.

    The hidden layer is 64 times as wide as x: writing and reading it is what a plain step spends
    its time on. Backward computes it anew.
    """

    CHUNK: ClassVar[int] = 128

    @staticmethod
    def forward(ctx: Any, x: Tensor, A: Tensor, a: Tensor, B: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, A, a, B)
        out = torch.empty_like(x)
        for rows, into in zip(x.split(FeedForward.CHUNK), out.split(FeedForward.CHUNK)):
            torch.addmm(b, torch.addmm(a, rows, A.T).relu_(), B.T, out=into)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        x, A, a, B = ctx.saved_tensors
        dx, dA, da, dB = (torch.zeros_like(t) for t in (x, A, a, B))
        for rows, slope, into in zip(*(t.split(FeedForward.CHUNK) for t in (x, g, dx))):
            hidden = torch.addmm(a, rows, A.T).relu_()
            dB.addmm_(slope.T, hidden)
            dhidden = (slope @ B).mul_(hidden > 0)
            dA.addmm_(dhidden.T, rows)
            da += dhidden.sum(0)
            torch.mm(dhidden, A, out=into)
        return dx, dA, da, dB, g.sum(0)


class EncoderLayer(nn.TransformerEncoderLayer):
    """torch's layer (its parameters, its result); without dropout it takes a shorter way."""

    def __init__(
        self, width: int, heads: int, ffn: int, dropout: float = 0.0, norm_first: bool = True
    ) -> None:
        super().__init__(width, heads, ffn, dropout, batch_first=True, norm_first=norm_first)
        self.heads = heads
        self.p = dropout

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        a: Any = self.self_attn
        qkv = F.linear(x, a.in_proj_weight, a.in_proj_bias).reshape(
            batch, tokens, 3, self.heads, width // self.heads
        )
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3) / (width // self.heads) ** 0.5).softmax(3)
        return a.out_proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))

    def feed(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return self.linear2(F.relu(self.linear1(x), inplace=True))
        one = self.linear1
        two = self.linear2
        return FeedForward.apply(
            x.flatten(0, 1), one.weight, one.bias, two.weight, two.bias
        ).reshape(x.shape)

    def forward(self, src: Tensor, *masks: Any, **more: Any) -> Tensor:  # type: ignore[override]
        x = src
        if self.p > 0:
            return super().forward(x, *masks, **more)
        if self.norm_first:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed(x))


class DSAIGN(nn.Module):
    """`z, u, rebuilt = net(D)` for embeddings D [N, dim]."""

    def __init__(
        self,
        dim: int = 512,
        width: int = 32,
        layers: int = 3,
        heads: int = 8,
        ffn: int = 2048,
        projection: str = "linear",
        position: bool = True,
        norm_first: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if 2 * dim % width or width % heads:
            raise FedbookError(
                f"2 x {dim} numbers in patches of {width} with {heads} heads do not come out even",
                "the paper has dim=512, width=32, heads=8",
            )
        if projection not in ("linear", "mlp"):
            raise FedbookError(
                f"projection must be 'linear' or 'mlp', got {projection!r}",
                "the paper has a matrix",
            )
        self.dim = dim
        self.width = width
        self.position = nn.Parameter(torch.zeros(2 * dim // width, width), requires_grad=position)
        if position:
            nn.init.normal_(self.position, std=0.02)
        self.encoder: nn.Module = nn.Sequential(
            *(EncoderLayer(width, heads, ffn, dropout, norm_first) for _ in range(layers))
        )
        self.projection: nn.Module = nn.Linear(2 * dim, dim, bias=False)
        if projection == "mlp":
            self.projection = nn.Sequential(
                nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
            )

    def decompose(self, D: Tensor) -> tuple[Tensor, Tensor]:
        """z and u, both [N, dim]."""
        I = torch.cat([D, D], 1).reshape(len(D), 2 * self.dim // self.width, self.width)
        O = self.encoder(I + self.position).reshape(len(D), 2, self.dim)
        return O[:, 0], O[:, 1]

    def forward(self, D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, u = self.decompose(D)
        return z, u, self.projection(torch.cat([z, u], 1))


# -- the four losses -------------------------------------------------------------------------------
def similarity_loss(z: Tensor, L: Tensor) -> Tensor:
    """L_sim, in [0, 2]."""
    return (1 - F.cosine_similarity(z, L, dim=1)).mean()


def orthogonality_loss(z: Tensor, u: Tensor, reduction: str = "mean") -> Tensor:
    """L_orth over all pairs of the batch: the mean of absolute cosines, or the printed sum of
    absolute products.
    """
    if reduction == "sum":
        return (z @ u.T).abs().sum()
    return (F.normalize(z, dim=1) @ F.normalize(u, dim=1).T).abs().mean()


def reconstruction_loss(rebuilt: Tensor, D: Tensor) -> Tensor:
    """L_recon."""
    return (rebuilt - D).square().sum(1).mean()


def diversity_loss(u: Tensor) -> Tensor:
    """L_div, between log(B - 1) - 1 and log(B - 1) + 1; 0 for a batch of one, which has nobody to
    differ from.
    """
    if len(u) == 1:
        return (0 * u).sum()
    unit = F.normalize(u, dim=1)
    itself = torch.eye(len(u), dtype=torch.bool, device=u.device)
    return torch.logsumexp((unit @ unit.T).masked_fill(itself, float("-inf")), 1).mean()


def losses(
    net: Any, D: Tensor, L: Tensor, omit: tuple[str, ...] = (), orth: str = "mean"
) -> dict[str, Tensor]:
    """The terms by name, without those of `omit`; their sum is what is minimised."""
    if unknown := set(omit) - set(LOSSES):
        raise FedbookError(f"unknown losses {sorted(unknown)}", f"known: {', '.join(LOSSES)}")
    z, u, rebuilt = net(D)
    found = {
        "div": diversity_loss(u),
        "sim": similarity_loss(z, L),
        "orth": orthogonality_loss(z, u, orth),
        "recon": reconstruction_loss(rebuilt, D),
    }
    return {name: value for name, value in found.items() if name not in omit}


# -- training and use ------------------------------------------------------------------------------
def train(
    net: DSAIGN,
    D: Tensor,
    L: Tensor,
    epochs: int = 500,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    omit: tuple[str, ...] = (),
    orth: str = "mean",
) -> list[dict[str, float]]:
    """Adam on pairs (D, L) [N, dim] that lie on one device; returns the mean of each loss, epoch by
    epoch.
    """
    if not (len(D) == len(L) > 0 and bool(torch.isfinite(D).all())):
        raise FedbookError(
            f"{len(D)} embeddings with {len(L)} labels, or some are not finite",
            "give one label each",
        )
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=lr)
    rng = torch.Generator().manual_seed(seed)
    net.train()
    history = []
    for epoch in range(epochs):
        total: dict[str, Tensor] = {}
        for index in torch.randperm(len(D), generator=rng).to(D.device).split(batch_size):
            terms = losses(net, D[index], L[index], omit, orth)
            loss = torch.stack(list(terms.values())).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            for name, value in terms.items():
                total[name] = total.get(name, 0) + value.detach() * len(index)
        history.append({name: float(value / len(D)) for name, value in total.items()})
        if not all(abs(v) < float("inf") for v in history[-1].values()):
            raise FedbookError(
                f"DSA-IGN diverged in epoch {epoch + 1}: {history[-1]}", f"lower lr (now {lr})"
            )
    return history


@torch.no_grad()
def sample_index(net: DSAIGN, D: Tensor, batch_size: int = 1024) -> Tensor:
    """u of every row of D."""
    net.eval()
    return torch.cat([net.decompose(part)[1] for part in D.split(batch_size)])
