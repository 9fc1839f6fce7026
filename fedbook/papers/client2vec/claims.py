"""Client2Vec's claims. (i) sampling, (ii) aggregation, (iii) local training; indices trained GLOBAL
or FEDERATED."""

from __future__ import annotations

from collections.abc import Iterator

from fedbook.papers.claims import Cell, Check, Claims, Numbers, above, below, holds, label

claims = Claims("client2vec")
NEAR = {"real": ("clipart", "painting", "sketch"), "photo": ("art_painting",)}  # Figure 9
FAR = {"real": ("infograph", "quickdraw"), "photo": ("sketch",)}

STEPS = ("i", "i+ii", "i+ii+iii")


def gap(t: Numbers, figure: str, **settings: str) -> Cell | None:
    """Similarity of clients within a domain minus that across domains."""
    inside, across = (
        t.cell(figure, None, f"{x}_similarity", **settings) for x in ("within", "across")
    )
    return None if inside is None or across is None else inside - across


@claims(
    "c2v1",
    "Feature indices of one domain's clients nearly coincide, those of others do not (Figure 2)",
)
def c2v1(t: Numbers) -> Iterator[Check]:
    for strategy in ("global", "federated"):
        yield above(f"fig2 {strategy} within over across", gap(t, "fig2", strategy=strategy), 0.0)


@claims("c2v2", "GLOBAL shows clearer domain boundaries than FEDERATED (Figure 2)")
def c2v2(t: Numbers) -> Iterator[Check]:
    yield above(
        "fig2 within minus across",
        gap(t, "fig2", strategy="global"),
        gap(t, "fig2", strategy="federated"),
    )


def ladder(t: Numbers) -> Iterator[tuple[str, dict[str, Cell | None]]]:
    """For every dataset, base algorithm and strategy of Table 1: the original and the three
    steps.
    """
    for table, settings, methods in t.rows("table1", metric="accuracy", strategy="none"):
        for m in methods:
            for strategy in ("federated", "global"):
                cells = {"none": t.cell(table, m, "accuracy", **settings)}
                for step in STEPS:
                    cells[step] = t.cell(
                        table,
                        m,
                        "accuracy",
                        **{**settings, "strategy": strategy, "case_studies": step},
                    )
                yield f"table1 {settings['dataset']} {m} {strategy}", cells


@claims(
    "c2v3",
    "+i, +i+ii and +i+ii+iii are each above the original, for every base algorithm (Table 1)",
)
def c2v3(t: Numbers) -> Iterator[Check]:
    for where, cells in ladder(t):
        for step in STEPS:
            yield above(f"{where} +{step}", cells[step], cells["none"])


@claims(
    "c2v4",
    "Improved local training (iii) brings the largest gain of the three (Table 1)",
)
def c2v4(t: Numbers) -> Iterator[Check]:
    for where, cells in ladder(t):
        values = [cells[k] for k in ("none", *STEPS)]
        known = [v for v in values if v is not None]
        if len(known) < 4:
            yield Check(where, None)
            continue
        first, second, third = (b - a for a, b in zip(known, known[1:]))
        yield above(f"{where} (iii) over (i)", third, first)
        yield above(f"{where} (iii) over (ii)", third, second)


@claims("c2v5", "Improved aggregation (ii) alone is above the original (Figure 4c-d)")
def c2v5(t: Numbers) -> Iterator[Check]:
    for table, settings, methods in t.rows("table1", metric="accuracy", strategy="none"):
        for m in methods:
            alone = t.cell(
                "fig4", m, "accuracy", **{**settings, "strategy": "global", "case_studies": "ii"}
            )
            yield above(label("fig4", settings, m), alone, t.cell(table, m, "accuracy", **settings))


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
        yield above(
            f"fig8 {projection} within over across", gap(t, "fig8", projection=projection), 0.0
        )


@claims(
    "c2v8",
    "Each of L_orth, L_sim, L_recon is needed, and simpler indices are weaker, once (iii) is "
    "used (Table 2)",
)
def c2v8(t: Numbers) -> Iterator[Check]:
    full = t.cell("table2", None, "accuracy", variant="client2vec", case_studies="i+ii+iii")
    for variant in (
        "omit_orthogonal_loss",
        "omit_text_align_loss",
        "omit_reconstruction_loss",
        "feature_average",
        "class_prototypes",
    ):
        yield above(
            f"table2 over {variant}",
            full,
            t.cell("table2", None, "accuracy", variant=variant, case_studies="i+ii+iii"),
        )


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
    "c2v10",
    "The gain is largest with two classes per client (Table 9 against Table 1, CIFAR-10)",
)
def c2v10(t: Numbers) -> Iterator[Check]:
    for m in ("fedavg", "fedavgm"):
        on, off = (t.cell("table9", m, "accuracy", client2vec=flag) for flag in (1, 0))
        extreme = None if on is None or off is None else on - off
        plain = t.cell("table1", m, "accuracy", dataset="cifar10", strategy="none")
        for strategy in ("federated", "global"):
            best = t.cell(
                "table1",
                m,
                "accuracy",
                dataset="cifar10",
                strategy=strategy,
                case_studies="i+ii+iii",
            )
            usual = None if best is None or plain is None else best - plain
            yield above(f"table9 {m} gain over Table 1's ({strategy})", extreme, usual)


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
    total = t.cell("table3", "client2vec", "total_time_to_fedavg_best")
    fedavg = t.cell("table3", "fedavg", "total_time_to_fedavg_best")
    yield below(
        "table3 index against 5 % of training (s)",
        index,
        None if training is None else training * 0.05,
    )
    yield below(
        "table3 time to FedAvg's best against half of FedAvg's (s)",
        total,
        None if fedavg is None else fedavg * 0.5,
    )


@claims("c2v12", "More index epochs do not always help (Table 6)")
def c2v12(t: Numbers) -> Iterator[Check]:
    pairs = []
    for table, settings, methods in t.rows("table6", metric="accuracy", epochs=100):
        for m in methods:
            pairs.append(
                [t.cell(table, m, "accuracy", **{**settings, "epochs": e}) for e in (100, 500)]
            )
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < len(pairs):
        yield Check("table6", None)
    else:
        few, many = max(known, key=lambda p: p[0].value - p[1].value)
        yield above("table6 100 over 500 epochs somewhere", few, many)


@claims(
    "c2v13",
    "FEDERATED indices prefer a smaller sampling temperature than GLOBAL ones (Table 5)",
)
def c2v13(t: Numbers) -> Iterator[Check]:
    for m in ("fedavg", "fedavgm", "moon"):
        favourite = []
        for strategy in ("federated", "global"):
            cells = {
                x: t.cell("table5", m, "accuracy", strategy=strategy, tau=x)
                for x in (0.1, 0.5, 1.0, 2.0)
            }
            known = {x: c.value for x, c in cells.items() if c is not None}
            favourite.append(max(known, key=known.__getitem__) if len(known) == 4 else None)
        federated, global_ = favourite
        yield holds(
            f"table5 {m}", None if federated is None or global_ is None else federated < global_
        )


@claims(
    "c2v14",
    "Similarities between domains agree with intuition: real is nearer clipart than quickdraw "
    "(Figure 9)",
)
def c2v14(t: Numbers) -> Iterator[Check]:
    centre = (
        "photo"
        if t.cell("fig9", None, "domain_similarity", domain_a="photo") is not None
        else "real"
    )
    for near in NEAR[centre]:
        for far in FAR[centre]:
            a, b = (
                t.cell("fig9", None, "domain_similarity", domain_a=centre, domain_b=x)
                for x in (near, far)
            )
            yield above(f"fig9 {centre}-{near} over {centre}-{far}", a, b)


CLAIMS = tuple(claims)
