"""What a run will cost, before it runs: floating-point operations and device memory, counted
without doing them.

A client's turn is played on torch's meta device, where tensors have shapes and no values: the
objective's terms, the backward pass and the optimiser all happen, so what a method adds (FedGCR's
reference passes, FedSAM's second gradient) is counted and not guessed. The second turn is the one
counted, since some terms need a first. Not counted: work on the server, and terms that wait for it
(FedGCR's l_GC, two small matrix products per image).
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedbook.data.partition import HOW
from fedbook.errors import FedbookError, unknown
from fedbook.experiment import Experiment, load_dataset
from fedbook.federation import Client, Federation


class Counter(TorchDispatchMode):
    """Operations by torch's own formulas. (Its FlopCounterMode also follows modules, and stops at
    `autograd.grad`.)
    """

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0  # a number read from a tensor without values
        if func is torch.ops.aten.bincount.default:  # as many classes as samples have values
            return args[0].new_zeros((kwargs or {}).get("minlength") or args[-1])
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func.overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


class Activations:
    """Bytes kept for the backward pass, at their highest; parameters are not among them."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        self.held: dict[int, int] = {}
        self.peak = 0

    def keep(self, t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage._cdata not in self.parameters:
            self.held[storage._cdata] = storage.nbytes()
            self.peak = max(self.peak, sum(self.held.values()))
        return t

    def use(self, t: Tensor) -> Tensor:
        self.held.pop(t.untyped_storage()._cdata, None)
        return t


def stub(
    shape: tuple[int, ...], classes: int, samples: int, dtype: torch.dtype = torch.uint8
) -> Federation:
    """One client with as many samples as asked for; nothing in it will be read."""
    names = tuple(f"class {i}" for i in range(classes))
    rows = torch.arange(samples)
    x = torch.zeros(samples, *shape, dtype=dtype)
    half = (0.5,) * shape[0] if dtype == torch.uint8 else None
    one = (Client(0, 0, rows, rows),)
    return Federation(
        x, rows % classes, clients=one, class_names=names, type_names=("type",), mean=half, std=half
    )


def published_sizes(e: Experiment) -> tuple[list[str], list[int]] | None:
    """The domain and training samples of each client where the partition is a published one, which
    needs no data.
    """
    from fedbook.data import partition

    like = e.partition.get("sizes")
    if (
        e.partition["name"] != "by_domain"
        or not isinstance(like, str)
        or like not in partition.PUBLISHED
    ):
        return None
    names = [str(n) for n in e.partition.get("order", partition.PUBLISHED[like].order)]
    sizes = partition.domain_sizes([10**9] * len(names), e.partition["dif"], like=like)
    return [n for n, own in zip(names, sizes) for _ in own], [size for own in sizes for size in own]


def build(e: Experiment, federation: Federation) -> nn.Module:
    """The experiment's model with its weights left out."""
    from fedbook import models
    from fedbook.models.backbones import backbone

    options = {k: v for k, v in e.model.items() if k != "name"}
    if "pretrained" in options:
        options["pretrained"] = False
    with torch.device("meta"):
        if isinstance(options.get("backbone"), str):
            options["backbone"] = backbone(options["backbone"], pretrained=False, device="meta")
        return models.build(e.model["name"], federation, **options)


def cost(
    e: Experiment,
    shape: tuple[int, ...],
    classes: int,
    train: list[int],
    test: int = 0,
    dtype: torch.dtype = torch.uint8,
) -> dict[str, Any]:
    """Of a run whose clients have `train` samples each and which tests on `test` samples
    together.
    """
    from fedbook.rounds import Report, simulate
    from fedbook.rounds.evaluation import predict

    method = e.build_method()
    samples = method.solve.batch_size
    federation = stub(shape, classes, samples, dtype)
    model = build(e, federation)
    run = simulate(method, federation, model, rounds=2, device="meta", quiet=True)
    stages = method.stages()

    def turn(round: int) -> None:
        local = run._turn(Report(id=0, size=samples), round, "train")
        for s, stage in stages.items():
            local.sent[s] = run._send(s, 0)
            stage.begin(local, local.sent[s], local.memory.setdefault(s, {}))
        method.solve(local, {}, local.memory["solve"])
        for s, stage in stages.items():
            stage.end(local, local.sent[s], local.memory[s])

    with Counter():
        turn(1)
    activations = Activations(run.model)
    with (
        Counter() as training,
        torch.autograd.graph.saved_tensors_hooks(activations.keep, activations.use),
    ):
        turn(2)
    with Counter() as testing:
        predict(
            run.model,
            run.federation,
            run.federation.clients[0].train,
            device=run.device,
            precomputed=run.precomputed,
        )
    step = training.flops / samples
    look = testing.flops / samples
    measured = look if "received" in method.reads else 0.0
    taking = (
        method.sample.count(len(train)) / len(train) if hasattr(method.sample, "count") else 1.0
    )
    tests = -(-e.rounds // e.evaluate_every)
    weights = sum(p.numel() * p.element_size() for p in run.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in run.model.parameters() if p.requires_grad)
    states = {"adamw": 2, "sgd": 1 if method.solve.momentum else 0}[method.solve.optimizer]
    data = (sum(train) + test) * torch.Size(shape).numel()
    return {
        "gflop_per_image_and_round": step / 1e9,
        "gflop_per_image_tested": look / 1e9,
        "pflop": (e.rounds * sum(train) * taking * (step + measured) + tests * test * look) / 1e15,
        "memory_mb": {
            "weights": weights / 1e6,
            "gradients_and_optimiser": (1 + states) * trained / 1e6,
            "activations_of_a_batch": activations.peak / 1e6,
            "data": data / 1e6,
            "together": (weights + (1 + states) * trained + activations.peak + data) / 1e6,
        },
        "note": (
            "float32; attention maps are counted, which fused kernels do not keep; the "
            "libraries' memory is not"
        ),
    }


def plan(e: Experiment, seconds: float | None) -> dict[str, Any]:
    """What a run would do and cost; without its data, from the published client sizes if there are
    any.
    """
    out: dict[str, Any] = {
        "key": e.key,
        "config": e.config,
        "stages": e.build_method().describe(),
        "seconds": seconds,
    }
    size = e.dataset.get("size", 32)
    shape: tuple[int, ...] = (3, size, size)
    classes = 10
    test = 0
    dtype = torch.uint8
    if e.partition["name"] not in HOW:
        raise unknown("partition", e.partition["name"], HOW)
    try:
        load_dataset(json.dumps(e.dataset))
    except FedbookError as error:
        out["data"] = f"not here: {error}"
        types, train = published_sizes(e) or ([], [])
    else:
        federation = e.build_federation()
        types = [federation.type_names[c.type] for c in federation.clients]
        train = [len(c.train) for c in federation.clients]
        test = len({i for c in federation.clients for i in c.test.tolist()})
        shape = federation.input_shape
        classes = federation.num_classes
        dtype = federation.x.dtype
    out["clients"] = {"number": len(train), "train": train, "types": types}
    out["cost"] = "the clients' sizes need the data"
    if train:
        out["cost"] = cost(e, shape, classes=classes, train=train, test=test, dtype=dtype)
    return out
