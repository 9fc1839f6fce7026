"""FedGCR's claims. Avg is the mean over types, sigmas are population standard deviations."""

from __future__ import annotations

from collections.abc import Iterator

from fedbook.papers.claims import (
    Cell,
    Check,
    Claims,
    Numbers,
    above,
    below,
    best,
    label,
    leads,
    mean,
    spread,
)
from fedbook.papers.fedgcr.scales import STUDY

claims = Claims("fedgcr")

FAIR, DOMAIN = ("afl", "q_ffl", "term"), ("harmofl", "fedsam", "fedmix")
MAIN = ("table1", "table2", "table6")
SWEEPS = {"table4": ("table1", 5), "table8": ("table2", 6), "table9": ("table6", 4)}


@claims(
    "gcr1",
    "FedGCR has the highest Avg of the eight methods at DIF 1, 5, 10 (Tables 1, 2, 6)",
)
def gcr1(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fedgcr", "avg", *MAIN)


@claims("gcr2", "FedGCR has the lowest sigma_type at DIF 1, 5, 10 (Tables 1, 2, 6)")
def gcr2(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fedgcr", "sigma_type", *MAIN, low=True)


@claims("gcr3", "FedGCR has the lowest sigma_client at DIF 1, 5, 10 (Tables 1, 2, 6)")
def gcr3(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fedgcr", "sigma_client", *MAIN, low=True)


@claims(
    "gcr4",
    "Every method's Avg falls and sigma_type rises from DIF 1 to DIF 10 (Tables 1, 2, 6)",
)
def gcr4(t: Numbers) -> Iterator[Check]:
    for table, settings, methods in t.rows(*MAIN, metric="avg", dif=1):
        later = {**settings, "dif": 10}
        for m in methods:
            yield above(
                label(table, settings, m, "avg"),
                t.cell(table, m, "avg", **settings),
                t.cell(table, m, "avg", **later),
            )
            early, late = (t.cell(table, m, "sigma_type", **s) for s in (settings, later))
            yield above(label(table, settings, m, "sigma_type"), late, early)


@claims(
    "gcr5",
    "FedGCR's lead in Avg over the best baseline is widest at DIF 10 (Tables 1, 2, 6)",
)
def gcr5(t: Numbers) -> Iterator[Check]:
    leads_by: dict[str, dict[int, Cell | None]] = {}
    for table, settings, methods in t.rows(*MAIN, metric="avg"):
        mine = t.cell(table, "fedgcr", "avg", **settings)
        others = best(t.cell(table, m, "avg", **settings) for m in methods if m != "fedgcr")
        leads_by.setdefault(table, {})[settings["dif"]] = (
            None if mine is None or others is None else mine - others
        )
    for table, lead in leads_by.items():
        for dif in (1, 5):
            yield above(
                f"{table} lead at DIF 10 over that at DIF {dif}", lead.get(10), lead.get(dif)
            )


@claims(
    "gcr6",
    "Clustering accuracy is 100 % for T' >= T, lower for T' < T, and never falls as T' grows "
    "(Table 3)",
)
def gcr6(t: Numbers) -> Iterator[Check]:
    previous: dict[int, Cell | None] = {}
    for table, settings, _ in t.rows("table3", metric="clustering_accuracy"):
        here, dif = t.cell(table, "fedgcr", "clustering_accuracy", **settings), settings["dif"]
        if settings["t_prime"] >= 5:
            yield above(label(table, settings, "is 100"), here, 100.0, equal=True)
        else:
            yield below(label(table, settings, "is below 100"), here, 100.0)
        if dif in previous:
            yield above(label(table, settings, "does not fall"), here, previous[dif], equal=True)
        previous[dif] = here


@claims("gcr7", "FedGCR is ahead of every baseline in Avg even with T' < T (Tables 4, 8, 9)")
def gcr7(t: Numbers) -> Iterator[Check]:
    for sweep, (main, types) in SWEEPS.items():
        for table, settings, _ in t.rows(sweep, metric="avg"):
            if settings["t_prime"] < types:
                same = {k: v for k, v in settings.items() if k != "t_prime"}
                for _, _, methods in t.rows(main, metric="avg", dif=settings["dif"]):
                    for m in methods:
                        if m != "fedgcr":
                            mine = t.cell(table, "fedgcr", "avg", **settings)
                            yield above(
                                label(table, settings, f"over {m}"),
                                mine,
                                t.cell(main, m, "avg", **same),
                            )


@claims(
    "gcr8",
    "At DIF 10, Avg: none < FedGR < FedGC < both, and both has the lowest sigmas (Tables 5, 12, "
    "13)",
)
def gcr8(t: Numbers) -> Iterator[Check]:
    order = ("fedavg", "fedgr_only", "fedgc_only", "fedgcr")
    for table in ("table5", "table12", "table13"):
        avg = [t.cell(table, m, "avg") for m in order]
        for a, b, low, high in zip(order, order[1:], avg, avg[1:]):
            yield above(f"{table} avg {b} over {a}", high, low)
        for metric in ("sigma_type", "sigma_client"):
            mine = t.cell(table, "fedgcr", metric)
            for m in order[:-1]:
                yield below(f"{table} {metric} against {m}", mine, t.cell(table, m, metric))


@claims(
    "gcr9",
    "delta from 0.1 to 0.9 changes Avg by about one point at most (taken as < 1.5; Tables 10, 11)",
)
def gcr9(t: Numbers) -> Iterator[Check]:
    for table in ("table10", "table11"):
        for dif in (1, 5):
            cells = [
                t.cell(table, "fedgcr", "avg", **s)
                for _, s, _ in t.rows(table, metric="avg", dif=dif)
            ]
            yield below(f"{table} dif={dif} range of avg", spread(cells), 1.5)


@claims(
    "gcr10",
    "GMM, K-Means and FINCH give similar results (clustering within 5 points, Avg within 1; "
    "Table 14)",
)
def gcr10(t: Numbers) -> Iterator[Check]:
    for metric, width in (("clustering_accuracy", 5.0), ("avg", 1.0)):
        where = {"dataset": "domainnet", "dif": 10}
        cells = [
            t.cell("table14", "fedgcr", metric, clustering_algo=a, **where)
            for a in ("gmm", "kmeans", "finch")
        ]
        yield below(f"table14 range of {metric}", spread(cells), width)


@claims(
    "gcr11",
    "Type prompts h separate the domains better than the frozen feature (k-NN purity; Figure 3)",
)
def gcr11(t: Numbers) -> Iterator[Check]:
    for dataset in ("digit_five", "domainnet"):
        h, frozen = (
            t.cell("fig3", "fedgcr", f"knn_purity_{x}", dataset=dataset) for x in ("h", "frozen")
        )
        yield above(f"fig3 {dataset} purity of h over the frozen feature's", h, frozen)


@claims("gcr12", "gcr1 to gcr3 hold with majority and minority domains swapped (Table 7)")
def gcr12(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fedgcr", "avg", "table7")
    for metric in ("sigma_type", "sigma_client"):
        yield from leads(t, "fedgcr", metric, "table7", low=True)


@claims(
    "gcr13",
    "Fairness methods have lower sigmas than domain methods, domain methods higher Avg (group "
    "means)",
)
def gcr13(t: Numbers) -> Iterator[Check]:
    for table, settings, _ in t.rows(*MAIN, metric="avg"):
        for metric in ("avg", "sigma_type", "sigma_client"):
            fair, domain = (
                mean(t.cell(table, m, metric, **settings) for m in group)
                for group in (FAIR, DOMAIN)
            )
            check = above if metric == "avg" else below
            first, second = (domain, fair) if metric == "avg" else (fair, domain)
            yield check(label(table, settings, metric), first, second)


@claims(
    "gcr14",
    "Own study, no claim of the paper: each quirk of the published code changes Avg by more than "
    "seeds do (DIF 10)",
)
def gcr14(t: Numbers) -> Iterator[Check]:
    for quirk, departure in STUDY.items():
        method = departure.method
        on, off = (t.cell("quirks", method, "avg", quirk=quirk, on=flag) for flag in (1, 0))
        usual = t.cell("table1", method, "avg", dif=10)
        change = None if on is None or off is None else abs(on.value - off.value)
        noise = usual.std if usual is not None and t.scale != "published" else None
        yield above(f"quirks {quirk}", change, noise)


CLAIMS = tuple(claims)
