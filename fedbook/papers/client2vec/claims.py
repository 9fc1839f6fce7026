"""Client2Vec's claims. (i) sampling, (ii) aggregation, (iii) local training; indices trained GLOBAL
or FEDERATED."""

from __future__ import annotations

from collections.abc import Iterator

from fedbook.papers.claims import Claims, Numbers
from fedbook.papers.evidence import Cell, Check, above, below, favourite

claims = Claims("client2vec")
STEPS = ("i", "i+ii", "i+ii+iii")
STRATEGIES = ("federated", "global")
NEAR = {"real": ("clipart", "painting", "sketch"), "photo": ("art_painting",)}  # Figure 9
FAR = {"real": ("infograph", "quickdraw"), "photo": ("sketch",)}


def gap(t: Numbers, figure: str, **settings: str) -> Cell:
    """Similarity of clients within a domain minus that across domains."""
    inside, across = (
        t.cell(figure, None, f"{x}_similarity", **settings) for x in ("within", "across")
    )
    return inside - across


@claims(
    "c2v1",
    "Feature indices of one domain's clients nearly coincide, those of others do not (Figure 2)",
)
def c2v1(t: Numbers) -> Iterator[Check]:
    for strategy in ("global", "federated"):
        yield above(f"fig2 {strategy} within over across", gap(t, "fig2", strategy=strategy), 0.0)


@claims("c2v2", "GLOBAL shows clearer domain boundaries than FEDERATED (Figure 2)")
def c2v2(t: Numbers) -> Iterator[Check]:
    clear, less = (gap(t, "fig2", strategy=s) for s in ("global", "federated"))
    yield above("fig2 within minus across", clear, less)


def ladder(t: Numbers) -> Iterator[tuple[str, Cell, dict[str, Cell]]]:
    """For every dataset, base algorithm and strategy of Table 1: the original and the three
    steps.
    """
    for table, settings, methods in t.rows("table1", metric="accuracy", strategy="none"):
        for m in methods:
            original = t.cell(table, m, "accuracy", **settings)
            for strategy in STRATEGIES:
                steps = {}
                for step in STEPS:
                    where = {**settings, "strategy": strategy, "case_studies": step}
                    steps[step] = t.cell(table, m, "accuracy", **where)
                yield f"table1 {settings['dataset']} {m} {strategy}", original, steps


@claims(
    "c2v3",
    "+i, +i+ii and +i+ii+iii are each above the original, for every base algorithm (Table 1)",
)
def c2v3(t: Numbers) -> Iterator[Check]:
    for where, original, steps in ladder(t):
        for step, value in steps.items():
            yield above(f"{where} +{step}", value, original)


@claims("c2v4", "Improved local training (iii) brings the largest gain of the three (Table 1)")
def c2v4(t: Numbers) -> Iterator[Check]:
    for where, original, steps in ladder(t):
        first = steps["i"] - original
        second = steps["i+ii"] - steps["i"]
        third = steps["i+ii+iii"] - steps["i+ii"]
        yield above(f"{where} (iii) over (i)", third, first)
        yield above(f"{where} (iii) over (ii)", third, second)


@claims("c2v5", "Improved aggregation (ii) alone is above the original (Figure 4c-d)")
def c2v5(t: Numbers) -> Iterator[Check]:
    for table, settings, methods in t.rows("table1", metric="accuracy", strategy="none"):
        indexed = {**settings, "strategy": "global", "case_studies": "ii"}
        for m in methods:
            alone = t.cell("fig4", m, "accuracy", **indexed)
            name = f"fig4 {settings['dataset']} {m} +ii alone"
            yield above(name, alone, t.cell(table, m, "accuracy", **settings))


@claims(
    "c2v6",
    "Without L_div the feature indices become nearly identical (similarity across > 0.9; Figure 7)",
)
def c2v6(t: Numbers) -> Iterator[Check]:
    with_, without = (
        t.cell("fig7", None, "across_similarity", variant=v)
        for v in ("client2vec", "omit_diversity_loss")
    )
    yield above("fig7 across domains, without over with", without, with_)
    yield above("fig7 across domains, without", without, 0.9)


@claims("c2v7", "Linear and MLP projections both separate the domains (Figure 8)")
def c2v7(t: Numbers) -> Iterator[Check]:
    for projection in ("linear", "mlp"):
        apart = gap(t, "fig8", projection=projection)
        yield above(f"fig8 {projection} within over across", apart, 0.0)


@claims(
    "c2v8",
    "Each of L_orth, L_sim, L_recon is needed, and simpler indices are weaker, once (iii) is "
    "used (Table 2)",
)
def c2v8(t: Numbers) -> Iterator[Check]:
    def accuracy(variant: str) -> Cell:
        return t.cell("table2", None, "accuracy", variant=variant, case_studies="i+ii+iii")

    losses = ("omit_orthogonal_loss", "omit_text_align_loss", "omit_reconstruction_loss")
    for variant in (*losses, "feature_average", "class_prototypes"):
        yield above(f"table2 over {variant}", accuracy("client2vec"), accuracy(variant))


@claims(
    "c2v9",
    "Under label shift the label index matters more than the feature index (Table 2; feature "
    "shift: nothing printed)",
)
def c2v9(t: Numbers) -> Iterator[Check]:
    for step in ("i", "i+ii"):
        one, other = (
            t.cell("table2", None, "accuracy", variant=f"only_{x}_index", case_studies=step)
            for x in ("label", "feature")
        )
        yield above(f"table2 +{step} label over feature index", one, other)


@claims(
    "c2v10", "The gain is largest with two classes per client (Table 9 against Table 1, CIFAR-10)"
)
def c2v10(t: Numbers) -> Iterator[Check]:
    for m in ("fedavg", "fedavgm"):
        on, off = (t.cell("table9", m, "accuracy", client2vec=flag) for flag in (1, 0))
        plain = t.cell("table1", m, "accuracy", dataset="cifar10", strategy="none")
        for strategy in STRATEGIES:
            where = {"dataset": "cifar10", "strategy": strategy, "case_studies": "i+ii+iii"}
            usual = t.cell("table1", m, "accuracy", **where) - plain
            yield above(f"table9 {m} gain over Table 1's ({strategy})", on - off, usual)


@claims(
    "c2v11",
    "The index costs a few per cent (< 5 %) of training; FedAvg's best is reached in less than "
    "half the time (Table 3)",
)
def c2v11(t: Numbers) -> Iterator[Check]:
    index, training = (
        t.cell("table3", "client2vec", f"{x}_time")
        for x in ("generate_client_index", "training_total")
    )
    yield below("table3 index against 5 % of training (s)", index, training * 0.05)
    total, fedavg = (
        t.cell("table3", m, "total_time_to_fedavg_best") for m in ("client2vec", "fedavg")
    )
    name = "table3 time to FedAvg's best against half of FedAvg's (s)"
    yield below(name, total, fedavg * 0.5)


@claims("c2v12", "More index epochs do not always help (Table 6)")
def c2v12(t: Numbers) -> Iterator[Check]:
    gains = []
    for table, settings, methods in t.rows("table6", metric="accuracy", epochs=100):
        more = {**settings, "epochs": 500}
        for m in methods:
            few, many = (t.cell(table, m, "accuracy", **s) for s in (settings, more))
            gains.append(few - many)
    known = all(g.known for g in gains)
    largest = max(gains, key=lambda g: g.value) if known else Cell()
    yield above("table6 100 over 500 epochs somewhere", largest, 0.0)


@claims(
    "c2v13", "FEDERATED indices prefer a smaller sampling temperature than GLOBAL ones (Table 5)"
)
def c2v13(t: Numbers) -> Iterator[Check]:
    for m in ("fedavg", "fedavgm", "moon"):
        liked = []
        for strategy in STRATEGIES:
            cells = {}
            for tau in (0.1, 0.5, 1.0, 2.0):
                cells[tau] = t.cell("table5", m, "accuracy", strategy=strategy, tau=tau)
            liked.append(favourite(cells))
        federated, global_ = liked
        yield above(f"table5 {m} favourite tau, GLOBAL over FEDERATED", global_, federated)


@claims(
    "c2v14",
    "Similarities between domains agree with intuition: real is nearer clipart than quickdraw "
    "(Figure 9)",
)
def c2v14(t: Numbers) -> Iterator[Check]:
    def similar(a: str, **b: str) -> Cell:
        return t.cell("fig9", None, "domain_similarity", domain_a=a, **b)

    centre = "photo" if similar("photo").known else "real"
    for near in NEAR[centre]:
        for far in FAR[centre]:
            a, b = (similar(centre, domain_b=x) for x in (near, far))
            yield above(f"fig9 {centre}-{near} over {centre}-{far}", a, b)


CLAIMS = tuple(claims)
