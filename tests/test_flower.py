"""Flower in one process: the same method object, bit for bit what `simulate` computes."""

import dataclasses
import importlib
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from helpers import LOCAL, mlp, model_for, near, run, same

from fedbook import FedbookError, methods
from fedbook.methods.client_index import client_index
from fedbook.rounds import Uniform
from fedbook.rounds.halves import Clients
from fedbook.rounds.params import count_bytes

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

from flwr.app import Message  # noqa: E402

from fedbook import flower  # noqa: E402
from fedbook.flower.client import client_id  # noqa: E402
from fedbook.flower.compare import counted  # noqa: E402
from fedbook.flower.records import unpack  # noqa: E402
from fedbook.flower.server import PATIENCE, Often  # noqa: E402

NAMES = methods.names()


def build(name, images):
    """A method of that name in which four of six clients take part."""
    options = {"participation": 4}
    if name == "client2vec":  # its index is made before training, from everybody's samples
        options["index"] = client_index(images, epochs=2, ffn=16)
    return methods.get(name, **options)


def plain(records):
    return [r.to_json() | {"seconds": 0} for r in records]


def alike(a, b):
    """Two nests, bit for bit; a tuple may have become a list."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


def remembered(grid, id):
    state = grid.state(id)
    return unpack(state, "kept")["memory"] if "kept" in state else None


@pytest.fixture(scope="module")
def both():
    """Each method by both engines, once: (simulation, what its stages declared, Flower's run)."""
    from conftest import images

    federation = images.__wrapped__() if hasattr(images, "__wrapped__") else None
    federation = federation or images._get_wrapped_function()()
    done = {}

    def runs(name):
        if name not in done:
            method, model = build(name, federation), model_for(name, federation)
            declared = []
            receive = Clients._receive

            def spy(self, report, values, traffic):
                declared.append((report.id, dict(values)))
                receive(self, report, values, traffic)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Clients, "_receive", spy)
                simulation = run(method, federation, 3, model)
            done[name] = simulation, declared, flower.run_local(method, federation, model, 3)
        return done[name]

    return runs


@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_the_simulation_bit_for_bit(both, name):
    simulation, _, found = both(name)
    assert same(simulation, found.params)
    for ours, theirs in zip(plain(simulation.records), plain(found.records), strict=True):
        # the one thing that is computed otherwise: the simulation tests everybody in one pass
        assert ours.pop("test_loss") == pytest.approx(theirs.pop("test_loss"), abs=1e-6)
        assert ours == theirs
    for c in simulation.federation.clients:
        assert alike(simulation.memory.get(c.id), remembered(found.grid, c.id))


@pytest.mark.parametrize("name", NAMES)
def test_exactly_what_was_declared_leaves_a_client(both, name):
    simulation, declared, found = both(name)
    left = []
    for message, answer in found.grid.exchanged:
        kind = message.metadata.message_type
        content = answer.content
        records = {record.removesuffix(".arrays") for record in content}
        id = found._ids[answer.metadata.src_node_id]
        if kind == "query.who":
            assert records == {"who"} and unpack(content, "who").keys() == {"client", "informed"}
        elif kind == "query.tell":
            client = simulation.federation.client(id)
            stages = simulation.method.stages().items()
            told = {slot: stage.tell(simulation.federation, client) for slot, stage in stages}
            assert records == {"told"} and alike(unpack(content, "told"), told)
        elif kind == "query.measure":
            assert records == {"measured"}
            measured = unpack(content, "measured")
            assert measured.keys() == {"loss", "values"}
            assert (measured["loss"] is not None) == ("received" in simulation.method.reads)
            left.append((id, measured["values"]))
        elif kind == "train":
            assert records == {"values", "parameters", "metrics"}
            assert set(content["parameters"]) == set(simulation.params)  # nothing personal
            assert set(content["metrics"]) == {"num-examples", "train_loss", "train_acc"}
            left.append((id, unpack(content, "values")))
        else:
            kinds = ["test"] * simulation.has_global
            kinds += ["personal"] * (simulation.method.personal is not None)
            scores = {f"{kind}_{score}" for kind in kinds for score in ("loss", "acc", "f1")}
            assert records == {"scores"} and set(content["scores"]) == scores

    def things(pairs):
        return sorted(((id, k) for id, values in pairs for k in values), key=str)

    def sums(pairs):
        return sorted((id, k, count_bytes(v)) for id, values in pairs for k, v in values.items())

    assert things(left) == things(declared) and sums(left) == sums(declared)


@pytest.mark.parametrize("name", NAMES)
def test_the_messages_are_as_large_as_the_simulation_says(both, name):
    simulation, _, found = both(name)
    once = simulation._once()
    informed = set()
    for message, _ in found.grid.exchanged:
        if "known" in message.content:
            assert count_bytes(unpack(message.content, "known")) * 6 == simulation._before[1]
            assert message.metadata.dst_node_id not in informed  # everybody hears it once
            informed.add(message.metadata.dst_node_id)
    assert len(informed) == (6 if simulation._before[1] else 0)
    for r in simulation.records:
        up, down = counted(found.grid.exchanged, r.round)
        if r.round == 1:  # announced to everybody; an index was made before all of this
            down += once.down
            up += once.up - simulation._before[0]
        assert (up, down) == (r.bytes_up, r.bytes_down)


def test_a_client_holds_its_own_samples_and_the_server_none(images):
    held = {}

    def partition(context):
        id = context.node_config["partition-id"]
        held[id] = images.only(id)
        return held[id]

    method, model = methods.get("fedavg"), model_for("fedavg", images)
    found = flower.run_local(method, images, model, 1, partition=partition)
    server = found.server.federation
    assert len(server.x) == len(server.y) == 0 and all(len(c.train) == 0 for c in server.clients)
    for id, own in held.items():
        client = images.client(id)
        assert len(own) == 1 and len(own.x) == len(client.train) + len(client.test) == 24
        for part in ("train", "test"):
            index = getattr(own.clients[0], part)
            assert torch.equal(own.x[index], images.x[getattr(client, part)])
    assert same(found.params, run(method, images, 1, model))


def test_a_roster_and_a_client_can_be_kept(images, tmp_path):
    from types import SimpleNamespace

    flower.deal(images, tmp_path)
    context = SimpleNamespace(node_config={"partition-id": 3}, run_config={"data": str(tmp_path)})
    own, roster = flower.partition_of(context), flower.roster_of(context)
    assert own.fingerprint == images.only(3).fingerprint
    assert len(roster) == 6 and len(roster.x) == 0 and roster.input_shape == (3, 8, 8)
    assert [c.type for c in roster.clients] == [c.type for c in images.clients]
    with pytest.raises(FedbookError, match="no folder with the data"):
        flower.roster_of(SimpleNamespace(node_config={}, run_config={}))


# -- what goes wrong -------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Without(Uniform):
    """Everybody but one client, in one round."""

    who: int = 2
    when: int = 2

    def __call__(self, state, federation, round, rng):
        chosen, state = super().__call__(state, federation, round, rng)
        return [id for id in chosen if not (id == self.who and round == self.when)], state


class Shaky(flower.LocalGrid):
    """One client is away in round 2 and comes back as a new node that remembers nothing."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        t = {m.metadata.group_id for m in messages}
        if t == {"2"}:
            self.down = {2}
        return super().send_and_receive(messages, timeout=timeout)

    def get_node_ids(self):
        if self.down:
            self.down = set()
            self.connect(2)
        return super().get_node_ids()


def grid_of(kind, federation, method, model, **node_config):
    def own(context):
        return federation.only(context.node_config["partition-id"])

    app = flower.client_app(method, model, own)
    return kind(app, [c.id for c in federation.clients], node_config)


@pytest.mark.parametrize("name", ["ditto", "scaffold", "fediir", "grp_fed"])
def test_a_round_without_a_client_is_one_in_which_it_was_not_drawn(images, name, tmp_path):
    method, model = methods.get(name), model_for(name, images)
    expected = run(method.replace(sample=Without()), images, 4, model)
    grid = grid_of(Shaky, images, method, model, memory=str(tmp_path))
    found = flower.run_local(method, images, model, 4, grid=grid)
    assert same(expected, found.params)
    assert [r.log.get("missing") for r in found.records] == [None, [2], None, None]
    assert found.records[1].participants == [0, 1, 3, 4, 5]
    assert sum(found.records[1].weights) == pytest.approx(1)
    assert alike(expected.memory[2], remembered(grid, 2))  # what it knew before it was away


def test_without_its_folder_a_restarted_client_begins_anew(images):
    method, model = methods.get("ditto"), model_for("ditto", images)
    found = flower.run_local(method, images, model, 4, grid=grid_of(Shaky, images, method, model))
    expected = run(method.replace(sample=Without()), images, 4, model)
    assert same(expected, found.params)  # the global model does not depend on it
    assert not alike(expected.memory[2], remembered(found.grid, 2))


class Dying(flower.LocalGrid):
    """The server dies in round 3, when half of the clients have trained."""

    lives = 1

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        late = [m.metadata.group_id == "3" and m.metadata.message_type == "train" for m in messages]
        if messages and all(late) and self.lives:
            super().send_and_receive(messages[:3], timeout=timeout)
            self.lives -= 1
            raise KeyboardInterrupt
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.parametrize("name", ["scaffold", "fediir", "grp_fed", "fedmix", "pfedhn"])
def test_a_run_goes_on_from_its_last_finished_round(images, name, tmp_path):
    method, model = methods.get(name), model_for(name, images)
    grid = grid_of(Dying, images, method, model)
    with pytest.raises(KeyboardInterrupt):
        flower.run_local(method, images, model, 4, grid=grid, checkpoint=tmp_path)
    found = flower.run_local(method, images, model, 4, grid=grid, checkpoint=tmp_path)
    expected = run(method, images, 4, model)
    assert same(expected, found.params) and len(found.records) == 4
    assert [r.train_loss for r in expected.records] == [r.train_loss for r in found.records]
    for c in images.clients:
        assert alike(expected.memory[c.id], remembered(grid, c.id))


def test_fedgcr_goes_on_too(images, tmp_path):
    """Each client's own network makes its features, a few images at a time: equal to rounding."""
    method, model = methods.get("fedgcr"), model_for("fedgcr", images)
    grid = grid_of(Dying, images, method, model)
    with pytest.raises(KeyboardInterrupt):
        flower.run_local(method, images, model, 4, grid=grid, checkpoint=tmp_path)
    found = flower.run_local(method, images, model, 4, grid=grid, checkpoint=tmp_path)
    assert near(run(method, images, 4, model), found.params)


class Deaf(flower.LocalGrid):
    """A client trains in round 2, and its answer is lost."""

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        lost = []
        for m in replies:
            about = m.metadata
            train = about.message_type == "train" and about.group_id == "2"
            if not (train and self._clients[about.src_node_id] == 2):
                lost.append(m)
        return lost


@pytest.mark.parametrize("name", ["scaffold", "grp_fed"])
def test_what_was_not_counted_is_not_remembered(images, name):
    method, model = methods.get(name), model_for(name, images)
    grid = grid_of(Deaf, images, method, model)
    found = flower.run_local(method, images, model, 4, grid=grid)
    expected = run(method.replace(sample=Without()), images, 4, model)
    assert same(expected, found.params)
    assert alike(expected.memory[2], remembered(grid, 2))


def test_a_few_at_a_time_are_the_same(images):
    method, model = methods.get("scaffold"), model_for("scaffold", images)
    grid = grid_of(flower.LocalGrid, images, method, model)
    settings = {"rounds": 2, "timeout": 0.0, "at_once": 2}
    few = flower.FedbookStrategy(method, images.roster(), model, **settings).run(grid)
    assert same(few.params, run(method, images, 2, model))


class Slow:
    """A grid whose answers come one by one, the last never."""

    def push_messages(self, messages):
        self.ready = list(messages)[:-1]
        return list(messages)

    def pull_messages(self, message_ids):
        assert set(self.ready) <= set(message_ids)  # nobody is asked for what has come
        came = [self.ready.pop(0)] if self.ready else []
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=m)) for m in came]


def test_answers_are_looked_for_until_the_time_is_over():
    began = time.monotonic()
    came = Often(Slow()).send_and_receive("abcdef", timeout=0.4)
    assert [m.metadata.reply_to_message_id for m in came] == list("abcde")
    assert 0.4 <= time.monotonic() - began < 3


def test_another_run_in_the_same_folder_is_refused(toy, tmp_path):
    flower.run_local(methods.get("fedavg", **LOCAL), toy, mlp(toy), 1, checkpoint=tmp_path)
    with pytest.raises(FedbookError, match="belongs to another run: its method"):
        other = methods.get("fedprox", **LOCAL)
        flower.run_local(other, toy, mlp(toy), 2, checkpoint=tmp_path)


class Silent(flower.LocalGrid):
    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self.down = {0, 1, 2, 3}
        return super().send_and_receive(messages, timeout=timeout)


def test_what_cannot_go_on_says_why(toy, images):
    method, model = methods.get("fedavg", **LOCAL), mlp(toy)
    with pytest.raises(FedbookError, match="nobody who was asked answered in round 1"):
        flower.run_local(method, toy, model, 1, grid=grid_of(Silent, toy, method, model))
    with pytest.raises(FedbookError, match="no client came"):
        app = flower.client_app(method, model)
        flower.run_local(method, toy, model, 1, grid=flower.LocalGrid(app, []))
    with pytest.raises(FedbookError, match="was given the samples of"):
        flower.run_local(method, toy, model, 1, partition=lambda context: toy)
    mixed, cnn = methods.get("fedmix"), model_for("fedmix", images)
    grid = grid_of(flower.LocalGrid, images, mixed, cnn)
    grid.down = {4}
    with pytest.raises(FedbookError, match=r"from everybody, and clients \[4\] are missing"):
        flower.run_local(mixed, images, cnn, 1, grid=grid)
    with pytest.raises(FedbookError, match="an index is made from samples"):
        flower.run_local(methods.get("client2vec"), images, cnn, 1)


def test_a_node_that_is_nobody_on_the_roster_is_left_out(toy):
    method, model = methods.get("fedavg", **LOCAL), mlp(toy)
    grid = grid_of(flower.LocalGrid, toy, method, model)
    grid.connect(17)
    found = flower.run_local(method, toy, model, 2, grid=grid)
    assert same(found.params, run(method, toy, 2, model))


def test_only_rounds_that_are_due_are_tested_and_clients_are_asked_once_who_they_are(toy):
    method = methods.get("fedavg", **LOCAL)
    found = flower.run_local(method, toy, mlp(toy), 3, evaluate_every=2)
    assert [r.test_acc is not None for r in found.records] == [False, True, True]
    kinds = [message.metadata.message_type for message, _ in found.grid.exchanged]
    assert kinds.count("query.who") == 4 and kinds.count("train") == 12
    assert kinds.count("evaluate") == 8 and len(kinds) == 24


def test_a_node_that_went_and_came_back_is_asked_again_and_given_time(toy):
    """One that is listed but silent may be dead: it is not waited for as long."""
    asked = []

    class Shaky(flower.LocalGrid):
        meetings = 0
        away = ()

        def get_node_ids(self):
            self.meetings += 1
            return [n for n, c in self._clients.items() if c != 1 or self.meetings not in self.away]

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            kinds = [m.metadata.message_type for m in messages]
            asked.extend([timeout] * kinds.count("query.who"))
            self.down = {1} if "train" in kinds and self.meetings == 2 else set()  # in round 2
            return super().send_and_receive(messages, timeout=timeout)

    method, model = methods.get("fedavg", **LOCAL), mlp(toy)
    missing = []
    for away in ((), (3,)):
        grid = Shaky(flower.client_app(method, model, lambda c: toy.only(client_id(c))), range(4))
        grid.away = away
        run = flower.FedbookStrategy(method, toy.roster(), model, rounds=4, timeout=500).run(grid)
        missing.append([r.log.get("missing") for r in run.records])
    assert asked == [500.0] * 4 + [PATIENCE] + [500.0] * 4 + [500.0]
    assert missing == [[None, [1], None, None], [None, [1], [1], None]]


def test_messages_can_be_written_outside_of_a_run_of_flower(toy):
    """The one private thing of Flower that is used here: the identity of the task that writes."""
    grid = flower.LocalGrid(flower.client_app(methods.get("fedavg"), mlp(toy)), [0])
    message = grid.create_message(grid.state(0), "query.who", 1000, "1")
    assert isinstance(message, Message) and message.metadata.dst_node_id == 1000


def test_without_flower_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    for name in [n for n in sys.modules if n.startswith("fedbook.flower")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FedbookError, match=r"pip install 'fedbook\[flower\]'"):
        importlib.import_module("fedbook.flower")
