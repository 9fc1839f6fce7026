"""GRP-FED: Table 1, Figures 1, 3, 4, 5, and our own studies of what is printed but does not work
here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedbook.papers.grp_fed import measures as measures
from fedbook.papers.grp_fed.claims import CLAIMS
from fedbook.papers.grp_fed.figures import (
    beta_sweep,
    client_imbalance,
    mean_and_max_loss,
    personal_scores,
    switched,
    two_clients,
)
from fedbook.papers.grp_fed.scales import (
    ALL,
    BETAS,
    GRID,
    IMAGE_GRID,
    METRICS,
    ON_IMAGES,
    SCALES,
    SYMBOLS,
    experiment,
)
from fedbook.papers.paper import Figure, Paper
from fedbook.papers.rows import Row


def rows(methods: tuple[str, ...], metrics: tuple[str, ...], **settings: Any) -> tuple[Row, ...]:
    """On MIT-BIH, which the paper draws all its figures of."""
    where = {"dataset": "mit_bih", **settings}
    found = []
    for method in methods:
        for metric in metrics:
            found.append(Row(settings=where, method=method, metric=metric, unit="macro_f1"))
    return tuple(found)


def changed(changes: dict[str, tuple[str, ...]]) -> tuple[Row, ...]:
    """Rows with each change of STUDY off and on, for the methods named."""
    found: tuple[Row, ...] = ()
    for change, methods in changes.items():
        for on in (0, 1):
            found += rows(methods, (*SYMBOLS, "effective_clients"), change=change, on=on)
    return found


def betas(values: tuple[float, ...], **settings: Any) -> tuple[Row, ...]:
    """Rows of GRP-FED's personal models for each beta."""
    shown = ("personalization", "generalization", "local_test")
    found: tuple[Row, ...] = ()
    for beta in values:
        found += rows(("grp_fed",), shown, beta=beta, **settings)
    return found


NEAR_AND_FAR = tuple(
    f"{client}_{name}"
    for client in ("near", "far")
    for name in ("global_test", "local_test", "personalization")
)
PAPER = Paper(
    key="grp_fed",
    title="GRP-FED",
    reference=(
        "Chou, Hong, Sun, Cai, Song and Li: GRP-FED: Addressing Client Imbalance in Federated "
        "Learning via Global-Regularized Personalization. arXiv:2108.13858, 2021"
    ),
    published=Path(__file__).parent / "published",
    scales=SCALES,
    experiment=experiment,
    metrics=METRICS,
    plots={"table1": personal_scores},
    figures={
        "fig1": Figure(
            rows(("fedavg",), ("global_test", "best_client_f1", "worst_client_f1")),
            client_imbalance,
        ),
        "fig3": Figure(
            rows(("fedavg", "afl", "q_ffl", "grp_fed"), ("global_test",)), mean_and_max_loss
        ),
        "fig4": Figure(betas(BETAS), beta_sweep),
        "fig5": Figure(rows(ALL, NEAR_AND_FAR), two_clients),
        "fig4_own": Figure(
            betas((0.0, 0.2, 0.5, 0.8, 1.0), change="own_start", on=1),
            beta_sweep,
            "Own study: Figure 4 with personal extractors that never see the global one again, as "
            "in Algorithm 1",
        ),
        "printed": Figure(
            changed({"q_10": ("q_ffl",), "as_printed": ("grp_fed",), "own_start": ("grp_fed",)}),
            switched,
            "Own study: the power 10 and the extractors' own start as printed, against what "
            "validation data chose",
        ),
        "weights": Figure(
            changed({"uniform": ("grp_fed",), "uniform_as_fedavg": ("q_ffl",)}),
            switched,
            "Own study: no powers of the loss, that is the uniform mean, also with FedAvg's step "
            "size",
        ),
        "choices": Figure(
            changed(
                {
                    "q_10_training_loss": ("grp_fed",),
                    "gan_printed": ("grp_fed",),
                }
            ),
            switched,
            "Own study: the loss of the last epoch, the printed adversarial loss",
        ),
        "adaptive": Figure(
            changed({"fixed_q": ("grp_fed",)}),
            switched,
            "Own study: a power that stays at the mean of the adaptive one",
        ),
        "split": Figure(
            changed({"random_split": ALL}),
            switched,
            "Own study: a random fifth of each recording for testing instead of the last",
        ),
        "longer": Figure(
            changed({"longer": ("fedavg", "q_ffl", "grp_fed")}),
            switched,
            "Own study: three times as many rounds",
        ),
    },
    grid=GRID,
    more_grids={"images": (ON_IMAGES, IMAGE_GRID)},
    claims=CLAIMS,
)
