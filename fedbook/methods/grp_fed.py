"""GRP-FED: a global model that favours clients with high loss, and personal extractors held near
its features.

Chou, Hong, Sun, Cai, Song and Li, "GRP-FED: Addressing Client Imbalance in Federated Learning via
Global-Regularized Personalization", 2021 (arXiv:2108.13858).

    L_m = mean over D_m of J(C(F(x; theta_F)), y)                                                (1)
    q^{t+1} = q^t + eta_q (s^{t+1} - s^t) / ((s^{t+1} + s^t) / 2), s = std over clients of L_m  (2)
    lambda_m = L_m^q / sum_i L_i^q,  {theta_F, theta_C} = sum_m lambda_m {theta_F,m, theta_C,m}  (3)
    theta_F,m^l <- SGD on beta J(C(f^l), y) + (1 - beta) L_R,  f^l = F(x; theta_F,m^l), C fixed  (4)
    L_R = log(1 - D(f^l))                                                                        (5)
    L_D = log(1 - D(f^g)) + log D(f^l),    f^g = F(x; theta_F) as received              (unnumbered)

D = 1 means "from the global extractor". Both losses point the right way, but L_D as printed has its
steepest slope where D is right and none where D errs, and neither is bounded below. So the default
is binary cross-entropy,

    gan_loss="bce":       L_D = -log D(f^g) - log(1 - D(f^l)),    L_R = -log D(f^l)             (5')
    gan_loss="printed":   as above

| symbol | here | default | where |
|---|---|---|---|
| q^0 | `q` | 10 | section 4.1, "the same as q-FFL" |
| eta_q | `eta_q` | 0.5 | section 4.1 |
| beta | `beta` | 0.5 | section 4.3; Figure 4 sweeps it |
| R, batch, eta, momentum | `epochs`, `batch_size`, ... | 5, 64, 5e-3, 0.9 | section 4.1 |
| |S_t|, T | `participation`, rounds | everybody | not printed |
| D | `hidden` units between two layers | 64 | section 4.1: 2-layer FC; the width is not printed |
| L_m | `loss` | "received" | see below |
| theta_F,m^l at the start of a turn | `start` | "own" | Algorithm 1 keeps it; see below |

L_m: (1) is the mean over all of D_m at the model received (`loss="received"`); Algorithm 1 keeps
the loss of the last mini-batch, which a power of 10 turns into noise; `loss="training"` is the
mean over the last local epoch.

Every round logs `q`, `spread` and `effective_clients` = 1 / sum lambda^2: at q =
10 a client with twice the loss of another counts 1024 times as much, and a few make up the mean.
`q` moves little: a spread 100 times smaller takes it from 10 to 7.7. There is no n_m in (3), so q =
0 is the uniform mean.

Differs from the paper: sums run over the participants, not over all M. In the first round s has no
predecessor and q stays. (4) uses the received C (Algorithm 1, line 28; the text has theta_C,m), at
test time the newest global C. Nothing in (4) and (5) depends on the global step of the same round,
so the personal extractor is trained after it, with shuffles of its own, and f^g of all samples is
computed once. theta_F,m^l starts as the first global extractor the client receives (Algorithm 1
starts all at once; the same if everybody takes part) and goes on from where it was left
(`start="own"`), so what other clients taught the global extractor reaches it through C and D alone,
and a class that the client never had stays unknown to it. With `start="received"` every turn begins
at the extractor just received; the printed generalisation T_r looks more like that. f^g is taken in
eval mode; running statistics (BatchNorm) of the personal extractor are personal. Theta^l and D
never leave the client. No code was published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbook.errors import Diverged, FedbookError
from fedbook.federation import Federation
from fedbook.methods.fedavg import fedavg
from fedbook.methods.q_ffl import FLOOR
from fedbook.metrics import effective_clients
from fedbook.models.convnets import two_layers
from fedbook.rounds import Batch, Local, LocalSolver, Method, Personal, Report, Weigh
from fedbook.rounds.params import body, clone, copy_into
from fedbook.rounds.stages import State


def adapted(q: float, before: float, now: float, eta_q: float) -> float:
    """q^{t+1} of (2); it moves by at most 2 eta_q."""
    middle = (now + before) / 2
    return q + eta_q * (now - before) / middle if middle > 0 else q


@dataclass(frozen=True)
class AdaptivePower(Weigh):
    """lambda_m ~ L_m^q with a power that follows the spread of the losses."""

    q: float = 10.0
    eta_q: float = 0.5
    loss: str | None = field(default="received", kw_only=True)

    def init(self, federation: Federation, model: nn.Module) -> State:
        return {"q": float(self.q), "spread": None}

    def __call__(self, state: State, reports: list[Report]) -> tuple[Tensor, State]:
        L = self.losses(reports) + FLOOR
        spread = float(L.std(correction=0))
        q = state["q"]
        if state["spread"] is not None:
            q = adapted(q, state["spread"], spread, self.eta_q)  # (2)
        scores = q * L.log()  # (3), in the log domain
        effective = effective_clients(torch.softmax(scores, 0).tolist())
        log = {"q": q, "spread": spread, "effective_clients": effective}
        return scores, {"q": q, "spread": spread, "log": log}


def generator_loss(logit: Tensor, gan_loss: str) -> Tensor:
    """L_R of the discriminator's logit on personal features: small where D takes them for global
    ones.
    """
    if gan_loss == "printed":
        return F.logsigmoid(-logit).mean()  # (5)
    return -F.logsigmoid(logit).mean()  # (5')


def discriminator_loss(on_global: Tensor, on_local: Tensor, gan_loss: str) -> Tensor:
    """L_D of the logits: small where D tells global features from personal ones."""
    if gan_loss == "printed":
        return (F.logsigmoid(-on_global) + F.logsigmoid(on_local)).mean()
    return -(F.logsigmoid(on_global) + F.logsigmoid(-on_local)).mean()


@dataclass(frozen=True, kw_only=True)
class AdversarialLocal(Personal):
    """A personal extractor for every client under the shared classifier; works on top of any
    method.
    """

    aside = True
    beta: float = 0.5
    gan_loss: str = "bce"
    hidden: int = 64
    solve: LocalSolver = LocalSolver()
    start: str = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gan_loss not in ("bce", "printed"):
            raise FedbookError(
                f"gan_loss must be 'bce' or 'printed', got {self.gan_loss!r}", "'bce' trains"
            )
        if self.start not in ("own", "received"):
            raise FedbookError(
                f"start must be 'own' or 'received', got {self.start!r}", "'own' is Algorithm 1"
            )
        if not 0 <= self.beta <= 1:
            raise FedbookError(
                f"beta must lie in [0, 1], got {self.beta}", "1 is local training without D"
            )

    def end(self, local: Local, sent: State, memory: State) -> State:
        """Train the personal extractor and D in the resident model, then put back what is to be
        uploaded.
        """
        here = local.model.state_dict()
        upload = clone({n: here[n] for n in local.received})
        copy_into(here, local.received)
        plan = self.plan(local)
        f_global = self.features(local, torch.cat(plan))
        if self.start == "own":
            copy_into(here, memory.get("extractor", {}))
        D = two_layers(f_global.shape[1], self.hidden, 1).to(f_global.device)
        copy_into(D.state_dict(), memory.get("discriminator", {}))
        self.train(local, D, plan, f_global)
        memory["extractor"] = clone(body({n: here[n] for n in local.received}))
        memory["discriminator"] = clone(D.state_dict())
        copy_into(here, upload)
        return {}  # nothing of this is sent

    def plan(self, local: Local) -> list[Tensor]:
        """The mini-batches of all epochs, as places among the client's training samples."""
        found: list[Tensor] = []
        for _ in range(self.solve.epochs):
            order = torch.randperm(len(local.client.train), generator=local.generator)
            found += order.split(self.solve.batch_size)[: self.solve.batches]
        return found

    @torch.no_grad()
    def features(self, local: Local, places: Tensor) -> Tensor:
        """f^g of the client's training samples; 0 for those at no such place."""
        local.model.eval()
        train = local.client.train
        used = places.unique().to(train.device)
        batches = (Batch(local, train[part]) for part in used.split(512))
        z = torch.cat([b.z.float() for b in batches])
        return z.new_zeros(len(train), z.shape[1]).index_copy(0, used, z)

    def train(self, local: Local, D: nn.Module, plan: list[Tensor], f_global: Tensor) -> None:
        """(4), (5) and L_D in turn; the classifier is fixed."""
        model: Any = local.model
        fixed = [p for p in model.head.parameters() if p.requires_grad]
        for p in fixed:
            p.requires_grad_(False)
        model.train()
        optimizer = self.solve.build(model)
        optimizer_D = self.solve.build(D)
        for part in plan:
            part = part.to(f_global.device)
            batch = Batch(local, local.client.train[part])
            with local.device.autocast():
                J = F.cross_entropy(batch.logits, batch.y)
                L_R = generator_loss(D(batch.z), self.gan_loss)  # (5)
                loss = self.beta * J + (1 - self.beta) * L_R
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.solve.clip_gradient(model)
            optimizer.step()  # (4)
            with torch.no_grad():
                f_local = model.embed(batch.x, **batch.precomputed)
            loss_D = discriminator_loss(D(f_global[part]), D(f_local.float()), self.gan_loss)
            optimizer_D.zero_grad(set_to_none=True)  # also of what (5) left in D
            loss_D.backward()
            optimizer_D.step()
        for p in fixed:
            p.requires_grad_(True)
        if not bool(torch.isfinite(loss.detach() + loss_D.detach())):
            raise Diverged(
                f"the personal extractor of client {local.client.id} diverged in round "
                f"{local.round}",
                "lower lr, set clip, or use gan_loss='bce'",
            )

    def load(self, local: Local, sent: State, memory: State) -> None:
        # under the newest global C
        copy_into(local.model.state_dict(), memory.get("extractor", {}))


def grp_fed(
    q: float = 10.0,
    eta_q: float = 0.5,
    beta: float = 0.5,
    gan_loss: str = "bce",
    loss: str = "received",
    start: str = "own",
    hidden: int = 64,
    epochs: int = 5,
    batch_size: int = 64,
    lr: float = 5e-3,
    momentum: float = 0.9,
    **options: Any,
) -> Method:
    """GRP-FED with the paper's settings; `options` are FedAvg's."""
    base = fedavg(epochs=epochs, batch_size=batch_size, lr=lr, momentum=momentum, **options)
    personal = AdversarialLocal(
        beta=beta, gan_loss=gan_loss, hidden=hidden, solve=base.solve, start=start
    )
    weigh = AdaptivePower(q, eta_q, loss=loss)
    return base.replace(name="grp_fed", weigh=(weigh,), personal=personal)
