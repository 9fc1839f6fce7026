# %% 06.3
from fedbook.methods.q_ffl import LossPower

local = dict(lr=2e-2, batch_size=16)
fedgc = methods.get("fedgcr", reweighting=False, **local)
halves = {"FedGC": fedgc, "FedGCR": methods.get("fedgcr", **local)}
halves["FedGC with loss powers"] = fedgc.replace(weigh=(LossPower(q=1.0),))
print(pd.DataFrame({k: row(m) for k, m in halves.items()}).T.round(1).to_string())
