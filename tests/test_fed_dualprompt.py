"""Fed-DualPrompt: the pull on keys by hand, which keys move, and what FGPT is without it."""

import copy
import dataclasses

import pytest
import torch
from helpers import only, same
from test_fgpt import build, counted, state
from test_fgpt import run as run_method

from fedbook import FedbookError
from fedbook.methods.fed_dualprompt import KeyPull
from fedbook.rounds import Batch, Local


def run(federation, rounds=1, model=None, name="fed_dualprompt", **options):
    return run_method(
        federation, rounds, model or build(federation, learn_keys=True), name, **options
    )


def turn(federation, model, term):
    known = {k: v.clone() for k, v in model.precompute(federation).items()}
    return Local.of(federation, model, terms=(term,), precomputed=known)


def test_the_pull_by_hand(images):
    """Queries (3, 4) and (0, 2) in the plane of two keys: cosines 0.8 and 1 with the second,
    whatever its length.
    """
    model = build(images, groups=2, learn_keys=True, centre=False, keys=torch.eye(12)[:2] * 5)
    term = KeyPull(0.5)
    local = turn(images, model, term)
    local.precomputed["cls"][:2] = 0
    local.precomputed["cls"][0, :2], local.precomputed["cls"][1, :2] = (
        torch.tensor([3.0, 4.0]),
        torch.tensor([0.0, 2.0]),
    )
    loss = term(local, Batch(local, torch.tensor([0, 1])), {}, {})
    assert loss.item() == pytest.approx(-0.5 * (0.8 + 1) / 2)
    loss.backward()
    assert torch.equal(model.keys.grad[0], torch.zeros(12))  # nobody selected it
    # d cos / d b = (q - cos b) / |b| for unit q and b: (0.6, 0) / 5, halved by the mean and by the
    # weight
    assert torch.allclose(
        model.keys.grad[1, :2], torch.tensor([-0.5 * 0.6 / 5 / 2, 0.0]), atol=1e-7
    )


def test_without_the_pull_keys_stay_and_the_rest_is_pt_fedavg(images):
    a = run(images, 2, pull=0.0)
    b = run(images, 2, build(images), "pt_fedavg")
    assert torch.allclose(a.model.keys, build(images).keys, atol=1e-6)
    assert all(torch.allclose(a.params[n], p, atol=1e-7) for n, p in b.params.items())
    assert set(a.params) - set(b.params) == {"keys"}


def test_keys_that_do_not_learn_select_as_fgpt_does(images):
    learned, fixed = build(images, learn_keys=True), build(images)
    x = images.inputs(torch.arange(20))
    assert torch.equal(learned.eval()(x), fixed.eval()(x))
    a, b = (
        run(images, 2, learned, key_lr=0.0),
        run(images, 2, build(images, learn_keys=True), pull=0.0),
    )
    assert torch.allclose(a.model.keys, fixed.keys, atol=1e-6)
    assert all(torch.allclose(a.params[n], p, atol=1e-7) for n, p in b.params.items())


def test_keys_nobody_selects_stay_under_momentum_and_decay(images):
    model, alone = build(images, learn_keys=True), only(images, 3, 5)
    first, used = state(model)["keys"], counted(model, images, alone.clients[0]) > 0
    done = run(alone, 1, model, key_lr=1e-3, epochs=3, batch_size=2)
    assert ((done.params["keys"] != first).any(1) == used).all() and 0 < used.sum() < 6


def test_everything_is_averaged_by_size(images):
    both = dataclasses.replace(
        images,
        clients=(
            images.clients[0],
            dataclasses.replace(images.clients[4], train=images.clients[4].train[:6]),
        ),
    )
    model = build(both, learn_keys=True)
    alone = [run(only(both, i), model=copy.deepcopy(model)).params for i in (0, 1)]
    for n, p in run(both, model=model).params.items():
        assert torch.allclose(p, 16 / 22 * alone[0][n] + 6 / 22 * alone[1][n], atol=1e-6), n


def test_the_pull_draws_keys_to_their_images(images):
    model = build(images, learn_keys=True)
    q = model.precompute(images)["cls"][torch.cat([c.train for c in images.clients])]

    def nearest(model):
        return float(model.similarity(q).detach().amax(1).mean())

    before = nearest(model)
    assert nearest(run(images, 3, model).model) > before + 0.05


def test_a_resumed_run_ends_with_the_same_bits(images, tmp_path):
    straight = run(images, 4, participation=3)
    for rounds in (2, 4):
        again = run(images, rounds, participation=3, checkpoint=tmp_path / "run")
    assert same(straight, again)


def test_fixed_keys_are_refused(images):
    with pytest.raises(FedbookError, match="learn_keys=True"):
        run(images, model=build(images))


def test_training_learns(images):
    done = run(images, 6, epochs=2, weight_decay=1e-5)
    assert sum(done.records[-1].test_loss) < 0.97 * sum(done.records[0].test_loss)
