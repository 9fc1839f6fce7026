"""FGPT's claims. Printed spreads are variances over the last ten rounds; their roots are compared
with ours."""

from __future__ import annotations

from collections.abc import Iterator

from fedbook.papers.claims import Cell, Check, Claims, Numbers, above, below, holds, label, leads

claims = Claims("fgpt")
BASELINES = ("pt_fedavg", "pfedhn", "fed_dualprompt", "moon", "fedmix")
PARAMETERS = (
    0.0961  # million: 5 shared and 20 group prompts of 768 numbers, a head of 768 x 100 + 100
)


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
    for dataset in ("cifar100", "cifar100_c"):
        one = t.cell("table6", "fgpt", "accuracy", dataset=dataset)
        for k in (2, 5):
            yield above(
                f"table6 {dataset} U={k}",
                t.cell("table6", "fgpt_u", "accuracy", dataset=dataset, top_k=k),
                one,
            )


@claims("fgpt3", "The lead over PT-FedAvg grows when s falls (Table 1)")
def fgpt3(t: Numbers) -> Iterator[Check]:
    def lead(dataset: str, s: int) -> Cell | None:
        mine, theirs = (
            t.cell("table1", m, "accuracy", dataset=dataset, s=s) for m in ("fgpt", "pt_fedavg")
        )
        return None if mine is None or theirs is None else mine - theirs

    for dataset, few in (("cifar100", 5), ("cifar100_c", 2)):
        yield above(f"table1 {dataset} s={few} over s=10", lead(dataset, few), lead(dataset, 10))


@claims(
    "fgpt4",
    "The best number of groups lies inside the swept range and grows when s falls (Table 3)",
)
def fgpt4(t: Numbers) -> Iterator[Check]:
    found = {}
    for s in (10, 5):
        cells = {
            g: t.cell("table3", "fgpt", "accuracy", num_groups=g, s=s) for g in (15, 20, 25, 30, 35)
        }
        known = {g: c for g, c in cells.items() if c is not None}
        if len(known) == len(cells):
            found[s] = max(known, key=lambda g: known[g].value)
            inner = max((known[g] for g in (20, 25, 30)), key=lambda c: c.value)
            outer = max((known[g] for g in (15, 35)), key=lambda c: c.value)
            yield above(f"table3 s={s} inner over outer", inner, outer)
        else:
            yield Check(f"table3 s={s}", None)
    yield holds("table3 best G grows as s falls", found[5] > found[10] if len(found) == 2 else None)


@claims(
    "fgpt5",
    "Group prompts > none, orthogonal keys > random keys, U-inference on top (Table 4)",
)
def fgpt5(t: Numbers) -> Iterator[Check]:
    order = ("pt_fedavg", "fgpt_random_key", "fgpt", "fgpt_u")
    cells = [t.cell("table4", m, "accuracy") for m in order]
    for a, b, low, high in zip(order, order[1:], cells, cells[1:]):
        yield above(f"table4 {b} over {a}", high, low)


@claims("fgpt6", "U = 2 brings most (more than half) of the gain of U = 5 (Table 6)")
def fgpt6(t: Numbers) -> Iterator[Check]:
    for dataset in ("cifar100", "cifar100_c"):
        one, two, five = (
            t.cell("table6", None, "accuracy", dataset=dataset, top_k=k) for k in (1, 2, 5)
        )
        known = one is not None and two is not None and five is not None
        gain, half = (two - one, (five - one) * 0.5) if known else (None, None)  # type: ignore[operator]
        yield above(f"table6 {dataset}", gain, half)


@claims(
    "fgpt7",
    "Fewer local epochs: less spread over the last rounds, lower accuracy (Table 8)",
)
def fgpt7(t: Numbers) -> Iterator[Check]:
    for table, settings, methods in t.rows("table8", metric="accuracy", local_epochs=2):
        more = {**settings, "local_epochs": 5}
        for m in methods:
            for metric in ("accuracy", "spread"):
                few, many = (t.cell(table, m, metric, **s) for s in (settings, more))
                yield below(label(table, settings, m, metric), few, many)


@claims("fgpt8", "FGPT + FedMix is above either (Table 9)")
def fgpt8(t: Numbers) -> Iterator[Check]:
    for dataset in ("cifar100", "cifar100_c"):
        both = t.cell("table9", "fgpt_fedmix", "accuracy", dataset=dataset)
        for m in ("fgpt", "fedmix"):
            yield above(
                f"table9 {dataset} over {m}", both, t.cell("table9", m, "accuracy", dataset=dataset)
            )


@claims(
    "fgpt9",
    "96,100 parameters are trained and sent at ViT-B/16, G = 20, 100 classes (Table 2 prints 0.1 "
    "M)",
)
def fgpt9(t: Numbers) -> Iterator[Check]:
    count = t.cell("table2", "fgpt", "trainable_and_communicated_parameters")
    slack = 0.05 if t.scale == "published" else 5e-7
    yield holds("table2 fgpt", None if count is None else abs(count.value - PARAMETERS) < slack)


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
    yield above("unseen clients", unseen, None if seen is None else seen - 5.0)


@claims("fgpt12", "FGPT reaches PT-FedAvg's final accuracy in fewer rounds (Figure 3)")
def fgpt12(t: Numbers) -> Iterator[Check]:
    for s in (10, 5):
        mine, theirs = (t.curve("fig3", m, "avg_sample", s=s) for m in ("fgpt", "pt_fedavg"))
        if mine is None or theirs is None:
            yield Check(f"fig3 s={s}", None)
            continue
        goal = sum(theirs[-10:]) / len(theirs[-10:])
        first = next((i for i, v in enumerate(mine) if v >= goal), len(mine))
        yield above(f"fig3 s={s} evaluations saved", float(len(theirs) - 1), float(first))


@claims("fgpt13", "FGPT has the highest worst-client accuracy (Figure 2)")
def fgpt13(t: Numbers) -> Iterator[Check]:
    yield from leads(t, "fgpt", "worst_client", "fig2", over=BASELINES)


@claims(
    "fgpt14",
    "At test time FGPT costs at most one embedding pass more than plain prompts (Table 10)",
)
def fgpt14(t: Numbers) -> Iterator[Check]:
    mine, plain = (t.cell("table10", m, "testing_flops") for m in ("fgpt", "moon"))
    extra = None if mine is None or plain is None else mine - plain
    embedding = t.cell("table10", "fgpt", "embedding_inference_flops")
    slack = (
        None if embedding is None else embedding * 1.001
    )  # comparing with G keys takes G d of them, a millionth
    yield below("table10 extra testing FLOPs", extra, slack, equal=True)


CLAIMS = tuple(claims)
