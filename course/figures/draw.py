"""The runs and figures behind the answers to open exercises in TEACH.md: python draw.py [trained].

Without an argument the toys (seconds); with `trained` also the small networks (minutes).
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from fedbook import Federation, Objective, data, federate, methods, metrics, models, partition
from fedbook import plots, simulate
from fedbook.course import toy
from fedbook.methods.grp_fed import AdaptivePower

HERE = Path(__file__).parent
N, H, BEST = np.array([2, 2, 1, 3]), np.array([1.0, 4.0, 1.0, 1.0]), np.array([2.0, 3.0, 1.0, 0.0])


def save(fig, name):
    fig.savefig(HERE / f"{name}.png", dpi=120, bbox_inches="tight")
    plt.close(fig)


def drift():
    """01.3: a tenth of the rate, ten times the steps."""
    p = N / N.sum()

    def end(eta, E):
        m = 1 - (1 - eta * H) ** E
        return (p * m * BEST).sum() / (p * m).sum()

    fig, ax = plt.subplots(figsize=(5, 3))
    for eta, colour, style in ((0.1, plots.BLUE, "-"), (0.01, plots.RED, "--")):
        E = np.arange(1, round(4 / eta) + 1)
        ax.plot(E * eta, [end(eta, e) for e in E], style, color=colour, label=f"$\\eta$ = {eta}")
    ax.axhline(2.0714, color="grey", linewidth=0.8)
    ax.set(xlabel="$\\eta E$", ylabel="end point of FedAvg", xlim=(0, 4))
    ax.legend(frameon=False)
    save(fig, "01_3")
    for E in (1, 10):
        print(f"01.3 E = {E}: eta 0.1 {end(0.1, E):.4f}, a tenth and ten times {end(0.01, 10 * E):.4f}")


def noise():
    """01.4: batches of one sample, ten seeds."""

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.zeros_(self.head.weight)

        def embed(self, x):
            return x

        def forward(self, x):
            return self.head(x)

    @dataclass(frozen=True)
    class SquaredError(Objective):
        def __call__(self, local, batch, sent, memory):
            return 0.5 * ((batch.logits[:, 0] - batch.y) ** 2).mean()

    samples = (([1, 1], [1, 3]), ([2, 2], [6, 6]), ([1], [1]), ([1, 1, 1], [0, 0, 0]))
    federation = Federation.from_arrays(
        [{"train": (np.c_[np.array(a, "float32")], np.array(b))} for a, b in samples]
    )
    for size in (99, 1):
        method = methods.get("fedavg", lr=0.1, batch_size=size, epochs=1)
        method = method.replace(objective=(SquaredError(),))
        ends = []
        for seed in range(10):
            run = simulate(method, federation, Line(), 40, seed, evaluate_every=40, quiet=True)
            ends.append(run.run().model.head.weight.item())
        print(f"01.4 batches of {size}: mean {np.mean(ends):.4f}, spread {np.std(ends, ddof=1):.4f}")


def dirichlet():
    """02.4: the alpha at which a client holds two classes."""
    y = data.load("digits5_offline", size=16).y.numpy()
    alphas = np.array([0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0])
    held = []
    for alpha in alphas:
        counts = []
        for seed in range(5):
            for part in partition.dirichlet(y, 20, alpha, seed=seed, min_size=1):
                share = np.bincount(y[part], minlength=10) / len(part)
                counts.append((share > 0.05).sum())
        held.append(np.mean(counts))
    print("02.4", dict(zip(alphas.tolist(), np.round(held, 2).tolist())))
    fig, ax = plt.subplots(figsize=(5, 3))
    ax.semilogx(alphas, held, "o-", color=plots.BLUE)
    ax.axhline(2, color="grey", linewidth=0.8)
    ax.set(xlabel="$\\alpha$", ylabel="classes above 5 %, mean over clients")
    save(fig, "02_4")


def agnostic():
    """04.5: AFL with eta_lambda = 0.3 does not settle; its mean does."""
    c, n = np.array([-0.5, 0.5, -1.0, 2.0]), [4, 3, 2, 1]
    method = methods.get("afl", eta_lam=0.3, lr=0.2)
    path, _, _ = toy.play(method, n, np.ones(4), c, rounds=620)
    path = np.array(path)
    mean = path.cumsum() / np.arange(1, len(path) + 1)
    late = path[-100:]
    print(f"04.5 last 100 rounds: from {late.min():.3f} to {late.max():.3f}; mean {mean[-1]:.3f}")
    fig, ax = plt.subplots(figsize=(5, 3))
    ax.plot(path[:200], color=plots.BLUE, label="model of the round")
    ax.plot(mean[:200], "--", color=plots.RED, label="mean of all so far")
    ax.set(xlabel="round", ylabel="w")
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    save(fig, "04_5")


def floor():
    """10.4: from q = 0.1 the power falls below zero, and a bound changes that."""

    class KeepPositive(AdaptivePower):
        def __call__(self, state, reports):
            scores, after = super().__call__(state, reports)
            if after["q"] >= 0:
                return scores, after
            after["q"] = 0.0
            return 0 * scores, after

    n, c = [1, 1, 1, 1], np.array([0.0, 0.2, 0.4, 3.0])
    method = methods.get("grp_fed", q=0.1, lr=0.2)
    for name, stage in (("as it is", AdaptivePower(0.1, 0.5)), ("kept", KeepPositive(0.1, 0.5))):
        path, weights, states = toy.play(method.replace(weigh=(stage,)), n, np.ones(4), c, rounds=60)
        largest = ((path[-1] - c) ** 2 / 2).max()
        print(f"10.4 {name}: q {states[0]['q']:.3f}, w {path[-1]:.3f}, largest loss {largest:.3f}, "
              f"weights {weights.round(3)}")


def trained():
    """00.3, 00.4, 02.3: FedAvg on the offline digits."""
    dataset = data.load("digits5_offline", size=16)

    def run(model="mlp", rounds=8, **options):
        federation = federate(dataset, "by_domain", sizes="rule", scale=0.1, **options)
        method = methods.get("fedavg", lr=0.05, epochs=2)
        made = models.build(model, federation)
        done = simulate(method, federation, made, rounds, 0, evaluate_every=rounds, quiet=True).run()
        kinds = [c.type for c in federation.clients]
        found = metrics.summarise(done.records[-1], kinds)
        by_type = metrics.type_means(done.records[-1].test_acc, kinds)
        return found, dict(zip(federation.type_names, by_type.round(3).tolist()))

    for name, options in (
        ("00.3 dif 1", {"dif": 1}),
        ("00.3 dif 10", {"dif": 10}),
        ("02.3 order turned round", {"dif": 10, "order": [4, 3, 2, 1, 0]}),
        ("00.4 mlp, dif 10, 16 rounds", {"dif": 10, "rounds": 16}),
        ("00.4 cnn, dif 10, 16 rounds", {"dif": 10, "model": "cnn", "rounds": 16}),
    ):
        found, by_type = run(**options)
        keys = ("avg_client", "avg_type", "sigma_type", "worst_client")
        print(name, {k: round(found[k], 3) for k in keys}, by_type)


if __name__ == "__main__":
    for part in (drift, noise, dirichlet, agnostic, floor):
        part()
    if "trained" in sys.argv:
        trained()
