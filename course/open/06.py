# %% 06.3
from fedbook.methods.q_ffl import LossPower

local = dict(lr=2e-2, batch_size=16)
fedgc = methods.get("fedgcr", reweighting=False, **local)
halves = {"FedGC": fedgc, "FedGCR": methods.get("fedgcr", **local)}
halves["FedGC with loss powers"] = fedgc.replace(weigh=(LossPower(q=1.0),))
print(pd.DataFrame({k: row(m) for k, m in halves.items()}).T.round(1).to_string())

# %% 06.4
from fedbook import Experiment

pairs = {"fedgcr": "fedgc", "fedavg": "vpt"}  # both on prompts, both with AdamW
few = {"name": "by_domain", "dif": 10, "scale": 0.05}
for rate in (0.001, 0.01):
    avg = {name: [] for name in pairs}
    for seed in range(3):
        for name, net in pairs.items():
            local = dict(optimizer="adamw", batch_size=16, lr=rate)
            run = Experiment(
                dataset={"name": "digits5_offline"},
                partition=few,
                model={"name": net},
                method={"name": name, **local},
                rounds=6,
                seed=seed,
                evaluate_every=6,
            ).run()
            avg[name].append(100 * run["metrics"]["avg_type"])
        print(rate, {name: np.round(v, 1).tolist() for name, v in avg.items()})
    lead = np.subtract(avg["fedgcr"], avg["fedavg"])
    print("  lead", lead.round(1), f"{lead.mean():.1f} +- {lead.std(ddof=1):.1f}")
