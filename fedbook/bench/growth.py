"""How cost grows: with the number of clients, of participants, and of rounds; a picture of each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fedbook.bench.engines import NETS, Trainer, federation
from fedbook.clock import give_back, in_fresh_process, interleave, resident

CLIENTS = (10, 100, 1_000, 10_000, 100_000)
PARTICIPANTS = (1, 2, 5, 10, 20, 50, 100)
ROUNDS = (1, 10, 20, 50, 100)
EACH = 8  # samples of a client


def clients(count: int) -> dict[str, float]:
    """In a fresh process: seconds and MB that this many clients of 8 samples take, and seconds of
    a round with 10 of them.
    """
    return in_fresh_process(_clients, count)


def _clients(count: int) -> dict[str, float]:
    import numpy as np
    import torch

    from fedbook import methods, models
    from fedbook.data import Dataset
    from fedbook.federation import federate
    from fedbook.rounds import Device, simulate

    def dataset(rows: int) -> Dataset:
        rng = np.random.default_rng(0)
        y = torch.from_numpy(rng.integers(0, 10, rows))
        split = torch.zeros(rows, dtype=torch.uint8)
        split[-10:] = 1
        names = tuple("0123456789")
        zero = torch.zeros_like(y)
        x = torch.zeros(rows, 1)
        return Dataset(x, y, split, zero, names, ("all",), "random")

    def made(data: Dataset, count: int) -> Any:
        return federate(data, "iid", clients=count, test="domain")

    torch.set_num_threads(1)
    made(dataset(110), 10)  # what is imported on first use is there before
    data = dataset(count * EACH + 10)
    before = resident()
    began = time.perf_counter()
    fed = made(data, count)
    seconds = time.perf_counter() - began
    give_back()
    added = resident() - before
    method = methods.get("fedavg", participation=10, batch_size=EACH)
    model = models.build("linear", fed, seed=0)
    began = time.perf_counter()
    run = simulate(
        method, fed, model, 10**6, device=Device("cpu"), evaluate_every=10**6, quiet=True
    )
    start = time.perf_counter() - began
    spent = interleave({"round": lambda: run.step(1)}, 5)["round"].median()
    return {"clients": count, "seconds": seconds, "mb": added, "start": start, "round": spent}


def participants(counts: tuple[int, ...] = PARTICIPANTS, budget: float = 8.0) -> list[dict]:
    """Seconds of training in a round, both engines in turns."""
    found = []
    for count in counts:
        fed = federation(NETS[0], count)
        sides = {e: Trainer(NETS[0], fed, 16, e) for e in ("loop", "lockstep")}
        spent = interleave({e: t.train for e, t in sides.items()}, 15, budget=budget)
        found.append({"participants": count} | {e: t.median() for e, t in spent.items()})
    return found


def rounds(counts: tuple[int, ...] = ROUNDS) -> list[dict]:
    """Seconds and MB from the start of a run to the end of its n-th round."""
    from fedbook import methods, models
    from fedbook.rounds import Device, simulate

    fed = federation(NETS[0], 100)
    model = models.build(NETS[0].model, fed, seed=0, **NETS[0].options)
    method = methods.get("fedavg", participation=10, lr=0.01, batch_size=16)
    began = time.perf_counter()
    run = simulate(method, fed, model, counts[-1], device=Device("cpu"), quiet=True)
    found = []
    for record in run:
        if record.round in counts:
            seconds = time.perf_counter() - began
            found.append({"rounds": record.round, "seconds": seconds, "mb": resident()})
    return found


def bench_growth(
    counts: tuple[int, ...] = CLIENTS,
    some: tuple[int, ...] = PARTICIPANTS,
    most: tuple[int, ...] = ROUNDS,
    budget: float = 8.0,
) -> dict[str, Any]:
    from tqdm.auto import tqdm

    return {
        "clients": [clients(n) for n in tqdm(counts, desc="clients")],
        "participants": participants(some, budget),
        "rounds": rounds(most),
    }


def text(out: dict[str, Any]) -> str:
    lines = [f"clients of {EACH} samples: seconds and MB to make them, seconds of a round with 10"]
    for c in out["clients"]:
        lines.append(
            f"{c['clients']:>10,}{c['seconds']:9.2f} s{c['mb']:9.1f} MB{c['round']:9.4f} s"
        )
    lines.append("participants: seconds of a round, loop and lock-step (CNN 66k, batch 16)")
    for p in out["participants"]:
        lines.append(f"{p['participants']:>10}{p['loop']:9.3f} s{p['lockstep']:9.3f} s")
    lines.append("rounds of 10 out of 100 clients: seconds since the start, MB in memory")
    for r in out["rounds"]:
        lines.append(f"{r['rounds']:>10}{r['seconds']:9.2f} s{r['mb']:9.0f} MB")
    return "\n".join(lines)


def draw(out: dict[str, Any], folder: str | Path) -> list[Path]:
    """Three pictures, each with its description in a text file."""
    from matplotlib.figure import Figure

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    many = out["clients"]
    some = out["participants"]
    long = out["rounds"]
    last = many[-1]
    plans: list[tuple[str, str, str, list[tuple[str, list, list]], str]] = [
        (
            "bench_clients",
            "clients",
            "seconds",
            [
                ("making them", [c["clients"] for c in many], [c["seconds"] for c in many]),
                ("a round with 10", [c["clients"] for c in many], [c["round"] for c in many]),
            ],
            f"{last['clients']:,} clients take {last['seconds']:.2f} s and {last['mb']:.0f} MB.",
        ),
        (
            "bench_participants",
            "participants of a round",
            "seconds of training",
            [
                (label, [p["participants"] for p in some], [p[e] for p in some])
                for label, e in (("loop", "loop"), ("lock-step", "lockstep"))
            ],
            f"With {some[-1]['participants']} participants the loop takes "
            f"{some[-1]['loop'] / some[-1]['lockstep']:.2f} times as long as lock-step.",
        ),
        (
            "bench_rounds",
            "rounds",
            "seconds since the start",
            [("10 of 100 clients", [r["rounds"] for r in long], [r["seconds"] for r in long])],
            f"Memory after {long[0]['rounds']} rounds {long[0]['mb']:.0f} MB, after "
            f"{long[-1]['rounds']} rounds {long[-1]['mb']:.0f} MB.",
        ),
    ]
    made = []
    colours = ("#0072B2", "#D55E00")
    for name, x, y, lines, says in plans:
        figure = Figure(figsize=(5.5, 3.4), layout="constrained")
        ax = figure.subplots()
        for (label, a, b), colour, marker in zip(lines, colours, "os"):
            ax.plot(a, b, marker=marker, color=colour, label=label)
        ax.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        ax.grid(alpha=0.3)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        for end in ("png", "pdf"):
            figure.savefig(folder / f"{name}.{end}", dpi=150)
        alt = f"{y.capitalize()} against {x}, both on logarithmic scales. {says}\n"
        (folder / f"{name}.txt").write_text(alt)
        made.append(folder / f"{name}.png")
    return made
