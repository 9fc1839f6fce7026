"""GRP-FED's claims, in macro-F1. T_g: global test, T_p: personalisation, T_r: generalisation, T_l:
local test."""

from __future__ import annotations

from collections.abc import Iterator

from fedbook.papers.claims import Check, Claims, Numbers, above, below, holds, leads, mean
from fedbook.papers.grp_fed.scales import ALL, BETAS

claims = Claims("grp_fed")


@claims("grp1", "GRP-FED has the highest global test T_g (Table 1)")
def grp1(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "grp_fed", "global_test", "table1")


@claims("grp2", "GRP-FED has the highest local test T_l (Table 1)")
def grp2(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "grp_fed", "local_test", "table1")


@claims(
    "grp3",
    "LG-FedAvg has the highest T_p and a low T_r (below the mean of the methods; Table 1)",
)
def grp3(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "lg_fedavg", "personalization", "table1")
    for dataset in ("mit_bih", "cifar10"):
        cells = [t.cell("table1", m, "generalization", dataset=dataset) for m in ALL]
        mine = t.cell("table1", "lg_fedavg", "generalization", dataset=dataset)
        yield below(f"table1 {dataset} generalization below the mean", mine, mean(cells))


@claims("grp4", "Local has the lowest T_g (Table 1)")
def grp4(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "local", "global_test", "table1", low=True)


@claims("grp5", "T_p rises and T_r falls with beta, T_l peaks at an inner beta (Figure 4)")
def grp5(t: Numbers) -> Iterator[Check]:
    found = {}
    for metric in ("personalization", "generalization", "local_test"):
        cells = [t.cell("fig4", "grp_fed", metric, beta=b) for b in BETAS]
        found[metric] = (
            None if any(c is None for c in cells) else [c for c in cells if c is not None]
        )
    p, r, l = found["personalization"], found["generalization"], found["local_test"]
    yield above("fig4 T_p, upper over lower half of beta", *halves(p))
    yield below("fig4 T_r, upper against lower half of beta", *halves(r))
    inner = None if l is None else max(range(len(l)), key=lambda i: l[i].value)
    yield holds("fig4 T_l peaks inside", None if inner is None else 0 < inner < len(BETAS) - 1)


def halves(cells):
    """(mean of the upper half, mean of the lower half)."""
    return (
        (None, None)
        if cells is None
        else (mean(cells[len(cells) // 2 :]), mean(cells[: len(cells) // 2]))
    )


@claims(
    "grp6",
    "GRP-FED's highest client loss ends lowest and still falls, q-FFL's turns up, FedAvg's stays "
    "high (Figure 3)",
)
def grp6(t: Numbers) -> Iterator[Check]:
    curves = {
        m: t.curve("fig3", m, "global_loss_max") for m in ("grp_fed", "q_ffl", "afl", "fedavg")
    }
    end = {m: None if c is None else sum(c[-3:]) / len(c[-3:]) for m, c in curves.items()}
    middle = {m: None if c is None else min(c[len(c) // 2 : -3] or c) for m, c in curves.items()}
    for m in ("q_ffl", "afl", "fedavg"):
        yield below(f"fig3 last three rounds against {m}", end["grp_fed"], end[m])
    yield below("fig3 grp_fed still falls", end["grp_fed"], middle["grp_fed"])
    yield above("fig3 q_ffl turns up", end["q_ffl"], middle["q_ffl"])


@claims(
    "grp7",
    "FedAvg's macro-F1 is very uneven over clients on MIT-BIH (best minus worst > 0.5; Figure 1c)",
)
def grp7(t: Numbers) -> Iterator[Check]:
    high, low = (t.cell("fig1", "fedavg", f"{x}_client_f1") for x in ("best", "worst"))
    yield above(
        "fig1 best minus worst client", None if high is None or low is None else high - low, 0.5
    )


@claims(
    "grp8",
    "On a client far from the global distribution LG-FedAvg overfits (high T_p, low T_l), "
    "GRP-FED does not (Figure 5)",
)
def grp8(t: Numbers) -> Iterator[Check]:
    for metric, ahead, behind in (
        ("personalization", "lg_fedavg", "grp_fed"),
        ("local_test", "grp_fed", "lg_fedavg"),
    ):
        a, b = (t.cell("fig5", m, f"far_{metric}") for m in (ahead, behind))
        yield above(f"fig5 far client, {metric}: {ahead} over {behind}", a, b)


CLAIMS = tuple(claims)
