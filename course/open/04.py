# %% 04.6
from fedbook.methods.q_ffl import DynamicStep

caught = methods.get("q_ffl", q=1.0, **{**LOCAL, **LOCALS["adamw"]})
escaped = {"eta = nominal": caught, "eta = 1": caught.replace(update=DynamicStep(1.0, lr=1.0))}
for seed in range(3):
    for name, method in escaped.items():
        end = run_again(method, seed)
        steps = [round(r.log["step"], 3) for r in end.records]
        found = metrics.summarise(end.records[-1], kinds)
        print(
            seed,
            name,
            "step",
            steps[0],
            "to",
            steps[-1],
            {k: round(v, 3) for k, v in found.items()},
        )


# %% 04.7
def rise(run, seed, rho=0.05):
    dealt = deal(seed)
    net, all_rows = run.model.cpu(), torch.cat([k.train for k in dealt.clients])
    x_all, y_all = dealt.inputs(all_rows).cpu(), dealt.y[all_rows].cpu()
    parameters = [v for v in net.parameters() if v.requires_grad]
    here = torch.nn.functional.cross_entropy(net(x_all), y_all)
    slopes = torch.autograd.grad(here, parameters)
    norm = torch.cat([g.flatten() for g in slopes]).norm()
    with torch.no_grad():
        for v, g in zip(parameters, slopes):
            v += rho * g / norm
        there = torch.nn.functional.cross_entropy(net(x_all), y_all)
    return round((there - here).item(), 4), round(here.item(), 4)


for seed in range(3):
    three = {"fedavg": ("fedavg", {}), "rho 0.05": ("fedsam", {"rho": 0.05})}
    three["rho 0.5"] = ("fedsam", {"rho": 0.5})
    found = {k: rise(train(name, seed, **o), seed) for k, (name, o) in three.items()}
    print(seed, "(rise, training loss):", found)

# %% 04.8
changes = []
for seed in range(3):
    plain, dim = train("fedsam", seed).records[-1], train("harmofl", seed, window=0.0).records[-1]
    one, other = (metrics.type_means(r.test_acc, kinds) for r in (plain, dim))
    changes.append(100 * (other - one))
    print(seed, "fedsam", np.round(100 * one, 1), "window 0", np.round(100 * other, 1))
print("change", np.mean(changes, 0).round(1), "+-", np.std(changes, 0, ddof=1).round(1))
