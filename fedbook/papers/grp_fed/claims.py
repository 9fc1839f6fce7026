"""GRP-FED's claims, in macro-F1. T_g: global test, T_p: personalisation, T_r: generalisation, T_l:
local test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from fedbook.papers.claims import Claims, Numbers, leads
from fedbook.papers.evidence import Cell, Check, above, below, best, mean
from fedbook.papers.grp_fed.scales import ALL, BETAS

claims = Claims("grp_fed")


@claims("grp1", "GRP-FED has the highest global test T_g (Table 1)")
def grp1(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "grp_fed", "global_test", "table1")


@claims("grp2", "GRP-FED has the highest local test T_l (Table 1)")
def grp2(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "grp_fed", "local_test", "table1")


@claims(
    "grp3", "LG-FedAvg has the highest T_p and a low T_r (below the mean of the methods; Table 1)"
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
    def along(metric: str) -> list[Cell]:
        return [t.cell("fig4", "grp_fed", metric, beta=b) for b in BETAS]

    upper, lower = halves(along("personalization"))
    yield above("fig4 T_p, upper over lower half of beta", upper, lower)
    upper, lower = halves(along("generalization"))
    yield below("fig4 T_r, upper against lower half of beta", upper, lower)
    first, *inner, last = along("local_test")
    yield above("fig4 T_l, best inner over outer beta", best(inner), best([first, last]))


def halves(cells: Sequence[Cell]) -> tuple[Cell, Cell]:
    """(mean of the upper half, mean of the lower half)."""
    middle = len(cells) // 2
    return mean(cells[middle:]), mean(cells[:middle])


@claims(
    "grp6",
    "GRP-FED's highest client loss ends lowest and still falls, q-FFL's turns up, FedAvg's stays "
    "high (Figure 3)",
)
def grp6(t: Numbers) -> Iterator[Check]:
    def loss(method: str, summary: Callable[[list[float]], float]) -> Cell:
        return t.over_rounds("fig3", method, "global_loss_max", summary)

    def end(curve: list[float]) -> float:
        return fmean(curve[-3:])

    def lowest_before(curve: list[float]) -> float:
        return min(curve[len(curve) // 2 : -3] or curve)

    mine = loss("grp_fed", end)
    for m in ("q_ffl", "afl", "fedavg"):
        yield below(f"fig3 last three rounds against {m}", mine, loss(m, end))
    yield below("fig3 grp_fed still falls", mine, loss("grp_fed", lowest_before))
    yield above("fig3 q_ffl turns up", loss("q_ffl", end), loss("q_ffl", lowest_before))


@claims(
    "grp7",
    "FedAvg's macro-F1 is very uneven over clients on MIT-BIH (best minus worst > 0.5; Figure 1c)",
)
def grp7(t: Numbers) -> Iterator[Check]:
    high, low = (t.cell("fig1", "fedavg", f"{x}_client_f1") for x in ("best", "worst"))
    yield above("fig1 best minus worst client", high - low, 0.5)


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
