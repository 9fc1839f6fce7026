"""Inputs that are wrong, by the way they come in. `tests/test_bad_input.py` runs every one of them;
`python tests/hardening.py` writes what each is told into HARDENING.md.
"""

import dataclasses
import json
import zipfile

import numpy as np
import torch
from torch import nn

from fedbook import Federation, cli, data, federate, methods, metrics, models, notebook, papers
from fedbook import simulate as start
from fedbook.cli import runs
from fedbook.data import partition, real, shakespeare
from fedbook.data import store as packing
from fedbook.experiment import plain
from fedbook.federation import Client
from fedbook.measures import build as measure
from fedbook.models.cache import Cache
from fedbook.models.convnets import Classifier
from fedbook.results import Store, config_key
from fedbook.rounds import BySize, LocalSolver, Method, Uniform
from fedbook.rounds.weights import normalise
from fedbook.widgets import explore

RUN = "run fedavg {packs}/tiny.npz --model linear --quiet --rounds 2"
SPLIT = RUN + " --partition"

SETTINGS = "method: fedavg\ndataset: digits5_offline\n"


def yaml(at, text):
    """`fedbook run --config` of a file with this text."""
    path = at / "run.yaml"
    path.write_text(text)
    runs._experiment(cli.parser("run").parse_args(["run", "--config", str(path)]))


COMMANDS = {
    "missing file": "run fedavg {packs}/nowhere.npz",
    "truncated npz": "run fedavg {packs}/cut.npz",
    "wrong shapes": "run fedavg {packs}/misfit.npz",
    "a folder without pictures": "run fedavg {packs}/checkpoint/",
    "negative DIF": SPLIT + " by_domain --set partition.dif=-1",
    "more classes per client than classes": SPLIT
    + " pathological --set partition.clients=2 --set partition.s=5",
    "alpha of zero": SPLIT + " dirichlet --set partition.clients=2 --set partition.alpha=0",
    "more clients than samples": SPLIT + " iid --set partition.clients=1000",
    "clients in words": SPLIT + " iid --set partition.clients=two",
    "a partition without its options": SPLIT + " iid",
    "unknown option of the partition": SPLIT + " iid --set partition.clinets=2",
    "unknown partition": SPLIT + " by_magic",
    "unknown dataset": "run fedavg mnits",
    "unknown option of the dataset": "run fedavg digits5_offline --set dataset.colour=1",
    "images of one pixel": RUN + " --set dataset.size=1",
    "unknown method": "run fedagv digits5_offline",
    "unknown model": RUN + " --model transfomer",
    "unknown option of the model": RUN + " --set model.depth=3",
    "negative width": RUN + " --model mlp --set model.width=-3",
    "unknown table": "reproduce fedgcr/table99",
    "rounds of zero": RUN + " --rounds 0",
    "rounds in words": "run fedavg digits5_offline --rounds many",
    "seed in words": "run fedavg digits5_offline --seed lucky",
    "a negative seed": RUN + " --seed -1",
    "loss not a number": RUN + " --set lr=1e30",
    "negative learning rate": RUN + " --set lr=-1",
    "learning rate in words": RUN + " --set lr=fast",
    "learning rate NaN": RUN + " --set lr=NaN",
    "infinite learning rate": RUN + " --set lr=Infinity",
    "batches of nothing": RUN + " --set batch_size=0",
    "half an epoch": RUN + " --set epochs=0.5",
    "momentum of two": RUN + " --set momentum=2",
    "negative weight decay": RUN + " --set weight_decay=-1",
    "clip of zero": RUN + " --set clip=0",
    "unknown optimizer": RUN + " --set optimizer=adam",
    "a list where a number belongs": RUN + " --set lr=[1]",
    "unknown option of the method": RUN + " --set learning=1",
    "unknown part to set": RUN + " --set server.lr=1",
    "no value to set": RUN + " --set lr",
    "the name is not set": RUN + " --set method.name=fedprox",
    "participation above one": RUN + " --set participation=1.5",
    "participation of none": RUN + " --set participation=0",
    "results folder is a file": RUN + " --results {packs}/file",
    "results folder cannot be made": RUN + " --results /proc/fedbook",
    "figures folder is a file": "reproduce fgpt/table2 "
    "--figures {packs}/file/figures --results {packs}/file",
    "checkpoint is broken": RUN + " --checkpoint {packs}/checkpoint",
    "checkpoint is a file": RUN + " --checkpoint {packs}/file",
    "no such device": RUN + " --device cuda:77",
    "no such kind of device": RUN + " --device abacus",
    "unknown partition, dry": RUN + " --dry-run --partition by_magic",
    "wrong option of a partition, dry": RUN + " --dry-run --partition iid --set partition.k=1",
    "no format for a file": "reproduce fgpt/table2 -o table.xls",
    "unknown format": "reproduce fgpt/table2 --format word",
    "unknown scale": "reproduce --scale huge",
    "seeds of zero": "reproduce --seeds 0",
    "no processes": "reproduce --jobs 0",
    "unknown command": "reprodcue",
    "no command": "",
    "no dataset": "run fedavg",
    "unknown flag": RUN + " --fast",
    "unknown claim": "claims gcr99",
    "unknown paper to tune": "tune fedavg",
    "a probe of too few images": "pretrain probe --sets digits5_offline --images 5",
    "nothing to fetch": "data fetch",
    "unknown dataset to fetch": "data fetch nothing_like_it",
    "unknown dataset to verify": "data verify nothing_like_it",
    "unknown action on data": "data burn",
    "nothing stored to draw": "figures fedgcr/table1 --scale paper",
    "a result of the future": "list --results {packs}/future",
    "nothing to merge": "merge {packs}/nowhere",
    "a folder without results to merge": "merge {packs}/checkpoint",
    "a file that holds no results to merge": "merge {packs}/tiny.npz",
    "results cannot be merged into a file": "merge {packs}/future --results {packs}/file",
    "hours without a rehearsal": "hours",
    "hours of an unknown table": "hours fedgcr/table99 --results {packs}/rehearsed",
    "a broken table of rehearsals": "hours --results {packs}/torn",
}


# -- for Python ------------------------------------------------------------------------------------
def clients(**first):
    """Two clients, of which the first is changed."""
    x, y = torch.randn(8, 5), torch.arange(8) % 3
    usual = {"train": (x, y), "test": (x, y)}
    return [usual | first, usual]


def fed(**first):
    return Federation.from_arrays(clients(**first))


def simulate(method=None, federation=None, model=None, **options):
    federation = federation or fed()
    model = model or models.build("linear", federation)
    options = {"rounds": 1, "quiet": True} | options
    return start(method or methods.get("fedavg"), federation, model, **options).run()


def headless():
    class Headless(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

    return Headless()


def frozen():
    return Classifier(nn.Flatten(), 5, 3).requires_grad_(False)


def poisoned(value, part="weight"):
    """A model with one parameter that is no number."""
    model = models.build("linear", fed())
    getattr(model.head, part).data.flatten()[0] = value
    return model


def with_x(value):
    x = torch.randn(8, 5)
    x[3, 2] = value
    return fed(train=(x, torch.arange(8) % 3))


def dataset():
    return data.load("ecg_offline", patients=3, beats=20)


def experiment(**changes):
    return dataclasses.replace(plain("fedavg", "ecg_offline"), **changes)


def result(**changes):
    config = {"seed": 0}
    return {"key": config_key(config), "config": config, "metrics": {}} | changes


PYTHON = {
    "methods.get: unknown name": lambda at: methods.get("fedavgg"),
    "methods.get: unknown option": lambda at: methods.get("fedprox", my=1),
    "methods.get: unknown quirk": lambda at: methods.get("fedgcr", quirks=("late_betta",)),
    "methods.get: a quirk of another method": lambda at: methods.get(
        "fedavg", quirks=("late_beta",)
    ),
    "methods.get: mu in words": lambda at: simulate(methods.get("fedprox", mu="strong")),
    "methods.get: negative mu": lambda at: simulate(methods.get("fedprox", mu=-1.0)),
    "Method: one factor instead of a tuple": lambda at: Method("mine", weigh=BySize()),
    "Method: a stage in the wrong slot": lambda at: Method("mine", sample=BySize()),
    "Method: nothing to minimise": lambda at: Method("mine", objective=()),
    "LocalSolver: unknown optimizer": lambda at: LocalSolver(optimizer="lion"),
    "LocalSolver: a batch and a half": lambda at: LocalSolver(batch_size=1.5),
    "LocalSolver: momentum in words": lambda at: LocalSolver(momentum="high"),
    "LocalSolver: an unknown setting of a group": lambda at: LocalSolver(
        param_groups=(("*", {"speed": 2}),)
    ),
    "Uniform: nobody": lambda at: simulate(Method("mine", sample=Uniform(0))),
    "Uniform: in words": lambda at: simulate(Method("mine", sample=Uniform("half"))),
    "models.build: unknown name": lambda at: models.build("resnet9000", fed()),
    "models.build: unknown option": lambda at: models.build("mlp", fed(), depth=3),
    "models.build: images for a network of signals": lambda at: models.build("ecg_resnet", fed()),
    "models.build: signals for a network of images": lambda at: models.build("cnn", fed()),
    "simulate: no rounds": lambda at: simulate(rounds=0),
    "simulate: half a round": lambda at: simulate(rounds=0.5),
    "simulate: True rounds": lambda at: simulate(rounds=True),
    "simulate: unknown engine": lambda at: simulate(engine="steam"),
    "simulate: unknown device": lambda at: simulate(device="abacus"),
    "simulate: a seed in words": lambda at: simulate(seed="lucky"),
    "simulate: test every zeroth round": lambda at: simulate(evaluate_every=0),
    "simulate: a method by its name": lambda at: simulate(method="fedavg"),
    "simulate: a model without a head": lambda at: simulate(model=headless()),
    "simulate: nothing to train": lambda at: simulate(model=frozen()),
    "simulate: a model for other inputs": lambda at: simulate(model=Classifier(nn.Flatten(), 7, 3)),
    "simulate: too few classes in the model": lambda at: simulate(
        model=Classifier(nn.Flatten(), 5, 2)
    ),
    "simulate: NaN in the data": lambda at: simulate(federation=with_x(float("nan"))),
    "simulate: infinity in the data": lambda at: simulate(federation=with_x(float("inf"))),
    "simulate: NaN in the weights": lambda at: simulate(model=poisoned(float("nan"))),
    "from_arrays: no clients": lambda at: Federation.from_arrays([]),
    "from_arrays: fewer labels than samples": lambda at: fed(train=(torch.zeros(3, 5), [0, 1])),
    "from_arrays: samples of two shapes": lambda at: fed(train=(torch.zeros(3, 4), [0, 1, 2])),
    "from_arrays: no training sample": lambda at: fed(train=((), ())),
    "from_arrays: labels that are NaN": lambda at: fed(train=(torch.zeros(1, 5), [float("nan")])),
    "from_arrays: labels between classes": lambda at: fed(train=(torch.zeros(1, 5), [0.5])),
    "from_arrays: negative labels": lambda at: fed(train=(torch.zeros(1, 5), [-1])),
    "from_arrays: labels in words": lambda at: fed(train=(torch.zeros(1, 5), ["cat"])),
    "from_arrays: samples in words": lambda at: fed(train=(["cat"], [0])),
    "from_arrays: a label of a billion": lambda at: fed(train=(torch.zeros(1, 5), [10**9])),
    "from_arrays: a class without a name": lambda at: Federation.from_arrays(
        clients(), class_names=["a"]
    ),
    "from_arrays: a type without a name": lambda at: Federation.from_arrays(
        clients(type=3), type_names=["a"]
    ),
    "from_arrays: a negative type": lambda at: fed(type=-1),
    "from_arrays: samples that are ragged": lambda at: fed(train=([[1.0], [1.0, 2.0]], [0, 1])),
    "Federation: two clients of one id": lambda at: dataclasses.replace(
        fed(), clients=fed().clients[:1] * 2
    ),
    "Federation: a client beyond the samples": lambda at: dataclasses.replace(
        fed(), clients=(Client(0, 0, torch.tensor([99]), torch.tensor([0])),)
    ),
    "Federation.client: unknown id": lambda at: fed().client(7),
    "Federation.split_clients: everybody": lambda at: fed().split_clients(2),
    "Federation.split_clients: unknown ids": lambda at: fed().split_clients([8]),
    "Federation.validation: all of it": lambda at: fed().validation(1.0),
    "Federation.load: no file": lambda at: Federation.load(at / "none"),
    "Federation.load: no federation": lambda at: Federation.load(at / "file"),
    "federate: unknown partition": lambda at: federate(dataset(), "by_magic"),
    "federate: unknown way of testing": lambda at: federate(dataset(), "by_group", test="never"),
    "federate: limits of one number": lambda at: federate(dataset(), "by_group", limit=(3,)),
    "federate: a negative limit": lambda at: federate(dataset(), "by_group", limit=(-3, 2)),
    "federate: clients of no sample": lambda at: federate(dataset(), "iid", clients=10**6),
    "partition: rows beyond the labels": lambda at: partition.iid([0, 1, 1], 2, within=[7]),
    "partition: labels in two dimensions": lambda at: partition.iid(np.zeros((3, 3)), 2),
    "partition: a Dirichlet nobody can draw": lambda at: partition.dirichlet(
        np.zeros(8, int), 8, 1e-3, tries=3
    ),
    "data.load: unknown option": lambda at: data.load("ecg_offline", patience=3),
    "data.load: two pixels": lambda at: data.load("digits5_offline", size=2),
    "data.load: two channels": lambda at: data.load("digits5_offline", channels=2),
    "data.load: beats in words": lambda at: data.load("ecg_offline", beats="many"),
    "data.load: not downloaded": lambda at: missing_data(at),
    "metrics: no clients": lambda at: metrics.avg_client([]),
    "metrics: types that do not fit": lambda at: metrics.avg_type([1.0, 2.0], [0]),
    "metrics: a fraction of two": lambda at: metrics.bottom([1.0], 2),
    "metrics: predictions that do not fit": lambda at: metrics.macro_f1([0, 1], [0], 2),
    "weights: NaN": lambda at: normalise([0.0, float("nan")], [0, 1]),
    "weights: all zero": lambda at: normalise([-np.inf, -np.inf], [0, 1]),
    "weights: one for two clients": lambda at: normalise([0.0], [0, 1]),
    "Experiment: unknown method": lambda at: experiment(method={"name": "fedagv"}).run(),
    "Experiment: a method without a name": lambda at: experiment(method={"lr": 1}).run(),
    "Experiment: settings JSON cannot hold": lambda at: (
        experiment(model={"name": "linear", "x": {1, 2}}).key
    ),
    "Experiment: settings that are NaN": lambda at: (
        experiment(method={"name": "fedavg", "lr": float("nan")}).key
    ),
    "Experiment: unknown measure": lambda at: measure("unsene"),
    "Experiment: unknown option of a measure": lambda at: measure("unseen", client=2),
    "papers.get: unknown table": lambda at: papers.get("fedgcr/tabel1"),
    "papers.get: unknown paper": lambda at: papers.get("fedprox/table1"),
    "Cache: budget in words": lambda at: cache_of("much"),
    "notebook.start: unknown scale": lambda at: notebook.start("huge"),
    "notebook.start: a scale that is a number": lambda at: notebook.start(3),
    "notebook.start: no scale": lambda at: notebook.start(None),
    "notebook.show: no description": lambda at: notebook.show(None, alt=" "),
    "notebook.show: a description that is a number": lambda at: notebook.show(None, alt=3),
    "notebook.answer: unknown exercise": lambda at: notebook.answer("1.1", 0.5),
    "notebook.hint: unknown exercise": lambda at: notebook.hint("99.9"),
    "notebook.summary: unknown notebook": lambda at: notebook.summary("1"),
    "explore: nothing to choose from": lambda at: explore(print, alpha=[]),
    "explore: a text to choose from": lambda at: explore(print, alpha="abc"),
    "explore: a number to choose from": lambda at: explore(print, alpha=5),
    "explore: numbers out of order": lambda at: explore(print, alpha=[10, 1]),
    "explore: numbers twice": lambda at: explore(print, alpha=[1, 1]),
    "explore: NaN among the numbers": lambda at: explore(print, alpha=[float("nan"), 1]),
    "explore: a start that is no choice": lambda at: explore(
        print, alpha=[1, 2], start={"alpha": 3}
    ),
    "explore: a start of no slider": lambda at: explore(print, alpha=[1, 2], start={"alhpa": 1}),
}


def missing_data(at):
    with packing.at(at):
        return data.load("mnist")


def cache_of(budget):
    import os
    from unittest import mock

    with mock.patch.dict(os.environ, FEDBOOK_CACHE_MEMORY_MB=budget):
        return Cache.from_environment()


# -- files -----------------------------------------------------------------------------------------
def npz(at, **changes):
    """A whole pack, then changed; None takes a column away."""
    n = 12
    columns = {
        "x": np.zeros((n, 4, 4), np.uint8),
        "y": np.arange(n) % 3,
        "split": (np.arange(n) % 4 == 0).astype(np.uint8),
        "domain": np.arange(n) % 2,
        "domain_names": np.array(["left", "right"]),
        "class_names": np.array(list("abc")),
    } | changes
    np.savez(at / "p.npz", **{k: v for k, v in columns.items() if v is not None})
    return data.from_npz(at / "p.npz")


def bomb(at):
    """A pack of one megabyte that would unpack to four gigabytes."""
    with zipfile.ZipFile(at / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as f:
            for _ in range(64):
                f.write(bytes(1 << 20))
    blob = (at / "p.npz").read_bytes()
    size = (64 << 20).to_bytes(4, "little")
    (at / "p.npz").write_bytes(blob.replace(size, (0xF0000000).to_bytes(4, "little")))
    return data.from_npz(at / "p.npz")


def folder(at, content=b"no picture"):
    (at / "pets" / "day" / "cat").mkdir(parents=True)
    (at / "pets" / "day" / "cat" / "a.png").write_bytes(content)
    return data.from_folders(at / "pets")


def leaf(at, text):
    for side in ("train", "test"):
        (at / "shakespeare" / "leaf" / side).mkdir(parents=True)
        (at / "shakespeare" / "leaf" / side / "a.json").write_text(text)
    with packing.at(at):
        return shakespeare.shakespeare(0)


def huge_picture():
    """A PNG of a few bytes that claims 60,000 x 60,000 pixels."""
    import struct
    import zlib

    out = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    for kind, content in ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")):
        sum_ = struct.pack(">I", zlib.crc32(kind + content))
        out += struct.pack(">I", len(content)) + kind + content + sum_
    return out


def stored(at, **changes):
    (at / "a.jsonl").write_text(json.dumps(result(**changes)) + "\n")
    return Store(at).load()


def archive(at, name, content=b"x", kind=None):
    """A tar of pictures with one odd member."""
    import io
    import tarfile

    with tarfile.open(at / "a.tar", "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        if kind is not None:
            member.type, member.linkname, member.size = kind, "/etc/passwd", 0
        tar.addfile(member, io.BytesIO(content))
    return real._archive(at / "a.tar", lambda p: 0, 8, grey=True, name="notmnist")


FILES = {
    "pack: pickled objects": lambda at: npz(at, y=np.array([{}] * 12, dtype=object)),
    "pack: no labels": lambda at: npz(at, y=None),
    "pack: labels in words": lambda at: npz(at, y=np.array(["cat"] * 12)),
    "pack: labels that are NaN": lambda at: npz(at, y=np.full(12, np.nan)),
    "pack: negative labels": lambda at: npz(at, y=np.full(12, -1)),
    "pack: a label without a name": lambda at: npz(at, y=np.full(12, 3)),
    "pack: a label of a billion": lambda at: npz(at, y=np.full(12, 10**9), class_names=None),
    "pack: images of floats": lambda at: npz(at, x=np.zeros((12, 4, 4))),
    "pack: images of two channels": lambda at: npz(at, x=np.zeros((12, 4, 4, 2), np.uint8)),
    "pack: images without pixels": lambda at: npz(at, x=np.zeros((12, 0, 4), np.uint8)),
    "pack: no images": lambda at: npz(
        at, x=np.zeros((0, 4, 4), np.uint8), y=np.zeros(0, int), split=np.zeros(0, int)
    ),
    "pack: a split of three": lambda at: npz(at, split=np.full(12, 2)),
    "pack: domains in words": lambda at: npz(at, domain=np.array(["left"] * 12)),
    "pack: a domain without a name": lambda at: npz(at, domain=np.full(12, 2)),
    "pack: domains in two dimensions": lambda at: npz(at, domain=np.zeros((12, 2), int)),
    "pack: one class name": lambda at: npz(at, class_names=np.array("a")),
    "pack: a bomb": bomb,
    "pack: no zip file": lambda at: data.from_npz(at / "file"),
    "folder: none": lambda at: data.from_folders(at / "none"),
    "folder: no pictures": lambda at: data.from_folders(at),
    "folder: a broken picture": folder,
    "folder: a picture that unpacks to 10 GB": lambda at: folder(at, huge_picture()),
    "LEAF: half a file": lambda at: leaf(at, '{"user_data": {'),
    "LEAF: no users": lambda at: leaf(at, '{"users": []}'),
    "LEAF: a list": lambda at: leaf(at, "[1, 2]"),
    "LEAF: fewer answers than questions": lambda at: leaf(
        at, '{"user_data": {"a": {"x": ["ab"], "y": []}}}'
    ),
    "LEAF: rows of two lengths": lambda at: leaf(
        at, '{"user_data": {"a": {"x": ["ab", "abcd"], "y": ["c", "d"]}}}'
    ),
    "LEAF: too deep": lambda at: leaf(at, "[" * 100_000),
    "LEAF: a user without samples": lambda at: leaf(at, '{"user_data": {"a": {"x": [], "y": []}}}'),
    "YAML: half a file": lambda at: yaml(at, "method: [1"),
    "YAML: a list": lambda at: yaml(at, "- 1\n- 2"),
    "YAML: nothing": lambda at: yaml(at, ""),
    "YAML: a letter swapped": lambda at: yaml(at, "methdo: fedavg"),
    "YAML: a method without a name": lambda at: yaml(at, SETTINGS + "method: {lr: 1}"),
    "YAML: a number for a partition": lambda at: yaml(at, SETTINGS + "partition: 3"),
    "YAML: rounds in words": lambda at: yaml(at, SETTINGS + "rounds: many"),
    "YAML: half a round": lambda at: yaml(at, SETTINGS + "rounds: 2.5"),
    "YAML: never evaluated": lambda at: yaml(at, SETTINGS + "evaluate_every: 0"),
    "YAML: a number for a measure": lambda at: yaml(at, SETTINGS + "measures: 5"),
    "YAML: unknown scale": lambda at: yaml(at, SETTINGS + "scale: huge"),
    "YAML: code in a tag": lambda at: yaml(at, "method: !!python/object/apply:os.getcwd []"),
    "archive: a path that climbs out": lambda at: archive(at, "../../evil.png"),
    "archive: a link out": lambda at: archive(at, "evil.png", kind=b"2"),
    "archive: a device": lambda at: archive(at, "evil.png", kind=b"3"),
    "archive: a bomb": lambda at: archive(at, "a.png", bytes(real.PICTURE_BYTES + 1)),
    "results: a line of the future": lambda at: stored(at, format=99),
    "results: NaN in the metrics": lambda at: Store(at / "r").append(
        result(metrics={"avg": float("nan")}), "a"
    ),
    "results: a tensor in the metrics": lambda at: Store(at / "r").append(
        result(metrics={"avg": torch.ones(1)}), "a"
    ),
    "results: a file's name with a slash": lambda at: Store(at).append(result(), "../a"),
    "checkpoint: of another run": lambda at: [
        simulate(methods.get("fedavg", lr=lr), checkpoint=at.parent / "run") for lr in (0.1, 0.2)
    ],
    "checkpoint: a state that cannot be kept": lambda at: simulate(
        methods.get("fedavg").replace(weigh=(Strange(),)), checkpoint=at.parent / "run"
    ),
}


@dataclasses.dataclass(frozen=True)
class Strange(BySize):
    """Leaves a set in its state, which no checkpoint can keep."""

    def __call__(self, state, reports):
        scores, _ = super().__call__(state, reports)
        return scores, {"seen": {1, 2}}
