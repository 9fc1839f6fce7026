# %% 11.3
from fedbook.papers.evidence import Cell, above

ends = {(n, s): 100 * by_type(run_again(n, s)).mean() for s in range(5) for n in PLANS}
avg = {n: Cell({s: float(ends[n, s]) for s in range(5)}) for n in PLANS}
for name in PLANS:
    print(name, [round(v, 1) for v in avg[name].by_seed.values()])
    c = above(name, avg[name], avg["fedavg"])
    if name != "fedavg":
        print("  minus fedavg", round(c.difference.value, 1), c.verdict, "needs", c.seeds_needed)

# %% 11.4
for seed in range(3):
    some = run_again("client2vec", seed, participation=5)
    print(seed, [np.bincount(types[r.participants], minlength=5).tolist() for r in some.records])
    worst = [round(by_type(r).min(), 3) for r in (some, run_again("client2vec", seed))]
    print("  worst type: 5 of 15", worst[0], "all", worst[1])

# %% 11.5
held_out = seen.validation(0.3)
for name, (net, own) in PLANS.items():
    found = {}
    for lr in (2e-3, 5e-3, 2e-2):
        more = {"groups": 8} if net == "fgpt" else {}
        untrained = models.build(net, held_out, seed=SEED, prompts=4, **more)
        tuned = methods.get(name, **{**LOCAL, **own, "lr": lr})
        end = simulate(tuned, held_out, untrained, ROUNDS, SEED, quiet=True).run().records[-1]
        found[lr] = round(100 * np.mean(metrics.type_means(end.test_acc, types)), 1)
    best = max(found, key=found.get)
    tested = [round(100 * by_type(r).mean(), 1) for r in (run_again(name, lr=best), runs[name])]
    print(name, "validation", found, "test at", best, tested[0], "untuned", tested[1])
