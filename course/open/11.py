# %% 11.3
from fedbook.papers.evidence import Cell, above

SEEDS = range(3)
ends = {}
for SEED in SEEDS:
    for name in PLANS:
        ends[name, SEED] = by_type(train(name) if SEED else runs[name])
    print(SEED, {n: (100 * ends[n, SEED]).round(0).tolist() for n in PLANS})
SEED = 0
for measure in (np.mean, np.min):
    cells = {n: Cell({s: float(100 * measure(ends[n, s])) for s in SEEDS}) for n in PLANS}
    print({n: np.round(list(c.by_seed.values()), 1).tolist() for n, c in cells.items()})
    for k, a in enumerate(PLANS):
        for b in list(PLANS)[:k]:
            c = above(f"{a} above {b}", cells[a], cells[b])
            at = [round(v, 1) for v in (c.difference.value, *c.interval)]
            print(c.label, c.verdict, at, "needs", c.seeds_needed)

# %% 11.4
def styles(run):
    return [np.bincount(np.take(kinds, r.participants), minlength=5) for r in run.records]


for seed in range(3):
    few = {"uniform": run_again("fedavg", seed, participation=5)}
    few |= {f"tau = {v}": run_again("client2vec", seed, participation=5, tau=v) for v in (1.0, 0.1)}
    for name, end in few.items():
        each = (100 * by_type(end)).round(0).tolist()
        print(seed, name, "drawn", np.sum(styles(end), 0).tolist(), "types", each)
    print("   rounds at 0.1", [d.tolist() for d in styles(few["tau = 0.1"])])

# %% 11.5
held_out = seen.validation(0.3)
last = dict(evaluate_every=ROUNDS, quiet=True)
for name, (net, own) in PLANS.items():
    found = {}
    for lr in (2e-3, 5e-3, 2e-2):
        more = {"groups": 8} if net == "fgpt" else {}
        untrained = models.build(net, held_out, seed=SEED, prompts=4, **more)
        tuned = methods.get(name, **{**LOCAL, **own, "lr": lr})
        end = simulate(tuned, held_out, untrained, ROUNDS, SEED, **last).run().records[-1]
        found[lr] = round(float(100 * np.mean(metrics.type_means(end.test_acc, types))), 1)
    best = max(found, key=found.get)
    chosen = runs[name] if best == LOCAL["lr"] else run_again(name, lr=best)
    tested = [round(100 * by_type(r).mean(), 1) for r in (chosen, runs[name])]
    print(name, "validation", found, "test at", best, tested[0], "untuned", tested[1])
