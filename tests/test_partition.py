"""Partitions: published client counts and sizes, invariants under random inputs, and refusal of
what cannot be done."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbook.data import partition as P
from fedbook.errors import FedbookError

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 10**6)

PUBLISHED_SIZES = {
    ("digit_five", 1): [[371, 1115]] * 5,
    ("digit_five", 5): [[225, 338, 507, 761, 1142], [417, 626, 939], [528, 792], [352, 528], [587]],
    ("digit_five", 10): [
        [6, 12, 21, 38, 70, 126, 227, 409, 736, 1325],
        [40, 72, 129, 233, 420, 756],
        [151, 273, 491],
        [181, 327],
        [282],
    ],
    ("domainnet", 1): [[157, 472]] * 6,
    ("domainnet", 5): [
        [115, 161, 225, 316, 442],
        [126, 177, 248, 348],
        [147, 206, 289],
        [191, 267],
        [327],
        [234],
    ],
    ("domainnet", 10): [
        [6, 11, 17, 28, 45, 72, 116, 186, 298, 477],
        [18, 29, 46, 74, 119, 191, 306],
        [53, 85, 136, 217],
        [59, 95, 152],
        [73, 118],
        [120],
    ],
    ("pacs", 1): [[150, 450]] * 4,
    ("pacs", 5): [[45, 68, 102, 153, 229], [42, 95, 213], [34, 172], [121]],
    ("pacs", 10): [
        [14, 18, 24, 31, 40, 52, 68, 88, 113, 146],
        [12, 22, 40, 72, 128],
        [11, 115],
        [58],
    ],
}


def check(parts, rows, clients=None):
    """Disjoint, within bounds, nobody empty, int64."""
    together = np.concatenate(parts)
    assert all(p.dtype == np.int64 and len(p) for p in parts)
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, rows).all()
    if clients is not None:
        assert len(parts) == clients


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


# --------------------------------------------------------------------------------------------------
# by domain


@pytest.mark.parametrize(("dataset", "dif"), PUBLISHED_SIZES)
def test_published_sizes(dataset, dif):
    domains = len(P.PUBLISHED[dataset].order)
    domain = np.repeat(np.arange(domains), 8000)
    parts = P.by_domain(domain, dif, sizes=dataset)
    assert [len(p) for p in parts] == [n for d in PUBLISHED_SIZES[dataset, dif] for n in d]
    check(parts, np.arange(len(domain)))
    assert P.types_of(domain, parts) == [
        d for d, s in enumerate(PUBLISHED_SIZES[dataset, dif]) for _ in s
    ]


def test_published_totals():
    totals = {key: sum(map(sum, sizes)) for key, sizes in PUBLISHED_SIZES.items()}
    assert totals["digit_five", 1] == 7430 and totals["digit_five", 10] == 6325
    assert (
        totals["domainnet", 1] == 3774
        and totals["domainnet", 5] == 3819
        and totals["domainnet", 10] == 3147
    )
    assert totals["pacs", 1] == 2400 and totals["pacs", 5] == 1274 and totals["pacs", 10] == 1052


@pytest.mark.parametrize(
    ("domains", "counts"),
    [
        (5, {1: [2] * 5, 5: [5, 3, 2, 2, 1], 10: [10, 6, 3, 2, 1]}),
        (6, {1: [2] * 6, 5: [5, 4, 3, 2, 1, 1], 10: [10, 7, 4, 3, 2, 1]}),
        (4, {1: [2] * 4, 5: [5, 3, 2, 1], 10: [10, 5, 2, 1]}),
        (7, {1: [2] * 7, 5: [5, 4, 3, 2, 2, 1, 1], 10: [10, 7, 5, 3, 2, 1, 1]}),
    ],
)
def test_clients_per_domain(domains, counts):
    for dif, expected in counts.items():
        assert P.clients_per_domain(dif, domains) == expected
    published = {5: (10, 13, 22), 6: (12, 16, 27), 4: (8, 11, 18)}
    if domains in published:
        assert tuple(sum(counts[d]) for d in (1, 5, 10)) == published[domains]


def test_by_domain_takes_slices_in_stored_order_and_by_name():
    domain = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    parts = P.by_domain(domain, 1, order=["b", "a"], names=["a", "b"])
    assert [p.tolist() for p in parts] == [[1], [3, 5, 7], [0], [2, 4, 6]]
    shuffled = P.by_domain(domain, 1, order=["b", "a"], names=["a", "b"], shuffle=True, seed=3)
    assert [len(p) for p in shuffled] == [1, 3, 1, 3] and set(np.concatenate(shuffled[:2])) == {
        1,
        3,
        5,
        7,
    }
    assert [
        p.tolist() for p in P.by_domain(domain, 1, within=[0, 1, 2, 3, 5, 6], sizes="equal")
    ] == [
        [0],
        [2],
        [1],
        [3],
    ]


def test_scale_and_fit():
    domain = np.repeat(np.arange(5), [4000, 1437, 4000, 4000, 4000])
    parts = P.by_domain(domain, 10, sizes="digit_five", scale=0.1)
    assert [len(p) for p in parts[:10]] == [2, 2, 2, 3, 7, 12, 22, 40, 73, 132]
    with pytest.raises(FedbookError, match="1486 samples.*has 1437"):
        P.by_domain(domain, 1, sizes=[[371, 1115]] * 5)
    fit = P.by_domain(domain, 1, sizes="digit_five", scale="fit")
    assert len(fit) == 10 and all(len(p) for p in fit) and sum(len(p) for p in fit[2:4]) <= 1437
    assert [len(p) for p in P.by_domain(domain, counts=[3, 1, 1, 1, 1], sizes="equal")][:3] == [
        1333
    ] * 3


@quick
@given(st.integers(2, 8), st.sampled_from([1, 2, 3, 5, 10]), st.integers(500, 900), seeds)
def test_by_domain_invariants(domains, dif, each, seed):
    domain = np.random.default_rng(seed).permutation(np.repeat(np.arange(domains), each))
    parts = P.by_domain(domain, dif, seed=seed, shuffle=True)
    check(parts, np.arange(len(domain)), sum(P.clients_per_domain(dif, domains)))
    assert same(parts, P.by_domain(domain, dif, seed=seed, shuffle=True))
    assert all(len(np.unique(domain[p])) == 1 for p in parts)


def test_both_test_modes():
    domain = np.array([0] * 8 + [1] * 9)
    shared = P.test_by_domain(domain, [0, 1, 0])
    assert [p.tolist() for p in shared] == [list(range(8)), list(range(8, 17)), list(range(8))]
    split = P.test_by_domain(domain, [0, 1, 0, 1], "split")
    assert [len(p) for p in split] == [2, 2, 6, 7] and split[2].tolist() == [2, 3, 4, 5, 6, 7]
    check(split, np.arange(17))


# --------------------------------------------------------------------------------------------------
# by label


@quick
@given(st.integers(1, 40), st.integers(40, 400), seeds)
def test_iid(clients, n, seed):
    parts = P.iid(n, clients, seed)
    check(parts, np.arange(n), clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1 and sum(map(len, parts)) == n
    assert same(parts, P.iid(np.zeros(n), clients, seed))


@quick
@given(
    st.integers(1, 20), st.sampled_from([0.05, 0.1, 0.5, 1, 10, 1000]), st.integers(2, 10), seeds
)
def test_dirichlet(clients, alpha, classes, seed):
    labels = np.random.default_rng(seed).integers(classes, size=2000)
    rows = np.arange(0, 2000, 2)
    try:
        parts = P.dirichlet(labels, clients, alpha, seed, within=rows, tries=200)
    except FedbookError as error:
        assert "Dirichlet" in str(error)
        return
    check(parts, rows, clients)
    assert sum(map(len, parts)) == 1000
    assert same(parts, P.dirichlet(labels, clients, alpha, seed, within=rows, tries=200))


def test_dirichlet_alpha_orders_the_skew():
    labels = np.repeat(np.arange(10), 500)

    def purity(alpha):
        parts = P.dirichlet(labels, 20, alpha, seed=1, min_size=5)
        return np.mean([np.bincount(labels[p]).max() / len(p) for p in parts])

    assert purity(0.1) > purity(1) > purity(100)
    assert purity(1e5) == pytest.approx(0.1, abs=0.01)
    assert min(map(len, P.dirichlet(labels, 20, 0.1, min_size=30))) >= 30


@quick
@given(st.integers(5, 30), st.integers(1, 10), seeds)
def test_pathological_pfedhn(clients, s, seed):
    labels = np.repeat(np.arange(10), 60)
    if s * clients < 10:
        return
    parts = P.pathological(labels, clients, s, seed)
    check(parts, np.arange(600), clients)
    assert sum(map(len, parts)) == 600
    held = np.array([[(labels[p] == c).any() for c in range(10)] for p in parts])
    assert (held.sum(1) == s).all()
    assert held.sum(0).max() - held.sum(0).min() <= 1
    assert same(parts, P.pathological(labels, clients, s, seed))


def test_pathological_shares_lie_between_the_extremes_of_uniform_04_06():
    labels = np.repeat(np.arange(100), 500)
    parts = P.pathological(labels, 100, 10, seed=0)
    counts = np.array([np.bincount(labels[p], minlength=100) for p in parts])
    shares = counts[counts > 0] / 500
    assert (
        shares.min() >= 0.4 / (0.4 + 9 * 0.6) - 0.002
        and shares.max() <= 0.6 / (0.6 + 9 * 0.4) + 0.002
    )
    one_each = P.pathological(labels, 50, 2, seed=0)
    assert [len(p) for p in one_each] == [1000] * 50


@quick
@given(st.integers(1, 20), st.integers(1, 5), seeds)
def test_pathological_shards(clients, s, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(10), 100))
    parts = P.pathological(labels, clients, s, seed, style="shards")
    check(parts, np.arange(1000), clients)
    if clients * s % 10 == 0 and 1000 % (clients * s) == 0:
        assert all(len(np.unique(labels[p])) <= s for p in parts)


@quick
@given(st.integers(1, 20), st.sampled_from([0.001, 0.01, 0.1, 10]), seeds)
def test_pachinko(clients, beta, seed):
    fine = np.repeat(np.arange(20), 20)
    parts = P.pachinko(fine, fine // 5, clients, 20, beta, seed=seed)
    check(parts, np.arange(400), clients)
    assert all(len(p) == 20 for p in parts)
    assert same(parts, P.pachinko(fine, fine // 5, clients, 20, beta, seed=seed))


def test_pachinko_exhausts_leaves_and_concentrates():
    fine = np.repeat(np.arange(20), 20)
    everything = P.pachinko(fine, fine // 5, 20, 20, 0.01, seed=0)
    assert sorted(np.concatenate(everything)) == list(range(400))
    lone = P.pachinko(fine, fine // 5, 4, 20, 0.001, seed=0)
    spread = P.pachinko(fine, fine // 5, 4, 20, 1000, seed=0)
    families = [np.mean([len(np.unique(fine[p] // 5)) for p in parts]) for parts in (lone, spread)]
    assert families[0] < 2 and families[1] == 4


def test_long_tail_numbers_of_the_paper():
    labels = np.repeat(np.arange(10), 5000)
    parts = P.long_tail(labels, 50, 0.7, 0.5, seed=0)
    check(parts, np.arange(50000), 50)
    assert len(parts[0]) == 6225 and len(parts[-1]) == 403 and sum(map(len, parts)) == 50000
    drawn = P.long_tail(labels, 50, 0.7, 0.5, seed=0, replacement=True)
    first = np.sort(np.bincount(labels[drawn[0]], minlength=10))[::-1] / 6225
    assert first[0] == pytest.approx(0.5005, abs=2e-4) and first[-1] == pytest.approx(
        0.000978, abs=2e-4
    )


@quick
@given(st.integers(1, 30), st.floats(0, 3), st.floats(1e-9, 1), st.integers(1, 12), seeds)
def test_long_tail(clients, rho, tau, classes, seed):
    labels = np.random.default_rng(seed).integers(classes, size=500)
    parts = P.long_tail(labels, clients, rho, tau, seed)
    check(parts, np.arange(500), clients)
    assert sum(map(len, parts)) == 500
    assert same(parts, P.long_tail(labels, clients, rho, tau, seed))


def test_by_group():
    parts = P.by_group(np.array(["b", "a", "b", "c"]), min_size=1)
    assert [p.tolist() for p in parts] == [[1], [0, 2], [3]]
    assert [p.tolist() for p in P.by_group([7, 5, 7, 9], min_size=2)] == [[0, 2]]


def test_match_shares_test_samples_like_train_samples():
    train = [np.array([0] * 30 + [1] * 10), np.array([0] * 10), np.array([1] * 30)]
    test = np.array([0] * 8 + [1] * 4)
    parts = P.match(train, test, seed=0)
    check(parts, np.arange(12), 3)
    assert [np.bincount(test[p], minlength=2).tolist() for p in parts] == [[6, 1], [2, 0], [0, 3]]


@quick
@given(st.integers(2, 20), seeds)
def test_match_leaves_nobody_without(clients, seed):
    labels = np.repeat(np.arange(10), 100)
    test = np.repeat(np.arange(10), 10)
    parts = P.pathological(labels, clients, 5, seed)
    mine = P.match([labels[p] for p in parts], test, seed)
    check(mine, np.arange(100), clients)
    for p, q in zip(parts, mine):
        assert set(test[q]) <= set(labels[p])


# --------------------------------------------------------------------------------------------- what
# cannot be done

LABELS = np.repeat(np.arange(10), 10)
IMPOSSIBLE = [
    (lambda: P.dirichlet(LABELS, 5, 0), "alpha must be a positive number, got 0"),
    (lambda: P.dirichlet(LABELS, 5, -1.0), "alpha"),
    (lambda: P.dirichlet(LABELS, 5, float("nan")), "alpha"),
    (lambda: P.dirichlet(LABELS, 101, 1), "101 clients, but only 100 samples"),
    (lambda: P.dirichlet(LABELS, 5, 1, min_size=21), "need 105, there are 100"),
    (lambda: P.dirichlet(LABELS, 20, 1e-3, min_size=5, tries=50), "in 50 Dirichlet"),
    (lambda: P.dirichlet(LABELS, 0, 1), "number of clients"),
    (lambda: P.pathological(LABELS, 5, 11), "s=11 classes per client, but the data have 10"),
    (lambda: P.pathological(LABELS, 5, 0), "s must be"),
    (lambda: P.pathological(LABELS, 4, 2), "8 places for 10 classes"),
    (lambda: P.pathological(LABELS, 60, 2), "10 samples for 12 clients"),
    (lambda: P.pathological(LABELS, 60, 2, style="shards"), "120 shards from 100 samples"),
    (lambda: P.pathological(LABELS, 5, 2, style="sharts"), "style"),
    (lambda: P.pachinko(LABELS, LABELS // 5, 10, 11, 0.1), "10 clients x 11 samples = 110"),
    (lambda: P.pachinko(LABELS, np.arange(100), 2, 5, 0.1), "lies under 10 coarse labels"),
    (lambda: P.pachinko(LABELS, LABELS // 5, 2, 5, 0), "beta must be"),
    (lambda: P.long_tail(LABELS, 5, -0.1, 0.5), "rho"),
    (lambda: P.long_tail(LABELS, 5, 0.7, 0), "tau"),
    (lambda: P.long_tail(LABELS, 5, 0.7, 0.5, total=101), "total=101 samples from 100"),
    (lambda: P.by_domain(LABELS, -5), "domain imbalance factor must be a number >= 1, got -5"),
    (lambda: P.by_domain(LABELS, 0.5), "imbalance"),
    (lambda: P.by_domain(np.zeros(50), 5), "needs two domains"),
    (lambda: P.by_domain(LABELS, counts=[1, 2]), "2 client counts for 10 domains"),
    (lambda: P.by_domain(LABELS, 1, order=["x"], names=["a"]), "no domain is called 'x'"),
    (lambda: P.by_domain(LABELS, 1, order=[11]), "without samples"),
    (lambda: P.by_domain(LABELS, 1, sizes="digit_five"), "digit_five has 5 domains"),
    (lambda: P.by_domain(LABELS, 1, sizes="nonsense"), "unknown rule"),
    (lambda: P.by_domain(LABELS, 1, scale=0), "scale"),
    (lambda: P.by_domain(np.repeat([0, 1], 3), 10), "too few"),
    (lambda: P.test_by_domain(np.zeros(3), [0, 0, 0, 0], "split"), "3 test samples for 4 clients"),
    (lambda: P.iid(3, 4), "4 clients, but only 3 samples"),
    (lambda: P.iid(LABELS, 2, within=[100]), "outside"),
    (lambda: P.iid(LABELS, 2, within=[]), "no samples"),
    (lambda: P.by_group([1, 2], min_size=2), "no group"),
    (lambda: P.match([np.array([3])], np.array([0, 1])), "too few test samples"),
    (lambda: P.types_of([0, 1], [np.array([0, 1])]), "exactly one domain"),
]


@pytest.mark.parametrize(("request_", "reason"), IMPOSSIBLE)
def test_impossible_requests_name_their_reason(request_, reason):
    with pytest.raises(FedbookError) as caught:
        request_()
    assert reason in str(caught.value) and "\n" not in str(caught.value)


class Tiny:
    """Just the columns that `split` reads."""

    name, domain_names, extra = "tiny", ("a", "b"), {"who": np.arange(40) % 4}
    y, domain = np.arange(40) % 5, np.repeat([0, 1], 20)


def test_split_by_name():
    rows = np.arange(0, 40, 2)
    assert len(P.split(Tiny, rows, "by_domain", dif=1, order=["b", "a"])) == 4
    assert len(P.split(Tiny, rows, "by_group", ids="who")) == 2
    assert same(P.split(Tiny, rows, "iid", clients=3, seed=5), P.iid(Tiny.y, 3, 5, within=rows))
    for how, options, reason in [
        ("diriclet", {}, "unknown partition"),
        ("dirichlet", {"clients": 2}, "alpha"),
        ("dirichlet", {"clients": 2, "alpha": 1, "beta": 3}, "beta"),
        ("pachinko", {"clients": 2, "per_client": 2, "beta": 1}, "coarse"),
        ("by_group", {"ids": "whom"}, "no column 'whom'"),
    ]:
        with pytest.raises(FedbookError, match=reason):
            P.split(Tiny, rows, how, **options)


def test_at_most_keeps_so_many_of_each_class_in_order():
    labels = np.repeat([0, 1, 2], [5, 2, 9])
    kept = P.at_most(labels, 4, seed=1)
    assert np.bincount(labels[kept]).tolist() == [4, 2, 4] and (np.diff(kept) > 0).all()
    assert not np.array_equal(kept, P.at_most(labels, 4, seed=2))
    with pytest.raises(FedbookError, match="per class"):
        P.at_most(labels, 0)
