"""DSA-IGN: its shape as printed, the position code it needs, the four losses by hand, and torch's
layer as witness."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbook import FedbookError
from fedbook.models.dsa_ign import (
    DSAIGN,
    EncoderLayer,
    FeedForward,
    diversity_loss,
    losses,
    orthogonality_loss,
    reconstruction_loss,
    sample_index,
    similarity_loss,
    train,
)


def net(seed=0, **options):
    torch.manual_seed(seed)
    return DSAIGN(**{"ffn": 64, **options})


def pairs(n=24, dim=512, seed=0):
    g = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, dim, generator=g), dim=1), F.normalize(
        torch.randn(n, dim, generator=g), dim=1
    )


# -- the network -----------------------------------------------------------------------------------
def test_it_has_the_printed_size():
    """Three layers of width 32 with feed-forward 2048, and a matrix of 1024 x 512."""
    model = net(ffn=2048)
    layer = 3 * 32 * 32 + 3 * 32 + 32 * 32 + 32 + 2 * 32 * 2048 + 2048 + 32 + 4 * 32
    assert sum(p.numel() for p in model.parameters()) == 3 * layer + 1024 * 512 + 32 * 32
    assert model.projection.weight.shape == (512, 1024) and model.projection.bias is None
    assert len(model.encoder) == 3 and all(
        l.norm_first and l.heads == 8 and l.p == 0 for l in model.encoder
    )
    z, u, rebuilt = model(pairs(5)[0])
    assert z.shape == u.shape == rebuilt.shape == (5, 512)
    mlp = net(projection="mlp")
    assert [type(m) for m in mlp.projection] == [nn.Linear, nn.ReLU, nn.Linear] and mlp(
        pairs(2)[0]
    )[2].shape == (
        2,
        512,
    )


def test_the_reshape_goes_there_and_back():
    """With an encoder that does nothing, z and u are D, and patch p + 16 is patch p."""
    model, (D, _) = net(position=False), pairs(3)
    seen = []

    class Nothing(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x

    model.encoder = Nothing()
    z, u = model.decompose(D)
    assert torch.equal(z, D) and torch.equal(u, D)
    assert seen[0].shape == (3, 32, 32) and torch.equal(seen[0][:, :16], seen[0][:, 16:])
    assert torch.equal(seen[0][1, 2], D[1, 64:96])


def test_without_a_position_code_z_is_u():
    D, _ = pairs(6)
    for seed in range(3):
        z, u = net(seed, position=False).eval().decompose(D)
        assert (z - u).abs().max() < 1e-5
        z, u = net(seed).eval().decompose(D)
        assert (z - u).abs().max() > 1e-2
    model = net(position=False)
    train(model, *pairs(16), epochs=2, batch_size=8)
    z, u = model.eval().decompose(D)
    assert not model.position.any() and (z - u).abs().max() < 1e-4


def test_samples_do_not_see_each_other():
    model, (D, _) = net().eval(), pairs(7)
    together = model.decompose(D)[1]
    assert torch.allclose(together[3:4], model.decompose(D[3:4])[1], atol=1e-6)
    assert torch.allclose(sample_index(model, D, batch_size=2), together, atol=1e-6)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_is_torchs(norm_first):
    torch.manual_seed(1)
    ours, torchs = (
        EncoderLayer(32, 8, 48, 0.0, norm_first),
        nn.TransformerEncoderLayer(32, 8, 48, 0.0, batch_first=True, norm_first=norm_first),
    )
    torchs.load_state_dict(ours.state_dict())
    x, y = (torch.randn(9, 32, 32).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    a, b = ours(x), torchs(y)
    assert torch.allclose(a, b, atol=1e-5)
    target = torch.randn_like(a)
    (a * target).sum().backward()
    (b * target).sum().backward()
    assert torch.allclose(x.grad, y.grad, atol=1e-4)
    for (name, p), q in zip(ours.named_parameters(), torchs.parameters()):
        assert torch.allclose(p.grad, q.grad, atol=1e-3), name


def test_the_feed_forward_is_exact_over_its_chunks():
    torch.manual_seed(0)
    x = torch.randn(2 * FeedForward.CHUNK + 5, 6, dtype=torch.float64, requires_grad=True)
    A, a, B, b = (
        torch.randn(s, dtype=torch.float64, requires_grad=True)
        for s in ((10, 6), (10,), (6, 10), (6,))
    )
    inputs = (x, A, a, B, b)
    slow, fast = F.linear(F.linear(x, A, a).relu(), B, b), FeedForward.apply(*inputs)
    assert torch.allclose(slow, fast, atol=1e-12)
    g = torch.randn_like(slow)
    for p, q in zip(torch.autograd.grad(slow, inputs, g), torch.autograd.grad(fast, inputs, g)):
        assert torch.allclose(p, q, atol=1e-10)


def test_dropout_only_when_asked():
    D, _ = pairs(4)
    quiet, noisy = net().train(), net(dropout=0.5).train()
    assert torch.equal(quiet.decompose(D)[0], quiet.decompose(D)[0])
    assert not torch.equal(noisy.decompose(D)[0], noisy.decompose(D)[0])
    assert torch.allclose(noisy.eval().decompose(D)[0], quiet.decompose(D)[0], atol=1e-5)


def test_shapes_that_do_not_fit_are_refused():
    for bad in ({"width": 48}, {"heads": 5}, {"projection": "deep"}):
        with pytest.raises(FedbookError):
            DSAIGN(**bad)


# -- the losses ------------------------------------------------------------------------------------
def test_losses_by_hand():
    z, u = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 5.0], [1.0, 1.0]])
    L = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    assert similarity_loss(z, L).item() == pytest.approx((0 + 2) / 2)
    half = math.sqrt(0.5)  # |cos| of z_1, z_2 with u_1, u_2
    assert orthogonality_loss(z, u).item() == pytest.approx((0 + half + 1 + half) / 4)
    assert orthogonality_loss(z, u, "sum").item() == pytest.approx(0 + 3 + 10 + 2)
    assert diversity_loss(u).item() == pytest.approx(half)  # log exp of the one cosine
    assert reconstruction_loss(z, u).item() == pytest.approx((9 + 25 + 1 + 1) / 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_losses_keep_their_bounds(B, seed):
    g = torch.Generator().manual_seed(seed)
    z, u, L = (torch.randn(B, 8, generator=g, dtype=torch.float64) for _ in range(3))
    assert 0 <= similarity_loss(z, L) <= 2
    assert 0 <= orthogonality_loss(z, u) <= 1
    assert math.log(B - 1) - 1 <= diversity_loss(u) <= math.log(B - 1) + 1
    same = u[:1].expand(B, -1)
    assert diversity_loss(same).item() == pytest.approx(math.log(B - 1) + 1, abs=1e-9)
    assert diversity_loss(u).item() < math.log(B - 1) + 1
    apart = torch.zeros(B, 8, dtype=torch.float64)
    apart[:, :4], z = torch.rand(B, 4, generator=g, dtype=torch.float64), z.clone()
    z[:, :4] = 0  # orthogonal supports
    assert orthogonality_loss(z, apart) == 0 == orthogonality_loss(z, apart, "sum")


def test_a_batch_of_one_has_no_diversity_but_a_gradient():
    u = torch.randn(1, 8, requires_grad=True)
    diversity_loss(u).backward()
    assert diversity_loss(u).item() == 0 and not u.grad.any()


def test_each_loss_can_be_left_out():
    model, (D, L) = net(), pairs(6)
    full = losses(model, D, L)
    assert list(full) == ["div", "sim", "orth", "recon"]
    for name in full:
        assert list(losses(model, D, L, (name,))) == [n for n in full if n != name]
    assert losses(model, D, L, orth="sum")["orth"] > full["orth"]
    with pytest.raises(FedbookError, match="unknown losses"):
        losses(model, D, L, ("orthogonal",))


# -- training --------------------------------------------------------------------------------------
def test_training_lowers_every_loss_and_is_repeatable():
    runs = []
    for _ in range(2):
        model = net()
        runs.append(train(model, *pairs(32), epochs=12, batch_size=16))
    assert runs[0] == runs[1] and len(runs[0]) == 12
    first, last = runs[0][0], runs[0][-1]
    assert all(last[n] < first[n] for n in ("sim", "recon", "div"))
    assert last["div"] < math.log(15) + 0.5  # not collapsed
    assert "div" not in train(net(), *pairs(8), epochs=1, omit=("div",))[0]


def test_what_cannot_be_trained_is_refused():
    D, L = pairs(8)
    with pytest.raises(FedbookError, match="label"):
        train(net(), D, L[:3])
    D[2, 5] = float("nan")
    with pytest.raises(FedbookError, match="finite"):
        train(net(), D, L)
