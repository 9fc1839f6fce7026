# %% 12.4
@dataclass(frozen=True)
class PartOfTheWay(Update):
    rate: float = 0.5

    def __call__(self, state, server, mean, reports):
        return {
            name: server[name] + self.rate * (mean[name] - server[name]) for name in mean
        }, state


fedavg = methods.get("fedavg", **LOCAL)
whole = train(fedavg.replace(name="all the way", update=PartOfTheWay(1.0))).records[-1]
plain = train(fedavg).records[-1]
print("rate 1 is FedAvg:", max(abs(a - b) for a, b in zip(whole.test_acc, plain.test_acc)))
for rate in (1.0, 0.5):
    end = train(fedavg.replace(name="part", update=PartOfTheWay(rate))).records[-1]
    print(rate, round(float(np.mean(end.test_acc)), 3))

# %% 12.5
SEEDS = range(10)
for name, method in (("fedavg", methods.get("fedavg", **LOCAL)), ("by loss", by_loss(0.5))):
    for seed in range(3, 10):
        each = metrics.type_means(train(method, seed).records[-1].test_acc, types)
        found[name, seed] = 100 * np.array(each)
mean = {key: v.mean() for key, v in found.items()}
worst = {key: v.min() for key, v in found.items()}
for label, values, allowed in (("worst type", worst, 0.0), ("mean, 3 points allowed", mean, 3.0)):
    c = above(label, cell(values, "by loss"), cell(values, "fedavg") - allowed)
    print(label, c.verdict, round(c.difference.value, 1), [round(v, 1) for v in c.interval])
