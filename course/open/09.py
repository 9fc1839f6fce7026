# %% 09.3
@dataclass(frozen=True)
class CosineFeatures(IndependentFeatures):
    def __call__(self, local, batch, sent, memory):
        kl_only = replace(self, orthogonal=False)
        kl = IndependentFeatures.__call__(kl_only, local, batch, sent, memory)
        p = projected(local.model)
        return kl + self.weight * (F.normalize(p.P(batch.z), dim=1) @ p.B).abs().mean()


for SEED in range(3):
    for weight in (1.0, 5.0):
        by_length = client2vec("fedavg", index, **stages, weight=weight, **training)
        *first_terms, third = by_length.objective
        mine = by_length.replace(objective=(*first_terms, CosineFeatures(**vars(third))))
        for name, method in (("printed", by_length), ("cosine", mine)):
            (_, accuracy, length), end = play(method)
            seen = {k: round(v, 3) for k, v in look_at(end.model).items()}
            print(SEED, weight, name, accuracy.round(1), length.round(2), seen)
    (_, accuracy, length), end = play(methods.get("fedavg", **training))
    print(SEED, "fedavg", accuracy.round(1), length.round(2), look_at(end.model))


# %% 09.4
def for_six(S=by_hand, out=banned, low=1e-3, high=100.0):
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if effective_clients(middle, S, out) < 6 else (low, middle)
    return middle


@dataclass(frozen=True)
class SampleSix(SampleBySimilarity):
    """A temperature for every round: the draw is always like one of six clients."""

    def __call__(self, state, federation, round, rng):
        recent = state["recent"]
        S = to_group(state["cosines"], state["sizes"], recent[-1] if recent else [])
        out = [i for chosen in recent[-self.window(M) :] for i in chosen]
        tau = for_six(S, out) if recent else 1.0
        taus.append(tau)
        return SampleBySimilarity.__call__(replace(self, tau=tau), state, federation, round, rng)


print(f"tau {for_six():.4f}, at tau = 1 {effective_clients(1.0):.1f} clients of {len(free)}")
taus = []
stage = SampleSix(4, index, 1.0)
state, each_round = stage.init(federation, None), []
for t in range(1, 41):
    chosen, state = stage(state, federation, t, torch.Generator().manual_seed(t))
    each_round.append(chosen)
print(f"tau by round: {min(taus[1:]):.3f} to {max(taus[1:]):.3f}")
drawn = {"the same tau": draw_rounds(for_six()), "a tau for every round": each_round}
for name, history in (drawn | {"tau = 0.02": histories[0.02]}).items():
    times = np.bincount(np.concatenate(history), minlength=M)
    print(name, "drawn", times.tolist(), "by style", times.reshape(5, 4).sum(1).tolist())


# %% 09.5
@dataclass(frozen=True)
class SampleTheOthers(SampleBySimilarity):
    def __call__(self, state, federation, round, rng):
        away = {**state, "cosines": -state["cosines"]}
        chosen, after = super().__call__(away, federation, round, rng)
        return chosen, {**after, "cosines": state["cosines"]}


ROUNDS = 72
plain = methods.get("fedavg", **training)
for SEED in range(3):
    dealt = federate(dataset, "pathological", clients=20, s=2, seed=SEED).clients
    train, few = [c.train[::8] for c in dealt], [c.test[:40] for c in dealt]
    federation = Federation.from_dataset(dataset, train, few)
    tests = torch.cat([c.test for c in federation.clients])
    index = client_index(federation, **small)
    held = torch.stack([federation.class_counts(c) for c in federation.clients]).float()
    for name, sample in (
        ("uniform", plain.sample),
        ("like the last", SampleBySimilarity(4, index, 0.02)),
        ("the others", SampleTheOthers(4, index, 0.02)),
    ):
        (_, accuracy, _), end = play(plain.replace(sample=sample))
        shares = torch.stack([held[r.participants].sum(0) for r in end.records])
        shares /= shares.sum(1, keepdim=True)
        change = (shares[1:] - shares[:-1]).abs().sum(1).mean().item() / 2
        late = accuracy[-6:]
        told = f"{late.mean():.1f} between {late.min():.1f} and {late.max():.1f}"
        print(SEED, name, told, f"classes {effective(shares):.1f} change {change:.2f}")
