"""Lock-step against the loop, network by network, and how close both come to the machine's limit.

Every cell trains the same participants with both engines, which take turns in one process, and
gives the median of the ratios. Only training is timed: no evaluation, no aggregation. The loop
comes as `simulate` makes it and, for images, once more with channels_last, so that what is due to
the order of numbers in memory can be told from what is due to the engine.

The limit is the rate of one large matrix product with as many threads. A step's own rate counts
multiplications and additions of its convolutions and matrix products, all else is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm

from fedbook import methods, models
from fedbook.clock import Times, interleave, use_threads
from fedbook.federation import Client, Federation
from fedbook.rounds import Device, Report, simulate
from fedbook.rounds.record import Traffic

PER_CLIENT = 32  # samples, or one batch where that is more


@dataclass(frozen=True, kw_only=True)
class Net:
    """A network with the data it is for, and the method that trains it."""

    label: str
    model: str
    method: str = "fedavg"
    shape: tuple[int, ...] = (3, 32, 32)
    kind: str = "image"
    classes: int = 10
    options: dict[str, Any] = field(default_factory=dict)


NETS = (
    Net(label="CNN 66k", model="cnn", options={"width": 8, "hidden": 60}),
    Net(label="CNN 600k", model="cnn"),
    Net(label="ResNet-8 GroupNorm", model="resnet_gn"),
    Net(
        label="ECG ResNet",
        model="ecg_resnet",
        shape=(1, 256),
        kind="signal",
        classes=5,
        options={"norm": "group"},
    ),
    Net(label="LSTM", model="lstm", shape=(20,), kind="text", classes=60, options={"hidden": 64}),
    Net(label="ViT, 4 prompts", model="vpt", method="pt_fedavg", options={"prompts": 4}),
    Net(label="FedGC", model="fedgc", method="fedgcr", options={"prompts": 4}),
    Net(label="FGPT", model="fgpt", method="fgpt", options={"prompts": 4}),
)


def federation(net: Net, clients: int, per_client: int = PER_CLIENT) -> Federation:
    """Random samples of the kind the network is for."""
    g = torch.Generator().manual_seed(0)
    n = clients * per_client
    if net.kind == "image":
        x = torch.randint(0, 256, (n, *net.shape), dtype=torch.uint8, generator=g)
    elif net.kind == "signal":
        x = torch.randn(n, *net.shape, generator=g)
    else:
        x = torch.randint(0, net.classes, (n, *net.shape), generator=g)
    y = torch.randint(0, net.classes, (n,), generator=g)
    test = torch.arange(1)
    members = []
    for i in range(clients):
        members.append(Client(i, 0, torch.arange(i * per_client, (i + 1) * per_client), test))
    names = tuple(map(str, range(net.classes)))
    moments = ((0.5,) * 3, (0.25,) * 3) if net.kind == "image" else (None, None)
    return Federation(x, y, tuple(members), names, ("all",), *moments)


class Trainer:
    """One engine on one federation: `train()` is what all participants do in a round."""

    def __init__(self, net: Net, fed: Federation, batch: int, engine: str, **device: Any) -> None:
        method = methods.get(net.method, lr=0.01, batch_size=batch, epochs=1)
        model = models.build(net.model, fed, seed=0, **net.options)
        settings: dict[str, Any] = {"quiet": True, "engine": engine}
        settings["device"] = Device("cpu", **device)
        self.run = simulate(method, fed, model, 10**6, **settings)
        self.round = 0
        self.run._measure(self.reports(), 1, Traffic())

    def reports(self) -> list[Report]:
        return [Report(id=c.id, size=len(c.train)) for c in self.run.federation.clients]

    def train(self) -> None:
        self.round += 1
        with torch.random.fork_rng(devices=[]):
            for _ in self.run._engine(self.reports(), self.round, Traffic()):
                pass


def operations(trainer: Trainer) -> int:
    """Multiplications and additions of one round's convolutions and matrix products."""
    with FlopCounterMode(display=False) as counter:
        trainer.train()
    return counter.get_total_flops()


def in_products(trainer: Trainer) -> float:
    """The share of a round's processor time that convolutions and matrix products take."""
    with use_threads(1), profile(activities=[ProfilerActivity.CPU]) as found:
        trainer.train()
    products = total = 0.0
    for event in found.key_averages():
        total += event.self_cpu_time_total
        if any(word in event.key for word in ("conv", "mm", "attention")):
            products += event.self_cpu_time_total
    return products / total


def product_rate(size: int = 1536, repeats: int = 9) -> float:
    """Operations per second of a product of two square matrices."""
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / min(interleave({"product": lambda: a @ b}, repeats)["product"].wall)


def cell(
    net: Net, batch: int, participants: int, *, work: float, repeats: int, budget: float
) -> dict[str, Any]:
    """One network, batch size and number of participants, each with so much work."""
    fed = federation(net, participants, max(batch, PER_CLIENT))
    sides = {"loop": Trainer(net, fed, batch, "loop")}
    if net.kind == "image" and net.method == "fedavg" and participants <= 10:
        sides["channels_last"] = Trainer(net, fed, batch, "loop", channels_last=True)
    sides["lockstep"] = Trainer(net, fed, batch, "lockstep")
    steps: dict[str, Callable[[], object]] = {name: t.train for name, t in sides.items()}
    spent = interleave(steps, repeats, budget=budget)
    loop = spent["loop"]
    lockstep = spent["lockstep"]
    assert sides["lockstep"].run.engine == "lockstep", net.label
    return {
        "net": net.label,
        "parameters": sum(p.numel() for p in sides["loop"].run.params.values()),
        "batch": batch,
        "participants": participants,
        "repeats": len(loop.wall),
        "seconds": {name: times.median() for name, times in spent.items()},
        "speedup": loop.over(lockstep),
        "speedup_cpu": loop.over(lockstep, "cpu"),
        "channels_last": _speedup(spent),
        "rate": {name: work * participants / t.median() for name, t in spent.items()},
    }


def _speedup(spent: dict[str, Times]) -> float | None:
    other = spent.get("channels_last")
    return None if other is None else spent["loop"].over(other)


def bench_engines(
    *,
    repeats: int = 15,
    budget: float = 4.0,
    threads: int | None = None,
    batches: tuple[int, ...] = (16, 64),
    participants: tuple[int, ...] = (10, 50),
    nets: tuple[Net, ...] = NETS,
) -> dict[str, Any]:
    """All cells, `budget` seconds each."""
    with use_threads(threads or torch.get_num_threads()):
        grid = [(net, b) for net in nets for b in batches]
        cells = []
        rates = [product_rate()]
        for net, b in tqdm(grid, desc="engines"):
            fed = federation(net, 10, max(b, PER_CLIENT))
            work = operations(Trainer(net, fed, b, "loop")) / 10
            for p in participants:
                cells.append(cell(net, b, p, work=work, repeats=repeats, budget=budget))
        rates.append(product_rate())
        return {"threads": torch.get_num_threads(), "product_rate": max(rates), "cells": cells}


def text(out: dict[str, Any]) -> str:
    head = f"{'network':20}{'parameters':>11}{'batch':>7}{'clients':>9}{'loop s':>9}"
    head += f"{'lock-step s':>13}{'speed-up':>10}{'of CPU':>8}{'channels_last':>15}"
    lines = [f"{out['threads']} threads; seconds of training in one round, medians", head]
    for c in out["cells"]:
        other = "" if c["channels_last"] is None else f"{c['channels_last']:.2f}"
        s = c["seconds"]
        line = f"{c['net']:20}{c['parameters']:11,}{c['batch']:7}{c['participants']:9}"
        line += f"{s['loop']:9.3f}{s['lockstep']:13.3f}{c['speedup']:10.2f}"
        lines.append(line + f"{c['speedup_cpu']:8.2f}{other:>15}")
    return "\n".join(lines)


def markdown(out: dict[str, Any]) -> str:
    """One row per network: how many times as fast as the loop lock-step is."""
    columns = list(dict.fromkeys((c["batch"], c["participants"]) for c in out["cells"]))
    rate = out["product_rate"]
    named = [f"batch {b}, {p} clients" for b, p in columns]
    lines = ["| network | weights | " + " | ".join(named) + " | of the limit, loop | lock-step |"]
    lines.append("|---|" + "---:|" * (len(columns) + 3))
    for label in dict.fromkeys(c["net"] for c in out["cells"]):
        own = [c for c in out["cells"] if c["net"] == label]
        cells = [f"{c['speedup']:.2f}" for c in own]
        shares = [f"{own[0]['rate'][e] / rate:.0%}" for e in ("loop", "lockstep")]
        lines.append(
            "| " + " | ".join([label, f"{own[0]['parameters']:,}", *cells, *shares]) + " |"
        )
    note = f"{out['threads']} threads, matrix product {rate / 1e9:.0f} GFLOP/s; shares of the"
    return "\n".join([*lines, "", f"{note} first column's batch and clients."])


def bench_limit(threads: int | None = None, **options: Any) -> dict[str, Any]:
    """The same for ten participants as shares of the machine's matrix-product rate, and what part
    of the time products take at all: where that is most of it, no engine can gain much.
    """
    usual: dict[str, Any] = {"budget": 6.0, "participants": (10,), "nets": NETS}
    chosen = usual | options
    out = bench_engines(threads=threads, **chosen)
    nets = {net.label: net for net in chosen["nets"]}
    for c in out["cells"]:
        fed = federation(nets[c["net"]], c["participants"], max(c["batch"], PER_CLIENT))
        c["in_products"] = {}
        for engine in ("loop", "lockstep"):
            trainer = Trainer(nets[c["net"]], fed, c["batch"], engine)
            trainer.train()
            c["in_products"][engine] = in_products(trainer)
    return out


def limit_text(out: dict[str, Any]) -> str:
    rate = out["product_rate"]
    lines = [f"matrix product {rate / 1e9:.0f} GFLOP/s with {out['threads']} threads"]
    lines.append(f"{'':27}{'share of that rate':^34}{'time in products':^22}")
    lines.append(
        f"{'network':20}{'batch':>7}{'loop':>8}{'channels_last':>15}{'lock-step':>11}"
        f"{'loop':>11}{'lock-step':>11}"
    )
    for c in out["cells"]:
        share = {name: f"{value / rate:.0%}" for name, value in c["rate"].items()}
        line = f"{c['net']:20}{c['batch']:7}{share['loop']:>8}"
        line += f"{share.get('channels_last', ''):>15}{share['lockstep']:>11}"
        lines.append(line + "".join(f"{v:>11.0%}" for v in c["in_products"].values()))
    return "\n".join(lines)
