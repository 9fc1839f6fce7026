"""FedSAM, Harmo-FL and FedMix: steps, spectra and expansions, checked against what they are made
of."""

import dataclasses
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers import mlp, normed, only, resumed, run, same, vit
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import HybridEmbed
from torch import nn

from fedbook import FedbookError, Federation, methods, models
from fedbook.methods.fedmix import MeanMixup, Means
from fedbook.methods.harmofl import AmplitudeNorm, Normalised
from fedbook.methods.quirks import PublishedMixup
from fedbook.models.convnets import Classifier
from fedbook.rounds import Batch, Local, Objective, evaluate
from fedbook.rounds.params import count_bytes


def cnn(federation):
    return models.build("cnn", federation, seed=7, width=4, hidden=8)


# -- FedSAM ----------------------------------------------------------------------------------------
class TwoTensors(nn.Module):
    """w = (a, b); the data are ignored."""

    def __init__(self, a, b):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(a)), nn.Parameter(torch.tensor(b))
        self.head = nn.Identity()

    def embed(self, x):
        return x.new_zeros(len(x), 3) + 0 * (self.a + self.b)

    def forward(self, x):
        return self.head(self.embed(x))


@dataclasses.dataclass(frozen=True)
class Quadratic(Objective):
    """F(w) = (h a^2 + k b^2) / 2, noting every point it is asked about."""

    h: float = 2.0
    k: float = 6.0
    seen: list = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, local, batch, sent, memory):
        m = local.model
        self.seen.append((m.a.item(), m.b.item()))
        return (self.h * m.a**2 + self.k * m.b**2) / 2


def quadratic_round(toy, rho, lr=0.1, start=(2.0, 0.5), **curvature):
    objective = Quadratic(**curvature)
    method = methods.get("fedsam", rho=rho, lr=lr, batch_size=100).replace(objective=(objective,))
    done = run(method, only(toy, 0), 1, TwoTensors(*start))
    return (done.params["a"].item(), done.params["b"].item()), objective.seen


def test_sam_is_exact_on_a_quadratic(toy):
    """w = (2, 1/2): g = (4, 3), ||g|| = 5; at w + g/10 the gradient is (2 2.4, 6 0.8) = (4.8,
    4.8).
    """
    w, seen = quadratic_round(toy, rho=0.5)
    assert seen == [(2.0, 0.5), pytest.approx((2.4, 0.8))]
    assert w == pytest.approx((2 - 0.1 * 4.8, 0.5 - 0.1 * 4.8), abs=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.05, 3.0])
def test_the_perturbation_has_length_rho_over_all_tensors_and_is_undone(toy, rho):
    w, (at, near) = quadratic_round(toy, rho=rho, lr=0.0)
    assert sum((p - q) ** 2 for p, q in zip(at, near)) ** 0.5 == pytest.approx(rho, abs=1e-6)
    assert w == at == (2.0, 0.5)


def test_a_zero_gradient_perturbs_nothing(toy):
    w, seen = quadratic_round(toy, rho=0.5, start=(0.0, 0.0))
    assert w == (0, 0) and seen == [(0, 0), (0, 0)]


@pytest.mark.parametrize("model", [mlp, lambda federation: normed()])
@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "adamw", "lr": 0.01}, {"momentum": 0.9, "clip": 0.5}]
)
def test_fedsam_without_radius_is_fedavg_bit_for_bit(toy, model, options):
    a = run("fedavg", toy, 2, model(toy), epochs=2, **options)
    b = run("fedsam", toy, 2, model(toy), epochs=2, rho=0.0, **options)
    assert same(a, b) and a.records[-1].train_acc == b.records[-1].train_acc


def test_sam_counts_batchnorm_once_and_reads_it_at_w(toy):
    a = run("fedavg", toy, 1, normed(), lr=0.0)
    b = run("fedsam", toy, 1, normed(), lr=0.0, rho=1.0)
    assert same(a, b)
    assert b.params["features.2.num_batches_tracked"].item() == len(toy.clients[0].train) // 4


def test_a_step_of_sam_written_out(toy):
    """Cross-entropy through the loop: the second pass must not see what the first one cached."""
    got = run("fedsam", only(toy, 0), rho=0.7, lr=0.3, batch_size=100)
    model, index = mlp(toy), toy.clients[0].train

    def gradient():
        return torch.autograd.grad(
            F.cross_entropy(model(toy.inputs(index)), toy.y[index]), list(model.parameters())
        )

    g = gradient()
    norm = sum((t**2).sum() for t in g) ** 0.5
    start = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p, t in zip(model.parameters(), g):
            p += 0.7 * t / norm
    expected = [w - 0.3 * t for w, t in zip(start, gradient())]
    assert all(
        torch.allclose(got.params[n], e, atol=1e-6)
        for (n, _), e in zip(model.named_parameters(), expected)
    )


# -- Harmo-FL --------------------------------------------------------------------------------------
def spectrum(x):
    return torch.fft.fft2(x)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 7, 9)])
@pytest.mark.parametrize("window", [None, 0.0, 0.2])
def test_own_amplitudes_change_nothing(shape, window):
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))
    alone = Federation.from_arrays([{"train": (x, [0]), "test": (x, [0])}])
    assert torch.allclose(AmplitudeNorm(alone, window)(x), x, atol=1e-5)


def test_phases_are_kept_and_amplitudes_become_the_shared_ones(images):
    norm, x = AmplitudeNorm(images), images.inputs(images.clients[2].test)
    before, after = spectrum(x), spectrum(norm(x))
    half = norm.A.shape[-1]
    assert torch.allclose(
        after[..., :half].abs(), norm.A.expand_as(after[..., :half]), rtol=1e-3, atol=1e-4
    )
    turned = (before * after.conj()).angle().abs()
    assert turned.max() < 1e-2 and (norm(x) - x).abs().max() > 0.05


def test_a_window_of_zero_changes_only_each_channels_mean(images):
    norm, x = AmplitudeNorm(images, window=0.0), images.inputs(images.clients[0].train)
    shift = norm(x) - x
    assert shift.flatten(2).std(-1).max() < 1e-5 and shift.abs().max() > 1e-3
    assert torch.allclose(
        norm(x).mean((-2, -1)), (norm.A[:, 0, 0] / 64).expand(len(x), 3), atol=1e-5
    )


def test_a_window_replaces_the_low_frequencies(images):
    """window 1/8 of 8 pixels: |frequency| <= 1 in both directions, 3 x 3 of the full spectrum."""
    norm, x = AmplitudeNorm(images, window=0.125), images.inputs(images.clients[0].train)
    changed = (spectrum(norm(x)).abs() - spectrum(x).abs()).abs().amax((0, 1)) > 1e-3
    low = torch.zeros(8, 8, dtype=torch.bool)
    low[torch.tensor([[0], [1], [7]]), torch.tensor([0, 1, 7])] = True
    assert torch.equal(changed, low)


def test_the_shared_amplitude_is_the_mean_of_the_clients_means():
    def client(value, n):
        x = torch.full((n, 1, 2, 2), value)
        return {"train": (x, [0] * n), "test": (x, [0] * n)}

    norm = AmplitudeNorm(Federation.from_arrays([client(0.2, 1), client(0.6, 9)]))
    assert norm.A[0, 0, 0].item() == pytest.approx(4 * 0.4)
    assert torch.allclose(norm(torch.full((1, 1, 2, 2), 0.9)), torch.full((1, 1, 2, 2), 0.4))


def test_harmofl_without_its_two_parts_is_fedavg_and_without_the_first_fedsam(images):
    model = cnn(images)
    fedavg = run("fedavg", images, 2, model)
    assert same(fedavg, run("harmofl", images, 2, model, alpha=0.0, amplitude=False))
    assert same(run("fedsam", images, 2, model), run("harmofl", images, 2, model, amplitude=False))
    both = run("harmofl", images, 2, model)
    assert not torch.equal(both.params["model.head.weight"], fedavg.params["head.weight"])


def test_harmofl_normalises_at_test_time_too(images):
    done = run("harmofl", images, 2)
    assert isinstance(done.model, Normalised)
    dark = dataclasses.replace(images, x=images.x // 3)  # a camera that sees a third of the light
    zero = run("harmofl", images, 2, window=0.0).model.eval()
    index = images.clients[0].test
    assert torch.allclose(
        zero.norm(images.inputs(index)).mean((-2, -1)),
        zero.norm(dark.inputs(index)).mean((-2, -1)),
        atol=1e-6,
    )
    inner, x = done.model.model, images.inputs(index)
    assert torch.allclose(done.model(x), inner(done.model.norm(x))) and not torch.allclose(
        done.model(x), inner(x)
    )
    loss = F.cross_entropy(inner(done.model.norm(x)), images.y[index]).item()
    assert evaluate(done.model, images, device="cpu").loss[0] == pytest.approx(loss, abs=1e-5)
    assert done.records[-1].test_loss[0] == pytest.approx(loss, abs=1e-5)


def test_amplitudes_are_sent_once_and_kept_features_are_of_normalised_images(images):
    done = run("harmofl", images, 2, models.build("linear_probe", images, backbone=vit()))
    one, two = done.records
    A = 6 * 4 * 3 * 8 * 5
    assert one.bytes_up - two.bytes_up == one.bytes_down - two.bytes_down == A
    assert set(done.params) == {"model.head.weight", "model.head.bias"}
    assert two.bytes_down == 6 * count_bytes(done.params)
    index = images.clients[1].train
    seen = done.model.norm(images.inputs(index))
    expected = done.model.model.frozen_cls(seen)
    assert torch.allclose(done.precomputed["cls"][index], expected, atol=1e-5)


def test_harmofl_needs_images(toy):
    with pytest.raises(FedbookError, match="images of shape"):
        run("harmofl", toy)
    run("harmofl", toy, amplitude=False)


# -- FedMix ----------------------------------------------------------------------------------------
def test_fedmix_mixes_behind_a_frozen_stem(images):
    """The stem sees every image and every mean once, whatever the number of steps."""
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 6, 2, 2)
    stem.num_features = 6
    embed = partial(HybridEmbed, backbone=stem, feature_size=4, feature_ratio=2)
    shape = dict(img_size=8, patch_size=1, embed_dim=12, depth=2, num_heads=2, num_classes=0)
    net = VisionTransformer(embed_layer=embed, **shape)
    seen: list[int] = []
    stem.register_forward_hook(lambda module, x, y: seen.append(len(y)))
    model = models.build("vpt", images, backbone=net)
    before = model.prompts["1"].detach().clone()
    done = run("fedmix", images, 2, model, epochs=2)
    assert sum(seen) == len(images.x) + 6 * (16 // 5)
    assert not torch.equal(before, done.params["prompts.1"])


def one_mean(x, y):
    """One mean, given."""
    return Means(x[None], y[None])


def smooth(federation):
    torch.manual_seed(1)
    return Classifier(nn.Sequential(nn.Linear(5, 6), nn.Tanh()), 6, 3).double()


def mixed(toy, lam, index, stage=MeanMixup):
    """(the model, the objective on these samples with one fixed mean, that mean)."""
    double = dataclasses.replace(toy, x=toy.x.double())
    model, g = smooth(toy), torch.Generator().manual_seed(2)
    xbar, ybar = (
        torch.randn(5, generator=g, dtype=torch.float64),
        torch.tensor([0.2, 0.5, 0.3]).double(),
    )
    model.fedmix = one_mean(xbar, ybar)
    term = stage(lam)
    local = Local.of(double, model, terms=(term,))
    return (
        model,
        term(local, Batch(local, index), {}, {}),
        (double.x[index], toy.y[index], xbar, ybar),
    )


def mixup(model, lam, x, y, xbar, ybar):
    logits = model((1 - lam) * x + lam * xbar)
    return (1 - lam) * F.cross_entropy(logits, y) + lam * F.cross_entropy(
        logits, ybar.expand_as(logits)
    )


def test_fedmix_is_mixup_to_first_order(toy):
    """Halving lambda quarters the distance, of the loss and of its gradient in the parameters."""
    index, gaps = toy.clients[1].train, []
    for lam in (0.02, 0.01, 0.005):
        model, loss, data = mixed(toy, lam, index)
        w = list(model.parameters())
        target = mixup(model, lam, *data)
        wanted, got = torch.autograd.grad(target, w), torch.autograd.grad(loss, w)
        gaps.append(
            (
                (loss - target).abs().item(),
                sum((a - b).abs().sum().item() for a, b in zip(wanted, got)),
            )
        )
    for big, small in zip(gaps, gaps[1:]):
        assert all(3.4 < b / s < 4.6 for b, s in zip(big, small))


def test_the_third_term_is_divided_by_the_batch_once(toy):
    """The loss of a batch is the mean of its samples' losses."""
    index = toy.clients[0].train[:4]
    _, together, _ = mixed(toy, 0.2, index)
    alone = [mixed(toy, 0.2, i[None])[1].item() for i in index]
    assert together.item() == pytest.approx(sum(alone) / 4, abs=1e-12)


def test_fedmix_as_coded_by_hand(toy):
    method = methods.get("fedmix", lam=0.2, mean_of=3, quirks=("fedmix_as_coded",))
    assert method.objective == (PublishedMixup(0.2, 3),)
    lam, index = 0.2, toy.clients[0].train[:4]
    model, got, (x, y, xbar, _) = mixed(toy, lam, index, PublishedMixup)
    x = ((1 - lam) * x).requires_grad_()
    ce = F.cross_entropy(model(x), y)
    (slope,) = torch.autograd.grad((1 - lam) * ce, x)  # already divided by 4
    assert got.item() == pytest.approx((ce + lam * (slope @ xbar).sum() / 4).item(), abs=1e-12)


def test_fedmix_without_mixing_is_fedavg_bit_for_bit(images):
    a = run("fedavg", images, 2, cnn(images), epochs=2)
    b = run("fedmix", images, 2, cnn(images), epochs=2, lam=0.0)
    assert same(a, b) and a.records[-1].train_acc == b.records[-1].train_acc


def test_means_cover_everybody_and_hide_single_samples(toy):
    stage = MeanMixup(mean_of=5)
    told = [stage.tell(toy, c) for c in toy.clients]
    means = Means(**stage.announce(toy, told))  # 8, 12, 20, 40 samples: 1, 2, 4 and 8 means
    assert (
        means.x.shape == (15, 5)
        and torch.allclose(means.y.sum(1), torch.ones(15))
        and (means.y >= 0).all()
    )
    index = toy.clients[0].train
    assert torch.allclose(means.x[0], toy.x[index].mean(0), atol=1e-6)
    assert torch.allclose(means.y[0], F.one_hot(toy.y[index], 3).float().mean(0))
    assert torch.allclose(means.x[7:].mean(0), toy.x[toy.clients[3].train].mean(0), atol=1e-5)
    assert not list(means.state_dict())


def test_means_are_sent_once_and_counted(images):
    plain, done = run("fedavg", images, 2), run("fedmix", images, 2)
    up = 6 * 3 * 4 * (3 * 8 * 8 + 4)  # 16 samples each: 3 means of image and label
    assert done.records[0].bytes_up == plain.records[0].bytes_up + up
    assert done.records[0].bytes_down == plain.records[0].bytes_down + 6 * up
    assert done.records[1].bytes_up == plain.records[1].bytes_up
    assert set(done.params) == set(plain.params)


@pytest.mark.parametrize("name", ["vpt", "linear_probe", "fedgc"])
def test_fedmix_sees_the_image_through_a_frozen_vit(images, name):
    """Attention must be differentiated twice, and cached features have no derivative in the
    image.
    """
    model = models.build(name, images, seed=3, backbone=vit())
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    done = run("fedmix", images, 1, model, lam=0.3)
    assert all(
        torch.isfinite(t).all() and not torch.equal(t, before[n]) for n, t in done.params.items()
    )
    assert max(done.records[0].train_acc.values()) > 0


def test_fedmix_refuses_what_cannot_be_averaged(toy):
    with pytest.raises(FedbookError, match="cannot be averaged"):
        run("fedmix", dataclasses.replace(toy, x=toy.x.long()))
    with pytest.raises(FedbookError, match="lam in"):
        methods.get("fedmix", lam=1.0)


# -- all three -------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedsam", "harmofl", "fedmix"])
def test_a_resumed_run_ends_with_the_same_bits(name, images, tmp_path):
    straight = run(name, images, 4, participation=3)
    again = resumed(name, images, tmp_path / "run", participation=3)
    assert same(straight, again)
    a, b = ([dataclasses.replace(r, seconds=0.0) for r in x.records] for x in (straight, again))
    assert a == b
    finished = resumed(name, images, tmp_path / "run", rounds=(4,), participation=3)
    scores = evaluate(finished.model, images, device="cpu")
    assert scores.acc == straight.records[-1].test_acc


@pytest.mark.parametrize("name", ["fedsam", "harmofl", "fedmix"])
def test_training_learns(images, name):
    done = run(name, images, 8, models.build("mlp", images), lr=0.05, epochs=2, batch_size=8)
    assert sum(done.records[-1].test_acc) / 6 > 0.8
