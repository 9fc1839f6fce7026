"""What several test files use: small models, one way to run a method, one way to compare runs."""

from __future__ import annotations

import dataclasses
import os

import torch
from torch import nn

from fedbook import Federation, methods, models, simulate
from fedbook.models.convnets import Classifier
from fedbook.rounds import Objective

LOCAL = {"lr": 0.1, "batch_size": 4}
PROCESS_SECONDS = int(os.environ.get("FEDBOOK_PROCESS_SECONDS", 400))  # for one test of processes


# -- models ----------------------------------------------------------------------------------------
def mlp(federation, width=8):
    return models.build("mlp", federation, seed=7, width=width)


def normed(activation=nn.ReLU):
    """A model of the toy federation with BatchNorm and without dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(5, 6), nn.BatchNorm1d(6), activation()
        return Classifier(nn.Sequential(*layers), 6, 3)


def vit():
    """A small ViT whose every part matters, the same each time."""
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = VisionTransformer(
            img_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=2, num_classes=0
        )
        for p in net.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.3)
    return net.requires_grad_(False).eval()


def model_for(method, images):
    """A model that the method of that name can train on the federation `images`."""
    prompted = {
        "pt_fedavg": ("vpt", {"extra": 1}),
        "pfedhn": ("vpt", {"extra": 1}),
        "fedgcr": ("fedgc", {}),
        "fgpt": ("fgpt", {"groups": 4}),
        "fed_dualprompt": ("fgpt", {"groups": 4, "learn_keys": True}),
    }
    if method in prompted:
        name, options = prompted[method]
        return models.build(name, images, backbone=vit(), **options)
    if method == "fedbn":
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()
        return Classifier(nn.Sequential(*layers), 4 * 6 * 6, 4)
    return models.build("cnn", images, width=4, hidden=8)


class Number(nn.Module):
    """One parameter w; the data are ignored."""

    def __init__(self, w=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))
        self.head = nn.Identity()

    def embed(self, x):
        return x.new_zeros(len(x), 3) + 0 * self.w

    def forward(self, x):
        return self.head(self.embed(x))


@dataclasses.dataclass(frozen=True)
class Parabola(Objective):
    """F_i(w) = a_i (w - c_i)^2 / 2, with a and c by client id."""

    a: tuple[float, ...]
    c: tuple[float, ...]

    def __call__(self, local, batch, sent, memory):
        a, c = self.a[local.client.id], self.c[local.client.id]
        return a * (local.model.w - c) ** 2 / 2


def parabolas(name, rounds, a, c, start=0.0, sizes=(4, 4), **options):
    """A method on one parabola per client; one full batch is one step."""
    clients = []
    for n in sizes:
        x, y = torch.zeros(n, 5), torch.zeros(n).long()
        clients.append({"train": (x, y), "test": (x, y)})
    federation = Federation.from_arrays(clients, class_names=["a", "b", "c"])
    method = methods.get(name, **{"batch_size": max(sizes), **options})
    method = method.replace(objective=(Parabola(a, c), *method.objective[1:]))
    return run(method, federation, rounds, Number(start))


# -- runs ------------------------------------------------------------------------------------------
def run(method, federation, rounds=1, model=None, *, seed=0, checkpoint=None, **options):
    """All rounds of a method (a name, with options on top of LOCAL, or a method).

    By the loop, whose numbers are the same to the bit for methods that come to the same.
    """
    if isinstance(method, str):
        method = methods.get(method, **(LOCAL | options))
    elif options:
        raise TypeError(f"options {sorted(options)} of a ready method")
    model = mlp(federation) if model is None else model
    settings = {"device": "cpu", "engine": "loop", "quiet": True}
    settings |= {"seed": seed, "checkpoint": checkpoint}
    return simulate(method, federation, model, rounds, **settings).run()


def resumed(method, federation, folder, model=None, rounds=(2, 4), **options):
    """The same run, stopped after some rounds and gone on with."""
    for until in rounds:
        done = run(method, federation, until, model, checkpoint=folder, **options)
    return done


def only(federation, i, samples=None):
    """One client, with all or some of its training samples."""
    client = federation.clients[i]
    mine = dataclasses.replace(client, train=client.train[:samples])
    return dataclasses.replace(federation, clients=(mine,))


def personal(result, i):
    """A client's own weights."""
    model = result.personal_model(result.federation.clients[i])
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def _params(of):
    return of if isinstance(of, dict) else of.params


def same(a, b):
    """Bit for bit: two runs, or parameters by name."""
    a, b = _params(a), _params(b)
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def near(a, b, atol=1e-6):
    """Up to rounding: two runs, or parameters by name."""
    a, b = _params(a), _params(b)
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=atol) for n in a)


def traffic(result):
    return [(r.bytes_up, r.bytes_down) for r in result.records]
