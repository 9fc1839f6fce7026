"""What fedbook's loop costs: against a bare PyTorch loop with the same arithmetic, and in memory as
clients are added.

Time: 100 clients, 10 of them a round, one epoch of SGD in batches of 32 on 32x32x3 images, a CNN of
about 600,000 parameters, channels_last for both. The two loops alternate round by round in one
process, each starting first in turn; the median seconds are compared, and both must end with the
same weights. The bare loop is what one would write by hand: tensors on the device, one resident
model, index slices, a running weighted sum, no records. fedbook's time excludes evaluation (the
bare loop has none), not its checks.

Memory: peak resident memory of a fresh process that trains 3 rounds with 10 of 10, and with 10 of
1,000 clients. The images are the same in both (every client takes 50 of a shared pool), so that
what is compared is the cost of having clients. Given are the ratio of the peaks, and the stricter
one of what each run adds to its process.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from fedbook.clock import in_fresh_process, resident

BATCH = 32
PER_CLIENT = 128
LR = 0.05


def federation(clients: int, per_client: int = PER_CLIENT, pool: int | None = None) -> Any:
    """Random images; with `pool`, clients take their samples from a pool of that size, so that data
    do not grow.
    """
    import torch

    from fedbook.federation import Client, Federation

    g = torch.Generator().manual_seed(0)
    n = pool or clients * per_client
    x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (n,), generator=g)
    index = [torch.arange(i * per_client, (i + 1) * per_client) % n for i in range(clients)]
    test = torch.arange(32)
    members = tuple(Client(i, 0, part, test) for i, part in enumerate(index))
    return Federation(
        x,
        y,
        clients=members,
        class_names=tuple("0123456789"),
        type_names=("all",),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )


def network(fed: Any) -> Any:
    from fedbook import models

    return models.build("cnn", fed, seed=0)


def simulation(fed: Any, rounds: int) -> Any:
    """fedbook's loop, evaluating nothing."""
    from fedbook import methods
    from fedbook.rounds import Device, simulate

    method = methods.get("fedavg", participation=10, lr=LR, batch_size=BATCH, epochs=1)
    device = Device("cpu", channels_last=True)
    return simulate(
        method,
        fed,
        network(fed),
        rounds=10**6,
        seed=0,
        device=device,
        evaluate_every=10**6,
        quiet=True,
        engine="loop",
    )


class Bare:
    """The same arithmetic written by hand."""

    def __init__(self, fed: Any) -> None:
        import torch

        self.model = network(fed).to(memory_format=torch.channels_last)
        self.params = [p.detach() for p in self.model.parameters()]
        self.server = [p.clone() for p in self.params]
        self.x = fed.x
        self.y = fed.y
        self.parts = [c.train for c in fed.clients]

    def round(self, chosen: list[int], orders: list[Any]) -> None:
        """One round with the given participants and orders of their samples."""
        import torch
        import torch.nn.functional as F

        total = [torch.zeros_like(p) for p in self.server]
        size = sum(len(self.parts[k]) for k in chosen)
        for k, order in zip(chosen, orders):
            torch._foreach_copy_(self.params, self.server)
            optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
            self.model.train()
            for index in self.parts[k][order].split(BATCH):
                x = self.x[index].float().div_(255)  # the network normalises
                loss = F.cross_entropy(
                    self.model(x.contiguous(memory_format=torch.channels_last)), self.y[index]
                )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            torch._foreach_add_(total, self.params, alpha=len(self.parts[k]) / size)
        self.server = total


def speed(rounds: int = 1, repeats: int = 11, clients: int = 100) -> dict[str, Any]:
    """Median seconds per round of both, alternating, on the wall clock and of the processor; and
    whether they agree.
    """
    import torch

    from fedbook.rounds.seeds import generator

    fed = federation(clients)
    ours = simulation(fed, rounds * (repeats + 1))
    bare = Bare(fed)
    times: dict[str, list[tuple[float, float]]] = {"fedbook": [], "bare": []}
    for repeat in range(repeats + 1):  # the first is for warming up
        plan = []
        for t in range(repeat * rounds + 1, (repeat + 1) * rounds + 1):
            chosen = sorted(
                torch.randperm(clients, generator=generator(0, "sample", t))[:10].tolist()
            )
            orders = [
                torch.randperm(PER_CLIENT, generator=generator(0, "train", t, k)) for k in chosen
            ]
            plan.append((t, chosen, orders))
        for side in ("fedbook", "bare") if repeat % 2 else ("bare", "fedbook"):
            began = time.perf_counter(), time.process_time()
            for t, chosen, orders in plan:
                if side == "bare":
                    bare.round(chosen, orders)
                else:
                    ours.step(t)
            if repeat:
                spent = time.perf_counter() - began[0], time.process_time() - began[1]
                times[side].append((spent[0] / rounds, spent[1] / rounds))
    names = [n for n, _ in bare.model.named_parameters()]
    apart = max(float((ours.params[n] - p).abs().max()) for n, p in zip(names, bare.server))
    assert apart <= 1e-5, f"the two loops end {apart} apart"
    seconds, cpu = (
        {name: statistics.median(x[i] for x in v) for name, v in times.items()} for i in (0, 1)
    )
    return {
        "bare_over_fedbook": round(seconds["bare"] / seconds["fedbook"], 4),
        "seconds_per_round": {k: round(v, 5) for k, v in seconds.items()},
        "cpu_bare_over_fedbook": round(cpu["bare"] / cpu["fedbook"], 4),
        "largest_weight_difference": apart,
        "parameters": sum(p.numel() for p in bare.server),
        "clients": clients,
        "participants": 10,
        "samples_per_client": PER_CLIENT,
        "batch_size": BATCH,
        "rounds": rounds,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
    }


def peak_memory(clients: int) -> dict[str, float]:
    """In a fresh process: MB at the peak of 3 rounds, before the run, and their difference."""
    return in_fresh_process(_memory, clients)


def _memory(clients: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    fed = federation(clients, per_client=50, pool=10_000)
    _work(
        federation(2, per_client=50), 1
    )  # whatever torch sets up on first use is there before the run
    before = resident("VmRSS")
    _work(fed, 3)
    peak = resident("VmHWM")
    return {
        "clients": clients,
        "peak_mb": peak,
        "before_mb": before,
        "run_mb": round(peak - before, 2),
    }


def _work(fed: Any, rounds: int) -> None:
    from fedbook import methods
    from fedbook.rounds import simulate

    method = methods.get("fedavg", participation=min(10, len(fed)), lr=LR, batch_size=BATCH)
    simulate(
        method, fed, network(fed), rounds=rounds, seed=0, device="cpu", quiet=True, engine="loop"
    ).run()


def bench(rounds: int = 1, repeats: int = 11) -> dict[str, Any]:
    """Both measurements."""
    out = speed(rounds, repeats)
    few = peak_memory(10)
    many = peak_memory(1000)
    ratios = {
        f"memory_1000_over_10{x}": round(many[k] / few[k], 4)
        for x, k in (("", "peak_mb"), ("_added", "run_mb"))
    }
    return {**out, **ratios, "memory": {"10": few, "1000": many}}


def text(out: dict[str, Any]) -> str:
    s = out["seconds_per_round"]
    m = out["memory"]
    few = m["10"]["peak_mb"]
    many = m["1000"]["peak_mb"]
    setting = (
        f"{out['clients']} clients, {out['participants']} a round, {out['samples_per_client']} "
        "images each"
    )
    how = (
        f"{out['parameters']:,} parameters, {out['threads']} threads, {out['repeats']} x "
        f"{out['rounds']} rounds"
    )
    ratio = (
        f"bare / fedbook {out['bare_over_fedbook']:.3f} (processor time "
        f"{out['cpu_bare_over_fedbook']:.3f})"
    )
    memory = (
        f"ratio {out['memory_1000_over_10']:.3f} (added by the run "
        f"{out['memory_1000_over_10_added']:.3f})"
    )
    apart = f"weights differ by {out['largest_weight_difference']:.0e} at most"
    return f"""{setting}, {how}, {apart}
seconds per round   fedbook {s["fedbook"]:.4f}   bare PyTorch {s["bare"]:.4f}   {ratio}
peak memory         10 clients {few:.0f} MB   1,000 clients {many:.0f} MB   {memory}"""
