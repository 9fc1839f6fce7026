"""FGPT's claims. Printed spreads are variances over the last ten rounds; their roots are compared
with ours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from statistics import fmean

from fedbook.papers.claims import Claims, Numbers, label, leads
from fedbook.papers.evidence import Cell, Check, above, below, best, favourite, within

claims = Claims("fgpt")
BASELINES = ("pt_fedavg", "pfedhn", "fed_dualprompt", "moon", "fedmix")
SPLIT = ("cifar100", "cifar100_c")
GROUPS = (15, 20, 25, 30, 35)  # of Table 3
# Million: 5 shared and 20 group prompts of 768 numbers, a head of 768 x 100 + 100.
PARAMETERS = 0.0961


@claims(
    "fgpt1",
    "FGPT is above PT-FedAvg, pFedHN, Fed-DualPrompt, MOON and FedMix in every setting (Table 1)",
)
def fgpt1(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fgpt", "accuracy", "table1", over=BASELINES)


@claims("fgpt2", "FGPT-U is above FGPT (Tables 1, 6)")
def fgpt2(t: Numbers) -> Iterator[Check]:
    for table, settings, _ in t.rows("table1", metric="accuracy"):
        if settings["dataset"] != "five_dataset":
            u, one = (t.cell(table, m, "accuracy", **settings) for m in ("fgpt_u", "fgpt"))
            yield above(label(table, settings), u, one)
    for dataset in SPLIT:
        one = t.cell("table6", "fgpt", "accuracy", dataset=dataset)
        for k in (2, 5):
            u = t.cell("table6", "fgpt_u", "accuracy", dataset=dataset, top_k=k)
            yield above(f"table6 {dataset} U={k}", u, one)


@claims("fgpt3", "The lead over PT-FedAvg grows when s falls (Table 1)")
def fgpt3(t: Numbers) -> Iterator[Check]:
    def lead(dataset: str, s: int) -> Cell:
        mine, theirs = (
            t.cell("table1", m, "accuracy", dataset=dataset, s=s) for m in ("fgpt", "pt_fedavg")
        )
        return mine - theirs

    for dataset, few in (("cifar100", 5), ("cifar100_c", 2)):
        yield above(f"table1 {dataset} s={few} over s=10", lead(dataset, few), lead(dataset, 10))


@claims(
    "fgpt4",
    "The best number of groups lies inside the swept range and grows when s falls (Table 3)",
)
def fgpt4(t: Numbers) -> Iterator[Check]:
    found = {}
    for s in (10, 5):
        cells = {float(g): t.cell("table3", "fgpt", "accuracy", num_groups=g, s=s) for g in GROUPS}
        found[s] = favourite(cells)
        first, *inner, last = cells.values()
        yield above(f"table3 s={s} inner over outer", best(inner), best([first, last]))
    yield above("table3 best G grows as s falls", found[5], found[10])


@claims(
    "fgpt5", "Group prompts > none, orthogonal keys > random ones, U-inference on top (Table 4)"
)
def fgpt5(t: Numbers) -> Iterator[Check]:
    order = ("pt_fedavg", "fgpt_random_key", "fgpt", "fgpt_u")
    for worse, better in zip(order, order[1:]):
        high, low = (t.cell("table4", m, "accuracy") for m in (better, worse))
        yield above(f"table4 {better} over {worse}", high, low)


@claims("fgpt6", "U = 2 brings most (more than half) of the gain of U = 5 (Table 6)")
def fgpt6(t: Numbers) -> Iterator[Check]:
    for dataset in SPLIT:
        one, two, five = (
            t.cell("table6", None, "accuracy", dataset=dataset, top_k=k) for k in (1, 2, 5)
        )
        yield above(f"table6 {dataset}", two - one, (five - one) * 0.5)


@claims("fgpt7", "Fewer local epochs: less spread over the last rounds, lower accuracy (Table 8)")
def fgpt7(t: Numbers) -> Iterator[Check]:
    for table, settings, methods in t.rows("table8", metric="accuracy", local_epochs=2):
        more = {**settings, "local_epochs": 5}
        for m in methods:
            for metric in ("accuracy", "spread"):
                few, many = (t.cell(table, m, metric, **s) for s in (settings, more))
                yield below(label(table, settings, m, metric), few, many)


@claims("fgpt8", "FGPT + FedMix is above either (Table 9)")
def fgpt8(t: Numbers) -> Iterator[Check]:
    for dataset in SPLIT:
        both = t.cell("table9", "fgpt_fedmix", "accuracy", dataset=dataset)
        for m in ("fgpt", "fedmix"):
            alone = t.cell("table9", m, "accuracy", dataset=dataset)
            yield above(f"table9 {dataset} over {m}", both, alone)


@claims(
    "fgpt9",
    "96,100 parameters are trained and sent at ViT-B/16, G = 20, 100 classes (Table 2 prints 0.1 "
    "M)",
)
def fgpt9(t: Numbers) -> Iterator[Check]:
    count = t.cell("table2", "fgpt", "trainable_and_communicated_parameters")
    slack = 0.05 if t.scale == "published" else 5e-7
    yield within("table2 fgpt", count, PARAMETERS, slack)


@claims(
    "fgpt10",
    "FGPT has the most similar shared prompts and the least similar global group prompts (Table "
    "11)",
)
def fgpt10(t: Numbers) -> Iterator[Check]:
    for m in ("pt_fedavg_share", "pt_fedavg", "fed_dualprompt"):
        mine, theirs = (t.cell("table11", x, "shared_prompt_similarity") for x in ("fgpt", m))
        yield above(f"table11 shared prompts over {m}", mine, theirs)
    mine, theirs = (
        t.cell("table11", x, "group_prompt_similarity_global") for x in ("fgpt", "fed_dualprompt")
    )
    yield below("table11 group prompts against fed_dualprompt", mine, theirs)


@claims(
    "fgpt11",
    "Clients never seen in training are served without fine-tuning (within 5 points of the others)",
)
def fgpt11(t: Numbers) -> Iterator[Check]:
    seen, unseen = (t.cell(None, "fgpt", metric) for metric in ("seen_accuracy", "unseen_accuracy"))
    yield above("unseen clients", unseen, seen - 5.0)


@claims(
    "fgpt12",
    "FGPT reaches PT-FedAvg's final accuracy in fewer rounds than PT-FedAvg itself (Figure 3)",
)
def fgpt12(t: Numbers) -> Iterator[Check]:
    for s in (10, 5):
        goal = t.over_rounds("fig3", "pt_fedavg", "avg_sample", _final, s=s)
        fgpt, own = (_first_at(t, m, goal, s) for m in ("fgpt", "pt_fedavg"))
        yield above(f"fig3 s={s} evaluations saved", own, fgpt)


def _final(curve: list[float]) -> float:
    """The mean of the last sixth: ten of the printed 60 rounds."""
    return fmean(curve[-math.ceil(len(curve) / 6) :])


def _first_at(t: Numbers, method: str, goal: Cell, s: int) -> Cell:
    """The first evaluation of a method at which each seed's goal is reached."""
    found = {}
    for seed, aim in goal.by_seed.items():

        def first(curve: list[float], aim: float = aim) -> float:
            return float(next((i for i, v in enumerate(curve) if v >= aim), len(curve)))

        at = t.over_rounds("fig3", method, "avg_sample", first, s=s)
        if seed in at.by_seed:
            found[seed] = at.by_seed[seed]
    return Cell(found)


@claims("fgpt13", "FGPT has the highest worst-client accuracy (Figure 2)")
def fgpt13(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fgpt", "worst_client", "fig2", over=BASELINES)


@claims(
    "fgpt14",
    "At test time FGPT costs at most one embedding pass more than plain prompts (Table 10)",
)
def fgpt14(t: Numbers) -> Iterator[Check]:
    mine, plain = (t.cell("table10", m, "testing_flops") for m in ("fgpt", "moon"))
    embedding = t.cell("table10", "fgpt", "embedding_inference_flops")
    slack = embedding * 1.001  # comparing with G keys takes G d of them, a millionth
    yield below("table10 extra testing FLOPs", mine - plain, slack, equal=True)


@claims(
    "fgpt15",
    "Own study, no claim of the paper: frozen blocks in bfloat16 change accuracy by less than two "
    "points (CIFAR-100)",
    own=True,
)
def fgpt15(t: Numbers) -> Iterator[Check]:
    for s, m in product((10, 5), ("fgpt", "pt_fedavg")):
        half, full = (
            t.cell("precision", m, "accuracy", s=s, precision=p) for p in ("bfloat16", "float32")
        )
        yield within(f"precision s={s} {m}, bfloat16 and float32", half, full, 2.0)


@claims(
    "fgpt16",
    "Own study, no claim of the paper: groups by an oracle, of classes or of domains, are better "
    "than groups by keys",
    own=True,
)
def fgpt16(t: Numbers) -> Iterator[Check]:
    for dataset, oracle in (("cifar100", "classes"), ("five_dataset", "types")):
        told, keys = (
            t.cell("grouping", "fgpt", "accuracy", dataset=dataset, groups_by=by)
            for by in (oracle, "keys")
        )
        yield above(f"grouping {dataset} by {oracle} over by keys", told, keys)


@claims(
    "fgpt17",
    "Own study, no claim of the paper: pFedHN leads PT-FedAvg by less on clients it never saw, "
    "which have no vector of their own",
    own=True,
)
def fgpt17(t: Numbers) -> Iterator[Check]:
    seen, unseen = (
        t.cell("unseen", "pfedhn", f"{who}_accuracy")
        - t.cell("unseen", "pt_fedavg", f"{who}_accuracy")
        for who in ("seen", "unseen")
    )
    yield above("unseen lead of pFedHN, trained over never sampled", seen, unseen)


CLAIMS = tuple(claims)
