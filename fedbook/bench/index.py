"""What our layers are worth in a training step of Client2Vec's index network, DSA-IGN."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedbook.clock import interleave, use_threads
from fedbook.models.dsa_ign import DSAIGN, losses


def bench_index(
    batch: int = 128, repeats: int = 15, threads: int = 1, ffn: int = 2048
) -> dict[str, Any]:
    """Seconds of a training step with our layers, and with a stock `nn.TransformerEncoder` with
    torch's dropout of 0.1.

    Both do all of it: forward, the four losses, backward, Adam. They take turns, and the ratio is
    the median of theirs.
    """
    with use_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        D, L = F.normalize(torch.randn(2, batch, 512), dim=2)
        nets = {"ours": DSAIGN(ffn=ffn), "stock": DSAIGN(ffn=ffn)}
        layer = nn.TransformerEncoderLayer(32, 8, ffn, batch_first=True, norm_first=True)
        nets["stock"].encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def stepper(net: DSAIGN) -> Any:
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

            def step() -> None:
                optimizer.zero_grad(set_to_none=True)
                torch.stack(list(losses(net, D, L).values())).sum().backward()
                optimizer.step()

            return step

        steps = {name: stepper(net.train()) for name, net in nets.items()}
        spent = interleave(steps, repeats, warm_up=2)
    return {
        "seconds_per_step": {name: times.median() for name, times in spent.items()},
        "stock_over_ours": spent["stock"].over(spent["ours"]),
        "settings": {"batch": batch, "repeats": repeats, "threads": threads, "ffn": ffn},
    }


def text(out: dict[str, Any]) -> str:
    ratio = f"{out['stock_over_ours']:.2f} times as fast as torch's encoder with its dropout"
    return f"DSA-IGN steps {ratio}"
