"""pFedHN: the hypernetwork's step against autograd, what it is when it is the identity, and who is
tested with what."""

import copy
import dataclasses

import pytest
import torch
from helpers import only, same, vit
from test_fgpt import LOCAL
from torch import nn

from fedbook import FedbookError, methods, models, simulate
from fedbook.measures import usual
from fedbook.methods.pfedhn import HyperNetwork, flatten, shape
from fedbook.rounds import Report, evaluate

PLAIN = {"server_momentum": 0.0, "server_decay": 0.0, "clip": 1e9}


def build(federation, **options):
    return models.build(
        "vpt",
        federation,
        seed=3,
        backbone=vit(),
        **({"prompts": 2, "extra": 1, "layer": 2} | options),
    )


def start(federation, rounds=1, model=None, **options):
    method = methods.get("pfedhn", **({"width": 9} | LOCAL | options))
    return simulate(
        method, federation, model or build(federation), rounds, device="cpu", quiet=True
    )


def sequential(stage, phi):
    """The same H of torch's own layers."""
    layers = []
    for i in range(stage.depth + 2):
        layer = nn.Linear(*reversed(phi[f"{i}.weight"].shape))
        layer.weight.data, layer.bias.data = phi[f"{i}.weight"].clone(), phi[f"{i}.bias"].clone()
        layers += [layer] if i in (0, stage.depth + 1) else [nn.ReLU(), layer]
    return nn.Sequential(*layers)


def reports(state, ids, seed=0):
    g = torch.Generator().manual_seed(seed)
    sizes = state["shapes"]
    total = sum(torch.Size(s).numel() for s in sizes.values())
    found = []
    for i in ids:
        upload = shape(torch.randn(total, generator=g), sizes)
        found.append(Report(id=i, size=10, values={"upload": upload}))
    return found


# -- the server's step -----------------------------------------------------------------------------
@pytest.mark.parametrize("clip", [1e9, 0.5])
def test_the_step_is_the_gradient_of_theta_times_d(images, clip):
    model = build(images)
    stage = HyperNetwork(
        width=9, depth=2, lr=0.7, embedding_lr=0.3, momentum=0.0, weight_decay=0.0, clip=clip
    )
    state = stage.init(images, model)
    sent = reports(state, (1, 4))
    _, new = stage(state, {}, {}, sent)

    H, v = sequential(stage, state["phi"]), state["v"][[1, 4]].clone().requires_grad_()
    theta = H(v)
    D = theta.detach() - torch.stack([flatten(r["upload"], list(state["shapes"])) for r in sent])
    ((theta * D).sum() / 2).backward()
    gradients = [p.grad for p in H.parameters()] + [2 * v.grad]
    factor = min(1.0, clip / float(torch.cat([g.flatten() for g in gradients]).norm()))
    for (n, p), g in zip(state["phi"].items(), gradients):
        assert torch.allclose(new["phi"][n], p - 0.7 * factor * g, atol=1e-5), n
    assert torch.allclose(
        new["v"][[1, 4]], state["v"][[1, 4]] - 0.3 * factor * gradients[-1], atol=1e-5
    )
    others = [0, 2, 3, 5]
    assert torch.equal(new["v"][others], state["v"][others]) and factor == (
        1.0 if clip > 1 else pytest.approx(factor)
    )


def test_momentum_and_decay_are_those_of_sgd(images):
    stage = HyperNetwork(width=9, depth=1, lr=0.1, momentum=0.9, weight_decay=0.01)
    state = stage.init(images, build(images))
    H = sequential(stage, state["phi"])
    v = [nn.Parameter(row.clone()) for row in state["v"]]
    optimizer = torch.optim.SGD([*H.parameters(), *v], lr=0.1, momentum=0.9, weight_decay=0.01)
    for t, ids in enumerate(((0, 3), (3, 5))):
        sent = reports(state, ids, t)
        _, state = stage(state, {}, {}, sent)
        theta = H(torch.stack([v[i] for i in ids]))
        D = theta.detach() - torch.stack(
            [flatten(r["upload"], list(state["shapes"])) for r in sent]
        )
        optimizer.zero_grad()
        (theta * D).sum().backward()
        for p in H.parameters():
            p.grad /= 2
        nn.utils.clip_grad_norm_([p for p in (*H.parameters(), *v) if p.grad is not None], 50.0)
        optimizer.step()
    assert all(
        torch.allclose(a, b, atol=1e-5) for a, b in zip(state["phi"].values(), H.parameters())
    )
    assert torch.allclose(state["v"], torch.stack([p.detach() for p in v]), atol=1e-5)


def test_clients_that_do_not_move_leave_everything(images):
    sim = start(images, 2, lr=0.0, **PLAIN)
    before = copy.deepcopy(sim.state["update"])
    sim.run()
    after = sim.state["update"]
    assert torch.allclose(after["v"], before["v"], atol=1e-6)
    assert all(torch.allclose(after["phi"][n], p, atol=1e-6) for n, p in before["phi"].items())


def test_an_identity_is_every_client_for_itself(toy):
    """theta_i = v_i, phi fixed, rate 1: v_i becomes theta_i', and two rounds are two rounds of
    local training alone.
    """
    local = {**LOCAL, "weight_decay": 0.0, "lr": 0.05}
    model = models.build("linear", toy, seed=2)
    sizes = {n: p.numel() for n, p in model.named_parameters()}
    total, first = sum(sizes.values()), copy.deepcopy(model)
    options = {
        "generate": ("*",),
        "embedding": total,
        "width": total,
        "depth": 0,
        "server_lr": 0.0,
        "embedding_lr": 1.0,
    }
    sim = start(toy, 2, model, **{**local, **options, **PLAIN})
    state = sim.state["update"]
    for i in (0, 1):
        state["phi"][f"{i}.weight"], state["phi"][f"{i}.bias"] = (
            torch.eye(total),
            torch.zeros(total),
        )
    state["v"] = flatten({n: p.detach() for n, p in first.named_parameters()}, list(sizes)).repeat(
        4, 1
    )
    sim.run()
    for i in range(4):
        alone = simulate(
            methods.get("fedavg", **local),
            only(toy, i),
            copy.deepcopy(first),
            2,
            device="cpu",
            quiet=True,
        )
        mine = sim.method.update.download(sim.state["update"], sim.params, i)
        assert all(torch.allclose(mine[n], p, atol=1e-5) for n, p in alone.run().params.items())


# -- who has what ----------------------------------------------------------------------------------
def test_everybody_starts_near_the_models_prompts_and_nobody_at_the_same_ones(images):
    sim = start(images)
    state, update = sim.state["update"], sim.method.update
    assert torch.equal(state["phi"]["4.bias"], flatten(sim.params, ["prompts.1", "prompts.2"]))
    assert state["v"].shape == (6, 1 + 6 // 4) and list(state["shapes"]) == [
        "prompts.1",
        "prompts.2",
    ]
    got = [update.download(state, sim.params, i) for i in range(6)]
    assert all(g["prompts.1"].shape == (2, 12) and g["prompts.2"].shape == (1, 12) for g in got)
    assert not torch.allclose(got[0]["prompts.1"], got[1]["prompts.1"], atol=1e-4)
    assert all(torch.equal(got[0][n], sim.params[n]) for n in ("head.weight", "head.bias"))


def test_prompts_come_from_the_server_and_the_head_is_averaged(images):
    """Each client's turn by hand: its own prompts and the shared head, trained alone."""
    two = dataclasses.replace(
        images,
        clients=(
            images.clients[0],
            dataclasses.replace(images.clients[5], train=images.clients[5].train[:8]),
        ),
    )
    sim = start(two, server_lr=10.0, **PLAIN)
    first, state, update = copy.deepcopy(sim.model), sim.state["update"], sim.method.update
    expected, moved = 0, []
    for c, share in zip(two.clients, (16 / 24, 8 / 24)):
        model = copy.deepcopy(first)
        received = update.download(state, sim.params, c.id)
        model.load_state_dict(received, strict=False)
        method = methods.get("pt_fedavg", **LOCAL)
        after = (
            simulate(
                method, dataclasses.replace(two, clients=(c,)), model, 1, device="cpu", quiet=True
            )
            .run()
            .params
        )
        expected = expected + share * after["head.weight"]
        moved.append(Report(id=c.id, size=0, values={"upload": after}))
    sim.run()
    assert torch.allclose(sim.params["head.weight"], expected, atol=1e-6)
    _, new = update(state, {}, {}, moved)
    assert torch.allclose(sim.state["update"]["v"], new["v"], atol=1e-6)
    assert not torch.allclose(new["v"], state["v"], atol=1e-4)


def test_clients_are_tested_with_their_own_prompts_only(images):
    sim = start(images, 2, participation=3).run()
    last = sim.records[-1]
    assert last.test_acc is None and len(last.personal_acc) == 6
    for i, c in enumerate(images.clients):
        model = sim.personal_model(c)
        mine = sim.method.update.download(sim.state["update"], sim.params, c.id)
        assert torch.equal(model.prompts["1"], mine["prompts.1"]) and torch.equal(
            model.head.weight, mine["head.weight"]
        )
        assert evaluate(model, images, [c], device="cpu").loss[0] == pytest.approx(
            last.personal_loss[i], abs=1e-6
        )
    assert usual(sim, 1)["avg_client"] == pytest.approx(sum(last.personal_acc) / 6)


def test_other_federations_get_the_mean_client(images):
    seen, unseen = images.split_clients(2, seed=0)
    sim = start(seen, 2).run()
    state = sim.state["update"]
    mean = sequential(sim.method.update, state["phi"])(state["v"].mean(0)).detach()
    assert torch.allclose(flatten(sim.params, ["prompts.1", "prompts.2"]), mean, atol=1e-5)
    assert torch.equal(sim.model.prompts["1"], sim.params["prompts.1"])
    assert len(evaluate(sim.model, unseen, device="cpu").acc) == 2


def test_as_much_travels_as_with_pt_fedavg(images):
    sim = start(images, 1, participation=2).run()
    size = 4 * (3 * 12 + 12 * 4 + 4)
    assert sim.records[0].bytes_down == 2 * size and sim.records[0].bytes_up == 2 * (size + 8)


def test_a_resumed_run_ends_with_the_same_bits(images, tmp_path):
    options = {"width": 9, "participation": 3} | LOCAL
    straight = start(images, 4, **options).run()
    for rounds in (2, 4):
        again = simulate(
            methods.get("pfedhn", **options),
            images,
            build(images),
            rounds,
            device="cpu",
            quiet=True,
            checkpoint=tmp_path / "run",
        ).run()
    assert same(straight, again)
    assert torch.equal(straight.state["update"]["v"], again.state["update"]["v"])
    assert straight.records[-1].personal_loss == again.records[-1].personal_loss


def test_a_model_without_prompts_is_refused(toy):
    with pytest.raises(FedbookError, match="no trained parameter of Classifier matches"):
        start(toy, model=models.build("mlp", toy))


def test_training_learns(images):
    sim = start(images, 6, epochs=2, weight_decay=1e-5, server_lr=0.1).run()
    assert sum(sim.records[-1].personal_loss) < 0.97 * sum(sim.records[0].personal_loss)
