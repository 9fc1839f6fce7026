"""Messages of Flower that are wrong: those that a client gets, those that the server gets, and what
an app is started with. `tests/test_flower_messages.py` sends every one of them; `python
tests/hardening.py` writes what is told into HARDENING.md. Needs Flower.
"""

import functools
import io
import pickle
from unittest import mock

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from helpers import LOCAL, mlp

from conftest import toy as fixture
from fedbook import flower, methods
from fedbook.flower import server
from fedbook.flower.server import setting
from fedbook.rounds import Uniform

PARAMETER = "features.1.weight"
WHO = 2  # the client whose answer is spoiled
WHEN = 2  # the round


@functools.cache
def toy():
    made = getattr(fixture, "__wrapped__", None) or fixture._get_wrapped_function()
    return made()


# -- records --------------------------------------------------------------------------------------
def numpy_bytes(array, allow_pickle=False):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def claim(shape):
    """The file of an array that says it is larger than it is."""
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + bytes(64)


def like(array, data, dtype="float32"):
    """An array that says it is like another, with other bytes."""
    return Array(dtype=dtype, shape=array.shape, stype=array.stype, data=data)


PARAMETERS = {
    "no parameters": None,
    "a parameter too few": lambda a: None,
    "a parameter too many": lambda a: {"extra": a},
    "a parameter of another shape": lambda a: Array(a.numpy().T.copy()),
    "a parameter of ten million numbers": lambda a: Array(np.zeros(10**7, np.float32)),
    "a parameter in double precision": lambda a: Array(a.numpy().astype(np.float64)),
    "a parameter of whole numbers": lambda a: Array(a.numpy().astype(np.int64)),
    "a parameter with NaN": lambda a: Array(np.full_like(a.numpy(), np.nan)),
    "a parameter with infinity": lambda a: Array(np.full_like(a.numpy(), np.inf)),
    "a parameter cut short": lambda a: like(a, a.data[:-10]),
    "a parameter without a byte": lambda a: like(a, b""),
    "a parameter of pickled objects": lambda a: like(
        a, numpy_bytes(np.array([{}], dtype=object), allow_pickle=True)
    ),
    "a parameter that is a pickle": lambda a: like(a, pickle.dumps({})),
    "a parameter that claims a terabyte": lambda a: like(a, claim((1 << 38,))),
    "a parameter of another library": lambda a: Array(
        dtype="float32", shape=a.shape, stype="jax", data=a.data
    ),
}


def with_parameters(change):
    """Change one parameter of a content: to another array, to more, or to nothing."""

    def spoil(content):
        if change is None:
            del content["parameters"]
            return
        arrays = dict(content["parameters"])
        new = change(arrays.pop(PARAMETER))
        if isinstance(new, dict):
            arrays |= new | {PARAMETER: content["parameters"][PARAMETER]}
        elif new is not None:
            arrays[PARAMETER] = new
        content["parameters"] = ArrayRecord(arrays)

    return spoil


def config(name, **changes):
    """Change entries of a record of settings; None takes one away."""

    def spoil(content):
        found = dict(content[name]) | changes
        content[name] = ConfigRecord({k: v for k, v in found.items() if v is not None})

    return spoil


def metric(name, **changes):
    def spoil(content):
        found = {k: v for k, v in content[name].items()}
        found |= {k.replace("_", "-") if k == "num_examples" else k: v for k, v in changes.items()}
        content[name] = MetricRecord({k: v for k, v in found.items() if v is not None})

    return spoil


def without(name):
    def spoil(content):
        del content[name]

    return spoil


def nest(name, text):
    def spoil(content):
        content[name] = ConfigRecord({"nest": text})

    return spoil


NESTS = {
    "no JSON": "{",
    "JSON too deep": "[" * 100_000,
    "a list": "[1, 2]",
    "a number": "3",
    "a tensor that did not come": '{"__dict__": [["x", {"__tensor__": "9"}]]}',
    "another kind of dict": '{"x": 1}',
}


# -- what a client gets ---------------------------------------------------------------------------
@functools.cache
def sent(method, kind):
    """A message of the first round to client 0, as the server writes it."""
    chosen = methods.get(method, **LOCAL)
    run = flower.run_local(chosen, toy(), mlp(toy()), 1)
    for message, _ in run.grid.exchanged:
        if message.metadata.message_type == kind and run._ids[message.metadata.dst_node_id] == 0:
            return message
    raise LookupError(kind)


def asked(spoil=None, kind="train", method="fedavg", partition=None, at=None, node=None, **options):
    """A client is sent this message, once spoiled."""
    message = sent("fedavg", kind)
    content = RecordDict(dict(message.content))
    if spoil is not None:
        spoil(content)
    new = Message(content, dst_node_id=1, message_type=kind, group_id="1")
    own = partition or (lambda context: toy().only(0))
    chosen = methods.get(method, **(LOCAL | options))
    app = flower.client_app(chosen, mlp(toy()), own)
    known = {"partition-id": 0} | ({} if at is None else {"memory": str(at)}) | (node or {})
    known = {k: v for k, v in known.items() if v is not None}
    return app(new, Context(1, 1, known, RecordDict(), {}))


def broken_memory(at, text):
    run = sent("fedavg", "train").content["run"]["run"]
    (at / run).mkdir()
    (at / run / "client-0.safetensors").write_bytes(text)
    return asked(at=at)


TO_CLIENTS = {
    "a message of no run": lambda at: asked(without("run")),
    "a message without a round": lambda at: asked(config("run", round=None)),
    "a round in words": lambda at: asked(config("run", round="one")),
    "a round and a half": lambda at: asked(config("run", round=1.5)),
    "a negative round": lambda at: asked(config("run", round=-1)),
    "a round that is True": lambda at: asked(config("run", round=True)),
    "a round beyond the last": lambda at: asked(config("run", round=9)),
    "a round before one that counted": lambda at: asked(config("run", counted=5, rounds=9)),
    "no seed": lambda at: asked(config("run", seed=None)),
    "a run that is a number": lambda at: asked(config("run", run=3)),
    "another method than the server's": lambda at: asked(method="fedprox"),
    "other settings than the server's": lambda at: asked(lr=0.2),
    "another method, asked who it is": lambda at: asked(kind="query.who", method="fedprox"),
    "nothing sent by stages": lambda at: asked(without("sent")),
    "something sent for a stage too few": lambda at: asked(nest("sent", '{"__dict__": []}')),
    "a test without parameters": lambda at: asked(without("parameters"), kind="evaluate"),
    "a test without what is personal": lambda at: asked(without("personal"), kind="evaluate"),
    "a node that does not know who it is": lambda at: asked(node={"partition-id": None}),
    "a node that is a word": lambda at: asked(node={"partition-id": "two"}),
    "a node with somebody else's samples": lambda at: asked(
        partition=lambda context: toy().only(1)
    ),
    "a node with everybody's samples": lambda at: asked(partition=lambda context: toy()),
    "a node without a folder of data": lambda at: asked(partition=flower.partition_of),
    "a node whose file is not there": lambda at: asked(
        partition=flower.partition_of, node={"data": str(at)}
    ),
    "a memory that is no file of ours": lambda at: broken_memory(at, b"no safetensors"),
    "a memory without a byte": lambda at: broken_memory(at, b""),
}
for _name, _change in PARAMETERS.items():
    TO_CLIENTS[f"to train with {_name}"] = functools.partial(
        lambda at, change: asked(with_parameters(change)), change=_change
    )
for _name, _text in NESTS.items():
    TO_CLIENTS[f"sent by stages: {_name}"] = functools.partial(
        lambda at, text: asked(nest("sent", text)), text=_text
    )


# -- what the server gets -------------------------------------------------------------------------
class Spoiled(flower.LocalGrid):
    """The answers of one client to one kind of message come spoiled, in one round."""

    kind = "train"
    when = WHEN

    def spoil(self, message):
        """What comes instead: no, one or several messages."""
        return [message]

    def send_and_receive(self, messages, *, timeout=None):
        found = []
        for m in super().send_and_receive(messages, timeout=timeout):
            about = m.metadata
            whose = self._clients[about.src_node_id]
            now = about.message_type == self.kind and about.group_id == str(self.when)
            if whose == WHO and now:
                self.when = -1  # once
                found += self.spoil(m)
            else:
                found.append(m)
        return found


def in_place(change):
    """Spoil the content."""

    def spoil(message):
        change(message.content)
        return [message]

    return spoil


def late(message):
    message.metadata.__dict__["_group_id"] = "1"
    return [message]


def of_a_stranger(message):
    message.metadata.__dict__["_src_node_id"] = 4242
    return [message]


def empty(message):
    message.content.clear()
    return [message]


MEASURED = '{"__dict__": [["loss", %s], ["values", %s]]}'
NOTHING = '{"__dict__": []}'

# what the answer is to, in which method, and what becomes of it
ANSWERS = {
    "training: nothing": ("train", "scaffold", empty),
    "training: the answer of another round": ("train", "scaffold", late),
    "training: the answer of a stranger": ("train", "scaffold", of_a_stranger),
    "training: no numbers": ("train", "scaffold", in_place(without("metrics"))),
    "training: no size": ("train", "scaffold", in_place(metric("metrics", num_examples=None))),
    "training: a size of zero": ("train", "scaffold", in_place(metric("metrics", num_examples=0))),
    "training: a negative size": (
        "train",
        "scaffold",
        in_place(metric("metrics", num_examples=-5)),
    ),
    "training: a size that is NaN": (
        "train",
        "scaffold",
        in_place(metric("metrics", num_examples=float("nan"))),
    ),
    "training: a list of sizes": (
        "train",
        "scaffold",
        in_place(metric("metrics", num_examples=[8, 8])),
    ),
    "training: a loss that is NaN": (
        "train",
        "scaffold",
        in_place(metric("metrics", train_loss=float("nan"))),
    ),
    "training: a number too many": ("train", "scaffold", in_place(metric("metrics", extra=1))),
    "training: no values": ("train", "scaffold", in_place(without("values"))),
    "measuring: nothing": ("query.measure", "afl", empty),
    "measuring: no loss": (
        "query.measure",
        "afl",
        in_place(nest("measured", MEASURED % ("null", NOTHING))),
    ),
    "measuring: a loss in words": (
        "query.measure",
        "afl",
        in_place(nest("measured", MEASURED % ('"high"', NOTHING))),
    ),
    "measuring: a loss that is NaN": (
        "query.measure",
        "afl",
        in_place(nest("measured", MEASURED % ("NaN", NOTHING))),
    ),
    "measuring: values that are a list": (
        "query.measure",
        "afl",
        in_place(nest("measured", MEASURED % ("1.0", "[]"))),
    ),
}
for _name, _change in PARAMETERS.items():
    ANSWERS[f"training: {_name}"] = ("train", "scaffold", in_place(with_parameters(_change)))
for _name, _text in NESTS.items():
    ANSWERS[f"training: values that are {_name}"] = (
        "train",
        "scaffold",
        in_place(nest("values", _text)),
    )

SCORES = {
    "testing: nothing": empty,
    "testing: no scores": in_place(without("scores")),
    "testing: a score too few": in_place(metric("scores", test_acc=None)),
    "testing: a score of somebody's own": in_place(metric("scores", personal_acc=0.5)),
    "testing: a list of scores": in_place(metric("scores", test_acc=[0.5, 0.5])),
    "testing: the answer of another round": late,
}

MEETINGS = {
    "meeting: nothing": empty,
    "meeting: no client": in_place(nest("who", '{"__dict__": [["informed", false]]}')),
    "meeting: a client in words": in_place(
        nest("who", '{"__dict__": [["client", "two"], ["informed", false]]}')
    ),
    "meeting: not said what it has heard": in_place(nest("who", '{"__dict__": [["client", 2]]}')),
    "meeting: no JSON": in_place(nest("who", "{")),
}

# answers that are read, and that the method's stages then cannot use: the run stops
STAGES = {
    "training: values of no stage": in_place(nest("values", NOTHING)),
    "training: values of another kind": in_place(
        nest("values", '{"__dict__": [["control", "high"]]}')
    ),
}


def played(kind, method, spoil, rounds=3, when=WHEN):
    """A run in which one answer comes spoiled: the run, and the warnings in its log."""

    class Grid(Spoiled):
        pass

    Grid.kind = kind
    Grid.when = when
    Grid.spoil = lambda self, message: spoil(message)
    chosen = methods.get(method, **LOCAL)
    model = mlp(toy())
    app = flower.client_app(
        chosen, model, lambda context: toy().only(context.node_config["partition-id"])
    )
    said = []
    with mock.patch.object(server, "log", lambda level, text, *v: said.append((level, text % v))):
        grid = Grid(app, [c.id for c in toy().clients])
        run = flower.run_local(chosen, toy(), model, rounds, grid=grid)
    return run, [text for level, text in said if level >= 30]


def reason(said):
    """What a warning says of the message, without whose it is."""
    return said.partition(": ")[2] or said


class Without(Uniform):
    """Everybody but one client, in one round."""

    who = WHO
    when = WHEN

    def __call__(self, state, federation, round, rng):
        chosen, state = super().__call__(state, federation, round, rng)
        return [id for id in chosen if not (id == self.who and round == self.when)], state


class First(Without):
    when = 1


# -- what an app is started with ------------------------------------------------------------------
def strategy(**options):
    method = methods.get("fedavg", **LOCAL)
    return flower.FedbookStrategy(method, toy().roster(), mlp(toy()), **({"rounds": 1} | options))


def nobody():
    app = flower.client_app(methods.get("fedavg"), mlp(toy()))
    return flower.run_local(
        methods.get("fedavg"), toy(), mlp(toy()), 1, grid=flower.LocalGrid(app, [])
    )


STARTS = {
    "no rounds": lambda at: strategy(rounds=0),
    "rounds in words": lambda at: setting({"rounds": "many"}, "rounds", 3),
    "half a round": lambda at: setting({"rounds": 0.5}, "rounds", 3),
    "a negative seed": lambda at: strategy(seed=-1),
    "tested every zeroth round": lambda at: strategy(evaluate_every=0),
    "nobody at once": lambda at: strategy(at_once=0),
    "a negative time": lambda at: strategy(timeout=-1.0),
    "a time that is NaN": lambda at: strategy(timeout=float("nan")),
    "a time in words": lambda at: setting({"timeout": "long"}, "timeout", 600),
    "no nodes": lambda at: nobody(),
}
for _name, _spoil in STAGES.items():
    STARTS[_name] = functools.partial(
        lambda at, spoil: played("train", "scaffold", spoil), spoil=_spoil
    )
