"""How a dataset is dealt out to clients: labels or domains in, one index array per client out.

Every function is pure: the same arguments and seed give the same arrays. ``labels`` and ``domain``
describe the whole dataset; ``within`` (for example ``dataset.train``) says which of its rows may be
used, and the returned int64 indices point into the whole dataset. A request that cannot be met is
an error with its reason; nothing is retried without a bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedbook.errors import FedbookError

Index = np.ndarray
Parts = list[np.ndarray]


# ---------------------------------------------------------------------------------------------
# clients by domain (DIF)


@dataclass(frozen=True)
class Published:
    """What the FedGCR experiments used on one dataset; the client sizes in their logs follow from
    it by one rule.
    """

    order: tuple[str, ...]  # domains, the one with most clients first
    rho: dict[float, float]  # DIF -> ratio between neighbouring domains
    base: int  # images of the first domain, training and validation together
    balanced_base: int  # the same at DIF 1, for every domain
    fraction: float  # share of them that is trained on
    inner: Literal["rho", "dif"]  # ratio between a domain's clients: rho, or DIF^(1/(N-1))
    swapped: tuple[str, ...]  # the second order, of the experiment with another majority


PUBLISHED: dict[str, Published] = {
    "digit_five": Published(
        order=("mnist", "usps", "synth_digits", "mnist_m", "svhn"),
        rho={5: 1.5, 10: 1.8},
        base=3719,
        balanced_base=1859,
        fraction=0.8,
        inner="rho",
        swapped=("usps", "mnist", "synth_digits", "svhn", "mnist_m"),
    ),
    "domainnet": Published(
        order=("clipart", "real", "painting", "sketch", "quickdraw", "infograph"),
        rho={5: 1.4, 10: 1.6},
        base=2103,
        balanced_base=1050,
        fraction=0.6,
        inner="rho",
        swapped=("real", "clipart", "painting", "sketch", "infograph", "quickdraw"),
    ),
    "pacs": Published(
        order=("photo", "art_painting", "cartoon", "sketch"),
        rho={5: 1.7, 10: 2.16},
        base=1000,
        balanced_base=1000,
        fraction=0.6,
        inner="dif",
        swapped=("art_painting", "photo", "sketch", "cartoon"),
    ),
}


def domain_ratio(dif: float, domains: int) -> float:
    """rho, the ratio between neighbouring domains, for a domain imbalance factor.

    The printed experiments round DIF^(1/(D-1)) by hand (D = 4, 5, 6 and DIF = 5, 10); those values
    are kept. Everywhere else rho = DIF^(1/(D-1)), so that the largest domain has DIF times the
    clients of the smallest.
    """
    _require(
        _number(dif) and dif >= 1, f"the domain imbalance factor must be a number >= 1, got {dif!r}"
    )
    _require(domains >= 1, f"at least one domain is needed, got {domains}")
    if dif == 1:
        return 1.0
    _require(
        domains > 1,
        f"a domain imbalance factor of {dif} needs two domains or more, got one",
        "use dif=1",
    )
    for published in PUBLISHED.values():
        if len(published.order) == domains and dif in published.rho:
            return published.rho[dif]
    return float(dif) ** (1 / (domains - 1))


def clients_per_domain(dif: float, domains: int) -> list[int]:
    """N_i = round(rho^(D-1-i)), halves to even; two clients in every domain at DIF 1."""
    rho = domain_ratio(dif, domains)
    return [2] * domains if dif == 1 else [round(rho ** (domains - 1 - i)) for i in range(domains)]


def domain_sizes(
    available: Sequence[int],
    dif: float = 1,
    *,
    counts: Sequence[int] | None = None,
    like: str | None = None,
) -> list[list[int]]:
    """Training samples of each client, per domain (domains in the order of ``available``, small
    clients first).

    The rule behind the published sizes: domain totals L_0 = base, L_i = min(available_i,
    floor(L_{i-1} / rho)); of them T_i = floor(fraction * L_i) are trained on; client j of N_i takes
    floor(T_i r^j / (1 + r + ... + r^{N_i - 1})) with r = rho, or r = DIF^(1/(N_i-1)) on PACS and
    with four domains or fewer. At DIF 1 all L_i are equal and r = 3. ``like`` names the published
    dataset whose base and fraction to use, whatever is available; without it base is what the first
    domain has and the fraction is 1.
    """
    domains = len(available)
    if like is not None and like not in PUBLISHED:
        raise FedbookError(
            f"no published client sizes for {like!r}", "there are: " + ", ".join(PUBLISHED)
        )
    known = PUBLISHED.get(like or "")
    if known and len(known.order) != domains:
        raise FedbookError(
            f"{like} has {len(known.order)} domains, this dataset has {domains}", "leave out `like`"
        )
    number = list(counts) if counts is not None else clients_per_domain(dif, domains)
    if len(number) != domains:
        raise FedbookError(
            f"{len(number)} client counts for {domains} domains", "give one count per domain"
        )
    _require(
        all(_whole(n) and n >= 1 for n in number),
        f"each domain needs at least one client, got counts {number}",
    )

    top = number[0]
    bottom = number[-1]
    if counts is not None:
        dif = max(1.0, top / bottom)
    rho = domain_ratio(dif, domains)
    fraction = known.fraction if known else 1.0
    inner = known.inner if known else "rho" if domains >= 5 else "dif"
    if dif == 1:
        base = known.balanced_base if known else min(available)
        totals = [base] * domains
    else:
        totals = [known.base if known else available[0]]
        for a in available[1:]:
            totals.append(int(totals[-1] / rho) if known else min(a, int(totals[-1] / rho)))
    sizes = []
    for total, n in zip(totals, number):
        r = 3.0 if dif == 1 else rho
        if inner == "dif" and dif > 1 and n > 1:
            r = float(top // bottom) ** (1 / (n - 1))
        share = n if r == 1 else (r**n - 1) / (r - 1)
        trained = int(total * fraction)
        sizes.append([int(trained * r**j / share) for j in range(n)])
    return sizes


def by_domain(
    domain: Any,
    dif: float = 1,
    *,
    counts: Sequence[int] | None = None,
    order: Sequence[int | str] | None = None,
    names: Sequence[str] | None = None,
    sizes: str | Sequence[Sequence[int]] = "rule",
    scale: float | Literal["fit"] = 1.0,
    min_size: int = 2,
    shuffle: bool = False,
    seed: int = 0,
    within: Any = None,
) -> Parts:
    """Each client holds one domain; domains differ in clients (DIF) and clients in samples, as in
    FedGCR.

    ``order`` lists the domains (numbers, or ``names``), the one with most clients first. ``counts``
    replaces the client counts of the DIF. ``sizes`` is "rule" (see :func:`domain_sizes`),
    "digit_five", "domainnet" or "pacs" (the rule with the published base), "equal" (a domain's
    samples shared equally), or the sizes themselves, one list per domain. ``scale`` multiplies them
    (never below ``min_size``); "fit" takes the largest scale up to 1 that the data allow. Slices
    are taken in stored order, as published, or in a seeded order with ``shuffle``.
    """
    column, rows = _column(domain, within)
    present = np.unique(column[rows])
    chosen = _order(order, names, present)
    pools = [rows[column[rows] == d] for d in chosen]
    available = [len(p) for p in pools]

    if isinstance(sizes, str):
        if sizes == "equal":
            number = list(counts) if counts is not None else clients_per_domain(dif, len(pools))
            if len(number) != len(pools):
                raise FedbookError(
                    f"{len(number)} client counts for {len(pools)} domains",
                    "give one count per domain, in `order`",
                )
            _require(
                all(_whole(n) and n >= 1 for n in number),
                f"each domain needs a client, got counts {number}",
            )
            wanted = [[a // n] * n for a, n in zip(available, number)]
        elif sizes == "rule":
            wanted = domain_sizes(available, dif, counts=counts)
        elif sizes in PUBLISHED:
            wanted = domain_sizes(available, dif, counts=counts, like=sizes)
        else:
            raise FedbookError(
                f"unknown rule for client sizes: {sizes!r}",
                'use "rule", "equal", ' + ", ".join(PUBLISHED) + " or lists",
            )
    else:
        wanted = [[int(n) for n in domain_list] for domain_list in sizes]
        if len(wanted) != len(pools):
            raise FedbookError(
                f"sizes for {len(wanted)} domains, but there are {len(pools)}",
                "give one list per domain",
            )

    if scale == "fit":
        scale = min([1.0] + [a / max(1, sum(w)) for a, w in zip(available, wanted)])
    if isinstance(scale, str) or not _number(scale) or scale <= 0:
        raise FedbookError(f"scale must be a positive number, got {scale!r}", 'or "fit"')
    if scale != 1.0:
        wanted = [[max(min_size, int(n * scale + 1e-9)) for n in w] for w in wanted]
    rng = np.random.default_rng(seed)
    parts: Parts = []
    for d, pool, want in zip(chosen, pools, wanted):
        label = names[d] if names is not None else f"domain {d}"
        if sum(want) > len(pool):
            raise FedbookError(
                f"{label} should give {sum(want)} samples to {len(want)} clients but has "
                f"{len(pool)}",
                'use scale="fit"',
            )
        if min(want) < 1:
            raise FedbookError(
                f"{label} has {len(pool)} samples, too few for {len(want)} clients of sizes {want}",
                'ask for fewer clients or a smaller DIF, or use sizes="equal"',
            )
        pool = rng.permutation(pool) if shuffle else pool
        parts += np.split(pool, np.cumsum(want))[:-1]
    return parts


def test_by_domain(
    domain: Any,
    types: Sequence[int],
    mode: Literal["shared", "split"] = "shared",
    *,
    ratio: float = 3.0,
    within: Any = None,
) -> Parts:
    """Test rows of clients whose domains are ``types``: the domain's whole test set, or a slice of
    it each.

    "shared" is how DIF 5 and 10 were evaluated. "split" gives the clients of a domain, in turn,
    shares 1, ratio, ratio^2... (1:3 at DIF 1, as published).
    """
    column, rows = _column(domain, within)
    kinds = [int(t) for t in types]
    _require(mode in ("shared", "split"), f'mode must be "shared" or "split", got {mode!r}')
    _require(_number(ratio) and ratio > 0, f"ratio must be positive, got {ratio!r}")
    slices: dict[int, Iterator[np.ndarray]] = {}
    for t in sorted(set(kinds)):
        pool = rows[column[rows] == t]
        n = kinds.count(t)
        if len(pool) < (1 if mode == "shared" else n):
            raise FedbookError(
                f"domain {t} has {len(pool)} test samples for {n} clients", 'use mode="shared"'
            )
        if mode == "shared":
            slices[t] = itertools.repeat(pool)
        else:
            ends = np.cumsum(_whole_shares(ratio ** np.arange(n), len(pool), least=1))
            slices[t] = iter(np.split(pool, ends[:-1]))
    return [next(slices[t]) for t in kinds]


test_by_domain.__test__ = False  # type: ignore[attr-defined]  # the name starts with "test", yet it is no test


def types_of(domain: Any, parts: Parts) -> list[int]:
    """The domain (or group) every client's samples come from; an error when a client mixes
    several.
    """
    column = _array(domain)
    found = [np.unique(column[p]) for p in parts]
    mixed = [k for k, f in enumerate(found) if len(f) != 1]
    _require(
        not mixed,
        f"client {mixed[0] if mixed else ''} does not hold exactly one domain",
        "give its type yourself",
    )
    return [int(f[0]) for f in found]


# --------------------------------------------------------------------------------------------------
# clients by label


def iid(labels: Any, clients: int, seed: int = 0, *, within: Any = None) -> Parts:
    """A random deal in equal shares (sizes differ by at most one). ``labels`` may be just the
    number of samples.
    """
    column, rows = _column(np.zeros(labels) if _whole(labels) else labels, within)
    _clients(clients, len(rows))
    return [
        np.sort(p) for p in np.array_split(np.random.default_rng(seed).permutation(rows), clients)
    ]


def dirichlet(
    labels: Any,
    clients: int,
    alpha: float,
    seed: int = 0,
    *,
    min_size: int = 1,
    tries: int = 1000,
    within: Any = None,
) -> Parts:
    """Each class is dealt out in shares ~ Dirichlet(alpha): small alpha, one-sided clients.

    This is the partition of Yurochkin et al. (ICML 2019): one draw per class. "LDA" also names
    another, one draw per client over its classes (Hsu et al. 2019); Client2Vec does not say which.
    A draw in which some client gets fewer than ``min_size`` samples is thrown away, at most
    ``tries`` times.
    """
    column, rows = _column(labels, within)
    _clients(clients, len(rows))
    _require(_number(alpha) and alpha > 0, f"alpha must be a positive number, got {alpha!r}")
    _require(
        _whole(min_size) and min_size >= 0,
        f"min_size must be a whole number >= 0, got {min_size!r}",
    )
    if min_size * clients > len(rows):
        raise FedbookError(
            f"{clients} clients with at least {min_size} samples need {min_size * clients}, "
            f"there are {len(rows)}",
            "lower min_size or the number of clients",
        )
    rng = np.random.default_rng(seed)
    pools = [rng.permutation(rows[column[rows] == c]) for c in np.unique(column[rows])]
    best = -1
    for _ in range(max(1, tries)):
        shares = [_dirichlet(rng, np.full(clients, float(alpha))) for _ in pools]
        counts = np.array([_whole_shares(s, len(p)) for s, p in zip(shares, pools)])
        best = max(best, int(counts.sum(0).min()))
        if counts.sum(0).min() >= min_size:
            return _deal(pools, counts)
    raise FedbookError(
        f"in {tries} Dirichlet({alpha}) draws some client always had fewer than {min_size} "
        f"samples (best {best})",
        "raise alpha, or lower min_size or the number of clients",
    )


def pathological(
    labels: Any,
    clients: int,
    s: int,
    seed: int = 0,
    *,
    style: Literal["pfedhn", "shards"] = "pfedhn",
    within: Any = None,
) -> Parts:
    """Few classes per client.

    "pfedhn": every client holds exactly ``s`` classes, every class is shared by s*clients/classes
    clients (one more or less if that is no whole number) in shares U(0.4, 0.6), normalised.
    pFedHN's own code leaves a part of the samples to nobody (about 9 % with 100 clients and s =
    10); here all are dealt out.
    "shards": sort by label, cut into s*clients equal shards, deal ``s`` shards to each client
    (McMahan et al.); a shard can straddle a class border.
    """
    column, rows = _column(labels, within)
    classes = np.unique(column[rows])
    _clients(clients, len(rows))
    _require(_whole(s) and s >= 1, f"s must be a whole number >= 1, got {s!r}")
    _require(
        s <= len(classes),
        f"s={s} classes per client, but the data have {len(classes)}",
        "choose a smaller s",
    )
    rng = np.random.default_rng(seed)
    if style == "shards":
        if s * clients > len(rows):
            raise FedbookError(
                f"{s * clients} shards from {len(rows)} samples",
                "ask for fewer clients or a smaller s",
            )
        order = rng.permutation(rows)
        shards = np.array_split(order[np.argsort(column[order], kind="stable")], s * clients)
        return [
            np.sort(np.concatenate([shards[j] for j in hand]))
            for hand in rng.permutation(s * clients).reshape(-1, s)
        ]
    _require(style == "pfedhn", f'style must be "pfedhn" or "shards", got {style!r}')
    if s * clients < len(classes):
        raise FedbookError(
            f"{clients} clients x s={s} = {s * clients} places for {len(classes)} classes: some "
            "would belong to nobody",
            "raise s or the number of clients, or leave classes out with `within`",
        )
    quota = np.full(len(classes), s * clients // len(classes))
    quota[rng.permutation(len(classes))[: s * clients % len(classes)]] += 1
    holds = np.zeros((len(classes), clients), dtype=bool)
    for k in range(
        clients
    ):  # the classes with most places left first, ties at random: this always comes out even
        take = np.lexsort((rng.random(len(classes)), -quota))[:s]
        holds[take, k] = True
        quota[take] -= 1
    pools = [rng.permutation(rows[column[rows] == c]) for c in classes]
    counts = np.zeros(holds.shape, dtype=np.int64)
    for c, pool in enumerate(pools):
        if len(pool) < holds[c].sum():
            raise FedbookError(
                f"class {classes[c]} has {len(pool)} samples for {holds[c].sum()} clients",
                "ask for fewer clients or a smaller s",
            )
        counts[c, holds[c]] = _whole_shares(
            rng.uniform(0.4, 0.6, holds[c].sum()), len(pool), least=1
        )
    return _deal(pools, counts)


def pachinko(
    fine: Any,
    coarse: Any,
    clients: int,
    per_client: int,
    beta: float,
    beta_f: float = 10.0,
    seed: int = 0,
    *,
    within: Any = None,
) -> Parts:
    """Two-stage Pachinko allocation (Reddi et al. 2021): Dir(beta) over coarse labels, Dir(beta_f)
    over the fine ones.

    Samples are drawn without replacement; an exhausted fine label is deleted and its coarse label's
    shares renormalised, an exhausted coarse label likewise.
    """
    column, rows = _column(fine, within)
    parents = _array(coarse)
    _require(
        len(parents) == len(column), f"{len(column)} fine labels but {len(parents)} coarse ones"
    )
    _clients(clients, len(rows))
    _require(
        _whole(per_client) and per_client >= 1,
        f"per_client must be a whole number >= 1, got {per_client!r}",
    )
    for name, value in (("beta", beta), ("beta_f", beta_f)):
        _require(_number(value) and value > 0, f"{name} must be a positive number, got {value!r}")
    if clients * per_client > len(rows):
        raise FedbookError(
            f"{clients} clients x {per_client} samples = {clients * per_client}, but there are "
            f"{len(rows)}",
            "ask for fewer clients or a smaller per_client",
        )
    leaves = np.unique(column[rows])
    parent_of = []
    for leaf in leaves:
        above = np.unique(parents[rows[column[rows] == leaf]])
        _require(
            len(above) == 1,
            f"fine label {leaf} lies under {len(above)} coarse labels",
            "each needs exactly one",
        )
        parent_of.append(above[0])
    branches, branch = np.unique(parent_of, return_inverse=True)

    rng = np.random.default_rng(seed)
    pools = [rng.permutation(rows[column[rows] == leaf]) for leaf in leaves]
    stock = np.array([len(p) for p in pools])
    counts = np.zeros((len(leaves), clients), dtype=np.int64)
    for k in range(clients):
        over = _dirichlet(rng, np.full(len(branches), float(beta)))
        under = np.zeros(len(leaves))
        for b in range(len(branches)):
            under[branch == b] = _dirichlet(rng, np.full((branch == b).sum(), float(beta_f)))
        need = per_client
        while need:  # each pass serves everybody or exhausts a leaf
            alive = stock > 0
            left = np.array([stock[branch == b].sum() for b in range(len(branches))])
            ask = _multinomial(rng, need, np.where(left > 0, over, 0.0), left > 0)
            for b in np.flatnonzero(ask).tolist():
                mine = np.flatnonzero((branch == b) & alive)
                got = np.minimum(
                    _multinomial(rng, int(ask[b]), under[mine], np.ones(len(mine), bool)),
                    stock[mine],
                )
                counts[mine, k] += got
                stock[mine] -= got
                need -= int(got.sum())
    return _deal(pools, counts)


def long_tail(
    labels: Any,
    clients: int,
    rho: float,
    tau: float,
    seed: int = 0,
    *,
    total: int | None = None,
    replacement: bool = False,
    within: Any = None,
) -> Parts:
    """GRP-FED's long tail: client sizes n_m ~ m^-rho, class shares geometric with ratio ``tau`` in
    an order of each client's own.

    The paper names one long tail and two factors. We read it as a power of the client's rank for
    sizes (m^-rho) and a power of the factor for classes (tau^k).
    The popular classes are asked for more often than they occur. Without ``replacement`` every
    class is then cut to what there is, in proportion to the demand, and what a client still lacks
    comes from the classes that are left, again by its own shares; with it, samples repeat and the
    shares hold exactly. ``total`` (default: all) is the sum of the sizes.
    """
    column, rows = _column(labels, within)
    classes = np.unique(column[rows])
    _clients(clients, len(rows))
    _require(_number(rho) and rho >= 0, f"rho must be a number >= 0, got {rho!r}")
    _require(_number(tau) and 0 < tau <= 1, f"tau must lie in (0, 1], got {tau!r}")
    total = len(rows) if total is None else total
    _require(
        _whole(total) and total >= clients,
        f"total={total!r} samples for {clients} clients",
        "raise total",
    )
    if not replacement and total > len(rows):
        raise FedbookError(
            f"total={total} samples from {len(rows)}", "lower total or allow replacement=True"
        )

    rng = np.random.default_rng(seed)
    size = _whole_shares(np.arange(1, clients + 1, dtype=float) ** -rho, total, least=1)
    share = np.maximum(
        tau ** np.argsort(rng.random((clients, len(classes))), axis=1).astype(float), 1e-12
    )
    share = (share / share.sum(1, keepdims=True)).T  # classes x clients
    pools = [rng.permutation(rows[column[rows] == c]) for c in classes]
    if replacement:
        hands = [_whole_shares(share[:, m], int(size[m])) for m in range(clients)]
        return [np.concatenate([rng.choice(p, n) for p, n in zip(pools, hand)]) for hand in hands]

    counts = np.zeros((len(classes), clients), dtype=np.int64)
    stock = np.array([len(p) for p in pools])
    while (size > counts.sum(0)).any():  # each pass serves everybody or exhausts a class
        left = stock - counts.sum(1)
        need = size - counts.sum(0)
        want = np.where((left > 0)[:, None], share, 0.0)
        ask = np.stack([_whole_shares(want[:, m], int(need[m])) for m in range(clients)], axis=1)
        for c in np.flatnonzero(ask.sum(1)):
            counts[c] += (
                ask[c]
                if ask[c].sum() <= left[c]
                else _whole_shares(ask[c], int(left[c]), at_most=ask[c])
            )
    return _deal(pools, counts)


def by_group(ids: Any, *, min_size: int = 1, within: Any = None) -> Parts:
    """One client per distinct id (writer, role, patient), in sorted order; groups below
    ``min_size`` are left out.
    """
    column, rows = _column(ids, within)
    groups = [rows[column[rows] == g] for g in np.unique(column[rows])]
    kept = [g for g in groups if len(g) >= min_size]
    _require(bool(kept), f"no group has {min_size} samples or more", "lower min_size")
    return kept


def match(
    train_labels: Sequence[Any], test_labels: Any, seed: int = 0, *, min_size: int = 1
) -> Parts:
    """Local test sets: each class's test samples are shared among its clients in the proportions of
    the training samples.

    ``train_labels`` holds one label vector per client; the returned indices point into
    ``test_labels`` and are disjoint. A client that would go without gets ``min_size`` samples of
    classes it trains on, from the clients richest in them.
    """
    column, rows = _column(test_labels, None)
    mine = [_array(labels) for labels in train_labels]
    rng = np.random.default_rng(seed)
    classes = np.unique(np.concatenate(mine))
    held = np.stack([np.array([(labels == c).sum() for labels in mine]) for c in classes])
    pools = [rng.permutation(rows[column == c]) for c in classes]
    counts = np.stack([_whole_shares(h, len(p)) for h, p in zip(held, pools)])
    others = ~np.eye(len(mine), dtype=bool)
    for k in range(len(mine)):
        for _ in range(max(0, min_size - int(counts[:, k].sum()))):
            may_give = (counts.sum(0) > min_size) & others[k]
            spare = np.where(may_give[None, :] & (held[:, k] > 0)[:, None], counts, 0)
            if spare.max() == 0:
                raise FedbookError(
                    f"too few test samples are left for client {k}, which trains on "
                    f"{(held[:, k] > 0).sum()} classes",
                    "use fewer clients, or test on whole domains",
                )
            c, giver = np.unravel_index(np.argmax(spare), spare.shape)
            counts[c, giver] -= 1
            counts[c, k] += 1
    return _deal(pools, counts)


def at_most(labels: Any, n: int, seed: int = 0) -> Index:
    """Positions of at most ``n`` samples of each class, drawn at random, in their old order."""
    _require(
        _whole(n) and n >= 1,
        f"the number of samples per class must be a whole number >= 1, got {n!r}",
    )
    column = _array(labels)
    order = np.random.default_rng(seed).permutation(len(column))
    return np.sort(np.concatenate([order[column[order] == c][:n] for c in np.unique(column)]))


def split(dataset: Any, rows: Any, how: str, seed: int = 0, **options: Any) -> Parts:
    """The rows of a dataset dealt out by the function called ``how``, which gets the columns it
    needs.
    """
    if how not in HOW:
        raise FedbookError(f"unknown partition {how!r}", "there are: " + ", ".join(HOW))
    options["within"] = rows
    try:
        if how == "by_domain":
            return by_domain(
                dataset.domain, seed=seed, **{"names": dataset.domain_names, **options}
            )
        if how == "by_group":
            ids = options.pop("ids", None)
            return by_group(
                dataset.domain
                if ids is None
                else dataset.extra[ids]
                if isinstance(ids, str)
                else ids,
                **options,
            )
        if how == "pachinko":
            _require(
                "coarse" in dataset.extra,
                f"{dataset.name} has no coarse labels",
                "pachinko needs cifar100",
            )
            return pachinko(dataset.y, dataset.extra["coarse"], seed=seed, **options)
        return HOW[how](dataset.y, seed=seed, **options)
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise FedbookError(
            f"{how}: {str(error).split('() ')[-1]}", f"see help(fedbook.data.partition.{how})"
        ) from error
    except KeyError as error:
        raise FedbookError(
            f"{dataset.name} has no column {error}", f"there are: {', '.join(dataset.extra)}"
        ) from error


HOW: dict[str, Any] = {
    f.__name__: f for f in (by_domain, dirichlet, pathological, pachinko, long_tail, by_group, iid)
}


# --------------------------------------------------------------------------------------------------
# helpers


def _require(condition: bool, message: str, hint: str = "see help(fedbook.data.partition)") -> None:
    if not condition:
        raise FedbookError(message, hint)


def _number(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _clients(clients: Any, samples: int) -> None:
    _require(
        _whole(clients) and clients >= 1,
        f"the number of clients must be a whole number >= 1, got {clients!r}",
    )
    _require(
        clients <= samples,
        f"{clients} clients, but only {samples} samples",
        "ask for fewer clients",
    )


def _array(values: Any) -> np.ndarray:
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    _require(array.ndim == 1, f"labels must be a vector, got shape {array.shape}")
    return array


def _column(values: Any, within: Any) -> tuple[np.ndarray, np.ndarray]:
    column = _array(values)
    rows = np.arange(len(column)) if within is None else _array(within)
    if rows.dtype == bool:
        _require(len(rows) == len(column), f"a mask of {len(rows)} rows for {len(column)} labels")
        rows = np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    _require(len(rows) > 0, "there are no samples to deal out")
    _require(
        bool(rows.min() >= 0 and rows.max() < len(column)),
        f"`within` points outside the {len(column)} labels",
    )
    return column, rows


def _order(
    order: Sequence[int | str] | None, names: Sequence[str] | None, present: np.ndarray
) -> list[int]:
    if order is None:
        return [int(d) for d in present]
    chosen = []
    for entry in order:
        if isinstance(entry, str):
            if names is None or entry not in list(names):
                raise FedbookError(
                    f"no domain is called {entry!r}",
                    f"domains: {', '.join(names or ['(no names given)'])}",
                )
            chosen.append(list(names).index(entry))
        else:
            chosen.append(int(entry))
    _require(len(set(chosen)) == len(chosen), f"a domain appears twice in the order {list(order)}")
    missing = [d for d in chosen if d not in present]
    _require(
        not missing,
        f"the order names domains without samples: {missing}",
        f"domains: {present.tolist()}",
    )
    return chosen


def _dirichlet(rng: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """A Dirichlet draw that survives underflow at tiny alpha (then it is one-hot, its limit)."""
    draw = rng.dirichlet(alpha)
    if not np.isfinite(draw).all() or draw.sum() <= 0:
        draw = np.zeros(len(alpha))
        draw[rng.integers(len(alpha))] = 1.0
    return draw


def _multinomial(
    rng: np.random.Generator, n: int, weight: np.ndarray, allowed: np.ndarray
) -> np.ndarray:
    weight = np.where(allowed, weight, 0.0)
    weight = weight if weight.sum() > 0 else allowed.astype(float)
    return rng.multinomial(n, weight / weight.sum())


def _whole_shares(
    share: np.ndarray, n: int, least: int = 0, at_most: np.ndarray | None = None
) -> np.ndarray:
    """n split into whole numbers in proportion to ``share`` (largest remainder), none below
    ``least``.
    """
    share = np.asarray(share, dtype=float)
    exact = share / share.sum() * n if share.sum() > 0 else np.full(len(share), n / len(share))
    whole = np.floor(exact + 1e-9).astype(np.int64)
    remainder = (
        exact - whole if at_most is None else np.where(whole < at_most, exact - whole, -np.inf)
    )
    whole[np.argsort(-remainder, kind="stable")[: n - int(whole.sum())]] += 1
    for poor in np.flatnonzero(whole < least):
        whole[np.argmax(whole)] -= least - whole[poor]
        whole[poor] = least
    return whole


def _deal(pools: list[np.ndarray], counts: np.ndarray) -> Parts:
    """Cut each class's pool into consecutive slices of the given counts (classes x clients); one
    sorted array per client.
    """
    slices = [np.split(pool, np.cumsum(row))[:-1] for pool, row in zip(pools, counts)]
    return [
        np.sort(np.concatenate([row[k] for row in slices])).astype(np.int64)
        for k in range(counts.shape[1])
    ]
