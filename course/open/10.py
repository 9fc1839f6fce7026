# %% 10.4
@dataclass(frozen=True)
class NotBelowZero(AdaptivePower):
    def __call__(self, state, reports):
        _, after = super().__call__(state, reports)
        q = max(after["q"], 0.0)
        return q * self.losses(reports).log(), {**after, "q": q}


low = methods.get("grp_fed", q=0.1, start="received", **LOCAL)
for SEED in range(3):
    for name, method in (("free", low), ("at least 0", low.replace(weigh=(NotBelowZero(0.1),)))):
        end = run_again(method)
        print(SEED, name, "q at the end", round(end.records[-1].log["q"], 2), local_tests(end))

# %% 10.5
@dataclass(frozen=True, kw_only=True)
class Mixed(AdversarialLocal):
    alpha: float = 0.5

    def end(self, local, sent, memory):
        here = local.received
        own = memory.get("extractor", {})
        mixed = {n: self.alpha * v + (1 - self.alpha) * here[n] for n, v in own.items()}
        memory["extractor"] = mixed
        return super().end(local, sent, memory)


one = methods.get("grp_fed", q=1.0, start="own", **LOCAL)
for SEED in range(3):
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0):
        mixed = one.replace(personal=Mixed(**vars(one.personal), alpha=alpha))
        print(SEED, "alpha", alpha, local_tests(run_again(mixed)))

# %% 10.6
some = federation.inputs(federation.clients[0].train[:1])
width = fedavg.model.cpu().embed(some).shape[1]
print(width, "features,", federation.num_classes, "classes,", 4 * width * federation.num_classes)
