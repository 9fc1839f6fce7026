"""Client2Vec's three case studies: probabilities, weights and losses by hand, and what is left of
the base method."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import LOCAL, mlp, only, run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedbook import FedbookError, methods, models
from fedbook.methods.client2vec import (
    IndependentFeatures,
    SampleBySimilarity,
    WeighBySimilarity,
    client2vec,
    log_probabilities,
    projected,
)
from fedbook.methods.client_index import ClientIndex, IndexSpec, to_group
from fedbook.rounds import Batch, BySize, Local, Report, Uniform
from fedbook.rounds.weights import normalise

SIZES = (8, 12, 20, 40)  # of the clients of `toy`


def index(clients=4, width=6, seed=0, sizes=None):
    g = torch.Generator().manual_seed(seed)
    sizes = sizes or (
        list(SIZES) if clients == 4 else torch.randint(1, 60, (clients,), generator=g).tolist()
    )
    feature, label = (torch.randn(clients, width, generator=g) for _ in range(2))
    return ClientIndex(feature, label, sizes, list(range(clients)))


def base(name, **options):
    return methods.get(name, **{**LOCAL, **options})


def same_base(a, b):
    """Bit for bit, on the parameters of a."""
    return all(torch.equal(t, b.params[n]) for n, t in a.params.items())


# -- (ii): Eq. 2 and 3 -----------------------------------------------------------------------------
def weights(stage, state, clients):
    """Of q_i = n_i / sum n and the factor together."""
    reports = [Report(id=i, size=SIZES[i]) for i in clients]
    factor, state = stage(state, reports)
    q, _ = BySize()({}, reports)
    return torch.tensor(normalise(q + factor, clients), dtype=torch.float64), state


def begun(stage, found):
    return {
        "cosines": found.cosines(stage.part),
        "sizes": found.sizes,
        "ids": found.ids,
        "A": torch.zeros(len(found), dtype=torch.float64),
    }


def objective(p, A, q, lam1):
    """Eq. 2 on the simplex."""
    return (p * A).sum() + lam1 * (p * (q / p).log()).sum()


@pytest.mark.parametrize("lam1", [0.2, 1.0, 7.0])
def test_eq_3_is_the_numerical_maximiser_of_eq_2(lam1):
    found = index()
    stage = WeighBySimilarity(found, gamma=0.9, lam1=lam1)
    state, here = begun(stage, found), [0, 2, 3]
    for clients in ([1, 2], [0, 3], here):
        p, state = weights(stage, state, clients)
    A, q = state["A"][here], found.sizes[here] / found.sizes[here].sum()

    free = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [free],
        max_iter=500,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        solver.zero_grad()
        loss = -objective(free.softmax(0), A, q, lam1)
        loss.backward()
        return loss

    solver.step(closure)
    assert (free.softmax(0) - p).abs().max() < 1e-6
    best = objective(p, A, q, lam1).item()
    assert best == pytest.approx(lam1 * torch.logsumexp(q.log() + A / lam1, 0).item(), abs=1e-12)
    g = torch.Generator().manual_seed(0)
    for _ in range(20):  # any other point of the simplex is worse
        other = (p.log() + 0.1 * torch.randn(3, generator=g, dtype=torch.float64)).softmax(0)
        assert objective(other, A, q, lam1) < best


def test_weights_by_hand():
    """cos(0, 1) = 0 and sizes 1 : 3: S = (1/4, 3/4), so p ~ (1 e^{1/4}, 3 e^{3/4}); next round A is
    1.5 times that.
    """
    found = ClientIndex(torch.eye(2), None, [1, 3], [0, 1])
    stage, state = WeighBySimilarity(found, gamma=0.5), begun(WeighBySimilarity(found), found)
    reports = [Report(id=0, size=1), Report(id=1, size=3)]
    for times in (1.0, 1.5):
        factor, state = stage(state, reports)
        p = normalise(BySize()({}, reports)[0] + factor, [0, 1])
        assert p[1] / p[0] == pytest.approx(3 * math.exp(times * 0.5))


def test_the_recursion_is_the_explicit_sum():
    found, gamma = index(seed=3), 0.7
    stage = WeighBySimilarity(found, gamma=gamma)
    state, history = begun(stage, found), [[0, 1], [2], [1, 3], [0, 2, 3]]
    for clients in history:
        _, state = weights(stage, state, clients)
    S = [to_group(found.cosines(), found.sizes, c) for c in history]
    explicit = sum(gamma ** (len(history) - 1 - s) * S[s] for s in range(len(history)))
    assert torch.allclose(state["A"], explicit, atol=1e-12)


def test_gamma_zero_counts_the_current_round_alone():
    found = index(seed=4)
    stage = WeighBySimilarity(found, gamma=0.0)
    state = begun(stage, found)
    for clients in ([0, 1], [1, 2, 3]):
        p, state = weights(stage, state, clients)
    fresh, _ = weights(stage, begun(stage, found), [1, 2, 3])
    assert torch.equal(p, fresh)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.permutations([0, 1, 2, 3]), st.floats(-5, 5))
def test_weights_are_weights(seed, order, constant):
    found = index(seed=seed)
    stage = WeighBySimilarity(found)
    p, _ = weights(stage, begun(stage, found), [0, 1, 2, 3])
    assert p.sum().item() == pytest.approx(1) and (p > 0).all()
    shuffled, _ = weights(stage, begun(stage, found), order)
    assert torch.allclose(shuffled, p[order], atol=1e-12)
    higher = begun(stage, found)
    higher["A"] += constant / stage.gamma
    assert torch.allclose(weights(stage, higher, [0, 1, 2, 3])[0], p, atol=1e-12)


def test_where_all_are_alike_or_lambda_is_infinite_it_is_fedavg(toy):
    alike = ClientIndex(torch.ones(4, 3), torch.ones(4, 3), SIZES, range(4))
    q = torch.tensor(SIZES) / sum(SIZES)
    for stage in (WeighBySimilarity(alike), WeighBySimilarity(index(), lam1=math.inf)):
        state = begun(stage, stage.index)
        for _ in range(3):
            p, state = weights(stage, state, [0, 1, 2, 3])
            assert torch.allclose(p, q.double(), atol=1e-7)
    plain = run(base("fedavg"), toy, 3)
    assert same_base(
        plain, run(client2vec(base("fedavg"), index(), False, True, False, lam1=math.inf), toy, 3)
    )
    other = run(client2vec(base("fedavg"), index(), False, True, False), toy, 3)
    assert not same_base(plain, other) and sum(other.records[-1].weights) == pytest.approx(1)


def test_a_method_keeps_weights_of_its_own(toy):
    """AFL's lambda goes on moving beneath (ii), q-FFL still gets the losses; a uniform mean becomes
    n_i / n.
    """
    plain, over = (
        run(base("afl"), toy, 3),
        run(client2vec(base("afl"), index(), False, True, False, lam1=math.inf), toy, 3),
    )
    assert same_base(plain, over) and over.state["weigh.0"] == plain.state["weigh.0"]
    own, factor = client2vec(base("feddyn"), index()).weigh
    assert own == BySize() and isinstance(factor, WeighBySimilarity)
    q = client2vec(base("q_ffl"), index())
    assert q.reads == {"received"} and q.weigh[:-1] == base("q_ffl").weigh


WEIGHED = {
    "fedavg": {},
    "term": {"t": 0.7},
    "afl": {"eta_lam": 0.4},
    "q_ffl": {"q": 2.0},
    "grp_fed": {"q": 3.0, "epochs": 1, "lr": 0.05},
    "fedgcr": {"customization": False, "clusters": 2},
}


@pytest.mark.parametrize("name", WEIGHED)
def test_the_factor_stands_on_top_of_any_base(toy, name):
    """Round 1: p_i ~ (the base's own weight) exp(S_i / lambda_1), whatever the base is."""
    found, lam1 = index(seed=5), 0.3
    plain = run(base(name, **WEIGHED[name]), toy).records[0].weights
    method = client2vec(base(name, **WEIGHED[name]), found, False, True, False, lam1=lam1)
    assert method.weigh == (
        *base(name, **WEIGHED[name]).weigh,
        WeighBySimilarity(found, lam1=lam1),
    )
    S = to_group(found.cosines(), found.sizes, [0, 1, 2, 3])
    raw = torch.tensor(plain, dtype=torch.float64) * (S / lam1).exp()
    got = run(method, toy).records[0].weights
    assert got == pytest.approx((raw / raw.sum()).tolist(), rel=1e-9)
    assert got != pytest.approx(plain, rel=1e-2)


# -- (i): Eq. 1 ------------------------------------------------------------------------------------
def test_probabilities_by_hand():
    p = log_probabilities(torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64), 0.5, []).exp()
    assert torch.allclose(p, torch.tensor([2.0, 1.0, -2.0], dtype=torch.float64).softmax(0))
    p = log_probabilities(torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64), 0.5, [0]).exp()
    assert (
        p[0] == 0
        and p.sum().item() == pytest.approx(1)
        and (p[1] / p[2]).item() == pytest.approx(math.exp(3))
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=3, max_size=9), st.data())
def test_limits_of_tau(values, data):
    S = torch.tensor(values, dtype=torch.float64)
    banned = data.draw(
        st.lists(st.integers(0, len(values) - 1), max_size=len(values) - 2, unique=True)
    )
    free = [i for i in range(len(values)) if i not in banned]
    p = log_probabilities(S.clone(), 1e12, banned).exp()
    assert p[banned].sum() == 0 and torch.allclose(
        p[free], torch.full((len(free),), 1 / len(free)).double(), atol=1e-9
    )
    p = log_probabilities(S.clone(), 1e-9, banned).exp()
    top = S[free].max()
    assert p[[i for i in free if S[i] < top - 1e-6]].sum() < 1e-9


def drawn(stage, found, rounds, seed=0, federation=None):
    """The clients of so many rounds."""
    state = {
        "cosines": found.cosines(stage.part),
        "sizes": found.sizes,
        "ids": found.ids,
        "recent": [],
    }
    history = []
    for t in range(1, rounds + 1):
        rng = torch.Generator().manual_seed(1000 * seed + t)
        chosen, state = stage(
            state, found, t, rng
        )  # an index has as many entries as the federation
        history.append(chosen)
    return history


@pytest.mark.parametrize(
    "clients, participation, window", [(100, 0.1, 5), (60, 0.1, 5), (10, 1.0, 0), (10, 0.3, 1)]
)
def test_nobody_comes_back_within_the_window(clients, participation, window):
    found = index(clients)
    stage = SampleBySimilarity(participation, found, tau=0.1)
    assert stage.window(clients) == window
    count = stage.count(clients)
    history = drawn(stage, found, 14)
    assert all(len(set(c)) == count for c in history)
    for t, chosen in enumerate(history):
        lately = set(itertools.chain(*history[max(0, t - window) : t]))
        assert not lately & set(chosen)
        assert clients - len(lately) >= clients / 2 and (
            t < window or len(lately) == window * count
        )
    if window:  # and the window is no longer than that
        back = [
            i for t in range(window + 1, 14) for i in history[t] if i in history[t - window - 1]
        ]
        assert back


def test_the_first_round_is_uniform_and_the_next_follow_similarity():
    """Two groups at right angles; after a round in one of them, a cold sampler stays there."""
    feature = torch.eye(2).repeat_interleave(20, 0)
    found = ClientIndex(feature, None, [5] * 40, list(range(40)))
    first, stays = [], 0
    for seed in range(200):
        a, b = drawn(SampleBySimilarity(1, found, tau=0.05), found, 2, seed)
        first += a
        stays += (a[0] < 20) == (b[0] < 20)
        assert a != b
    assert stays == 200 and len(set(first)) > 35 and 70 < sum(i < 20 for i in first) < 130


def test_draws_follow_eq_1_without_replacement():
    """Two of three, p = (0.6, 0.3, 0.1): P{0, 1} = 0.6 0.3 / 0.4 + 0.3 0.6 / 0.7 = 0.707."""
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    found = ClientIndex(torch.eye(3), None, [1, 1, 1], [0, 1, 2])
    stage = SampleBySimilarity(2, found, tau=1.0)
    state = {
        "cosines": p.log()[:, None].expand(3, 3),
        "sizes": found.sizes,
        "ids": [0, 1, 2],
        "recent": [[0, 1]],
    }
    pairs = [
        frozenset(stage(state, found, 2, torch.Generator().manual_seed(s))[0]) for s in range(3000)
    ]
    expected = 0.6 * 0.3 / 0.4 + 0.3 * 0.6 / 0.7
    assert pairs.count(frozenset({0, 1})) / 3000 == pytest.approx(expected, abs=0.03)


def test_without_tau_it_is_uniform_sampling_itself(toy):
    stage = SampleBySimilarity(2, index(), tau=None)
    rng = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert stage({}, toy, 1, rng[0])[0] == Uniform(2)({}, toy, 1, rng[1])[0]


# -- (iii): Eq. 4 ----------------------------------------------------------------------------------
def turn(federation, stage, client=1):
    known = stage.announce(federation, [])
    model = stage.adapt(mlp(federation), federation, known)
    local = Local.of(federation, model, client=client, terms=(stage,))
    return local, Batch(local, federation.clients[client].train)


def test_the_local_loss_by_hand(toy):
    found = index()
    local, batch = turn(toy, IndependentFeatures(found, weight=3.0))
    p = projected(local.model)
    value = local.terms[0](local, batch, {}, {})
    z_p = batch.z @ p.P.weight.T
    orth = sum(
        abs(F.cosine_similarity(z, b, dim=0) * z.norm()) for z in z_p for b in found.feature
    ) / (12 * 4)
    a, b = batch.logits.softmax(1), (z_p @ p.head.weight.T + p.head.bias).softmax(1)
    kl = (a * (a / b).log()).sum(1).mean()
    assert value.item() == pytest.approx(3 * (orth + kl).item(), rel=1e-5)
    assert (
        p.P.weight.shape == (6, 8)
        and p.P.bias is None
        and p.head.weight.shape == (3, 6)
        and p.B.shape == (6, 4)
    )

    plain = IndependentFeatures(found, weight=3.0, orthogonal=False)
    assert plain(local, batch, {}, {}).item() == pytest.approx(3 * kl.item(), rel=1e-5)
    local, batch = turn(toy, IndependentFeatures(found, weight=1.0, reduction="sum"))
    z_p = projected(local.model).P(batch.z)
    summed = (z_p @ found.feature.T).abs().sum() / 12
    assert local.terms[0](local, batch, {}, {}).item() == pytest.approx(
        (summed + kl).item(), rel=1e-4
    )


def test_cosines_cannot_be_lowered_by_shorter_features(toy):
    """By hand, and ten times as long features: the mean of cosines stays, the mean of products
    grows tenfold.
    """
    found, values = index(), {}
    for reduction in ("mean", "cosine"):
        local, batch = turn(toy, IndependentFeatures(found, weight=1.0, reduction=reduction))
        p = projected(local.model)
        kl = IndependentFeatures(found, weight=1.0, orthogonal=False)
        for length in (1, 10):
            with torch.no_grad():
                p.P.weight *= length
            orth = local.terms[0](local, batch, {}, {}) - kl(local, batch, {}, {})
            values[reduction, length] = orth.item()
    z_p = p.P(batch.z)
    by_hand = sum(abs(F.cosine_similarity(z, b, dim=0)) for z in z_p for b in found.feature)
    assert values["cosine", 1] == pytest.approx(by_hand.item() / (12 * 4), rel=1e-4)
    assert values["cosine", 10] == pytest.approx(values["cosine", 1], rel=1e-4)
    assert values["mean", 10] == pytest.approx(10 * values["mean", 1], rel=1e-4)


def test_kl_teaches_both_sides_unless_detached(toy):
    for detach in (False, True):
        stage = IndependentFeatures(index(), orthogonal=False, detach=detach)
        local, batch = turn(toy, stage)
        stage(local, batch, {}, {}).backward()
        model = local.model
        assert (model.head.weight.grad is None) == detach
        assert model.client2vec.P.weight.grad.any() and model.client2vec.head.weight.grad.any()


BASES = ["fedavg", "fedavgm", "feddyn", "fedlc", "fediir", "moon", "q_ffl", "afl", "term", "fedsam"]
PERSONAL = ["per_fedavg", "pfedme", "lg_fedavg", "grp_fed"]


@pytest.mark.parametrize("name", BASES)
def test_without_weight_local_training_is_the_base_methods_bit_for_bit(toy, name):
    options = {"momentum": 0.9, "weight_decay": 1e-2, "participation": 3}
    plain = run(base(name, **options), toy, 2)
    over = run(client2vec(base(name, **options), index(), False, False, True, weight=0.0), toy, 2)
    assert same_base(plain, over) and set(over.params) - set(plain.params) == {
        f"client2vec.{n}" for n in ("P.weight", "head.weight", "head.bias")
    }
    assert plain.records[-1].test_acc == over.records[-1].test_acc


@pytest.mark.parametrize("name", BASES)
def test_every_method_can_be_wrapped_in_all_three(toy, name):
    plain = run(base(name, participation=2), toy, 3)
    done = run(client2vec(name, index(), **LOCAL, participation=2), toy, 3)
    assert done.method.name == f"client2vec({name})" and not same_base(plain, done)
    assert all(t.isfinite().all() for t in done.params.values())
    off = run(client2vec(base(name, participation=2), index(), False, False, False), toy, 3)
    assert same_base(plain, off)


@pytest.mark.parametrize("name", PERSONAL)
def test_methods_with_personal_models_can_be_wrapped_too(toy, name):
    done = run(client2vec(base(name, participation=2, lr=0.05), index()), toy, 2)
    assert (
        all(t.isfinite().all() for t in done.params.values())
        and len(done.records[-1].personal_acc) == 4
    )


def test_projection_and_its_classifier_are_averaged_with_the_model(toy):
    done = run(client2vec("fedavg", index(), **LOCAL), toy, 1)
    start = turn(toy, IndependentFeatures(index()))[0].model.state_dict()
    assert "client2vec.B" not in done.params
    for n in ("client2vec.P.weight", "client2vec.head.weight"):
        assert not torch.equal(done.params[n], start[n])
    alone = only(toy, 0)
    mine = ClientIndex(index().feature[:1], index().label[:1], [8], [0])
    one = run(client2vec("fedavg", mine, **LOCAL), alone, 1)
    assert one.records[0].bytes_up > run(base("fedavg"), alone, 1).records[0].bytes_up + 4 * 6 * 8


def test_tests_use_the_ordinary_head(toy):
    done = run(client2vec("fedavg", index(), **LOCAL), toy, 1)
    x = toy.inputs(toy.clients[0].test)
    assert torch.equal(done.model(x), done.model.head(done.model.features(x)))


def test_it_fits_models_that_other_stages_wrap(images):
    found = ClientIndex(torch.randn(6, 5), None, [16] * 6, range(6))
    model = models.build("cnn", images, seed=7, width=4, hidden=8)
    done = run(client2vec("harmofl", found, lr=0.05, batch_size=8), images, 1, model)
    assert "model.client2vec.P.weight" in done.params


def test_a_head_of_two_layers_is_projected_before_it_one_without_any_is_refused(toy):
    model = mlp(toy)
    model.head = nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    done = run(client2vec("fedavg", index(), **LOCAL), toy, 1, model)
    assert done.params["client2vec.P.weight"].shape == (6, 8) and done.params[
        "client2vec.head.weight"
    ].shape == (3, 6)
    model = models.build("mlp", toy, seed=7, width=3)
    model.head = nn.Identity()
    with pytest.raises(FedbookError, match="linear"):
        run(client2vec("fedavg", index()), toy, 1, model)
    run(client2vec(base("fedavg"), index(), local=False), toy, 1, model)


# -- the whole -------------------------------------------------------------------------------------
def test_options_and_tables_choose_the_stages():
    def used(**options):
        m = methods.get("client2vec", **options)
        further = [[type(s).__name__ for s in stages[1:]] for stages in (m.weigh, m.objective)]
        assert m.weigh[0] == BySize()
        return m.sample.tau, *further

    assert used() == (1.0, ["WeighBySimilarity"], ["IndependentFeatures"])
    assert used(case_studies="i") == (1.0, [], [])
    assert used(case_studies="ii", strategy="federated") == (None, ["WeighBySimilarity"], [])
    assert used(case_studies="index") == (None, [], [])
    assert (
        used(
            base="fedavgm", server_momentum=0.5, case_studies="i+ii", strategy="federated", tau=0.5
        )[0]
        == 0.5
    )
    wide, narrow = (methods.get("client2vec", strategy=s) for s in ("global", "federated"))
    assert (wide.objective[1].weight, narrow.objective[1].weight) == (
        5.0,
        1.0,
    ) and narrow.sample.tau == 0.1
    made = methods.get(
        "client2vec", index_epochs=100, index_limit=50, variant="omit_orthogonal_loss"
    ).sample.index
    assert made == IndexSpec(epochs=100, limit=50, omit=("orth",))
    by_class = methods.get("client2vec", variant="class_prototypes")
    assert by_class.weigh[1].index.kind == "class_prototypes"
    label = methods.get("client2vec", variant="only_label_index", case_studies="i+ii")
    assert label.sample.part == label.weigh[1].part == "label"
    assert (
        not methods.get("client2vec", variant="omit_orthogonal_regularization")
        .objective[1]
        .orthogonal
    )
    assert (
        methods.get("client2vec", base="fedavgm", server_momentum=0.5).update.server_momentum == 0.5
    )


def test_wrong_settings_are_refused(toy):
    for bad, what in (
        ({"variant": "vgg"}, "variant"),
        ({"case_studies": "iv"}, "case study"),
        ({"tau": 0.0}, "tau"),
        ({"lam1": 0.0}, "lam1"),
        ({"weight": -1.0}, "weight"),
        ({"variant": "only_label_index"}, "label index"),
        ({"index_colour": 1}, "colour"),
        ({"base": "fedavgg"}, "did you mean"),
    ):
        with pytest.raises(FedbookError, match=what):
            methods.get("client2vec", **bad)
    with pytest.raises(FedbookError, match="options"):
        client2vec(base("fedavg"), lr=0.1)
    with pytest.raises(FedbookError, match="index was given"):
        client2vec("fedavg", index(), index_epochs=3)
    with pytest.raises(FedbookError, match="from this federation"):
        run(client2vec("fedavg", index(5)), toy)


def test_what_is_exchanged_before_round_1_is_counted(toy):
    found = index()
    found.info |= {"bytes_up": 1000, "bytes_down": 50, "seconds": 2.5}
    first, second = run(client2vec(base("fedavg"), found), toy, 2).records
    assert first.bytes_up - second.bytes_up == 1000
    assert first.bytes_down - second.bytes_down == 50 + 4 * (4 * 6 * 4)  # B^f to all
    assert second.log["index_seconds"] == 2.5 and 0 <= second.log["nearest_domain_accuracy"] <= 1


def test_a_stopped_run_goes_on(toy, tmp_path):
    method = client2vec("fedavgm", index(), **LOCAL, participation=1)
    whole = run(method, toy, 5)
    run(method, toy, 2, checkpoint=tmp_path)
    again = run(method, toy, 5, checkpoint=tmp_path)
    assert [r.participants for r in again.records] == [r.participants for r in whole.records]
    assert same_base(whole, again)
    with pytest.raises(FedbookError, match="another run"):
        run(
            client2vec("fedavgm", index(seed=9), **LOCAL, participation=1),
            toy,
            6,
            checkpoint=tmp_path,
        )


def test_local_model_weights_follow_the_clients(toy):
    method = methods.get(
        "client2vec", variant="local_model_weights", **LOCAL, participation=2, weight=1.0
    )
    assert isinstance(method.sample, Uniform) and not isinstance(method.sample, SampleBySimilarity)
    assert method.weigh == (BySize(),)
    done = run(method, toy, 4)
    state = done.state["objective.1"]
    assert state["rows"].shape == (4, 8 * 3 + 3)
    seen = {id for r in done.records[:3] for id in r.participants} & set(
        done.records[3].participants
    )
    assert seen and all(state["rows"][id].any() for id in seen)
    never = set(range(4)) - {id for r in done.records for id in r.participants}
    assert all(not state["rows"][id].any() for id in never)
    other = run(
        methods.get(
            "client2vec", variant="local_model_weights", **LOCAL, participation=2, weight=0.0
        ),
        toy,
        4,
    )
    assert not torch.equal(done.params["head.weight"], other.params["head.weight"])


def test_from_images_to_a_run_in_one_line(images):
    method = methods.get(
        "client2vec",
        base="fedavgm",
        index_encoder="offline/hybrid+ngram",
        index_epochs=1,
        index_ffn=32,
        lr=0.05,
        batch_size=8,
        participation=2,
        strategy="federated",
    )
    done = run(method, images, 2, models.build("cnn", images, seed=7, width=4, hidden=8))
    assert done.params["client2vec.P.weight"].shape == (512, 8) and len(done.records) == 2
    assert done.records[0].log["within_similarity"] <= 1


def test_every_printed_row_is_a_run_that_can_be_built():
    """But for those that follow from others, and for the three of Table 2 that print nothing."""
    from fedbook import papers
    from fedbook.papers.client2vec import scales as paper

    smoke, printed = paper.SMOKE, paper.PRINTED
    left_out = set()
    for spec in papers.PAPERS["client2vec"].specs.values():
        for row in spec.rows:
            for scale in (smoke, printed) if not row["validation"] else (paper.LAPTOP,):
                e = paper.experiment(row, scale, 0)
                if e is None:
                    left_out.add(
                        (
                            row["variant"],
                            row["case_studies"],
                            row["strategy"],
                            row.metric.endswith("_time"),
                        )
                    )
                else:
                    assert e.build_method().describe()["name"]
    assert {v[:2] for v in left_out if v[0]} == paper.IMPOSSIBLE
    assert all(strategy == "best" or time for variant, _, strategy, time in left_out if not variant)
    row = papers.get("client2vec/table6").rows[1]
    assert paper.experiment(row, printed, 0).method["index_epochs"] == 100
    assert paper.experiment(row, smoke, 0).method["index_epochs"] == 1
