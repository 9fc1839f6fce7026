# %% 09.3
import torch.nn.functional as F


@dataclass(frozen=True)
class CosineFeatures(IndependentFeatures):
    def __call__(self, local, batch, sent, memory):
        kl = replace(self, orthogonal=False)(local, batch, sent, memory)
        p = projected(local.model)
        return kl + self.weight * (F.normalize(p.P(batch.z)) @ p.B).abs().mean()


for weight in (1.0, 5.0):
    by_length = client2vec("fedavg", index, **stages, weight=weight, **training)
    *first_terms, third = by_length.objective
    mine = by_length.replace(objective=(*first_terms, CosineFeatures(**vars(third))))
    for name, method in (("printed", by_length), ("cosine", mine)):
        (_, accuracy, length), _ = play(method)
        print(
            weight, name, "accuracy", accuracy.round(1).tolist(), "length", length.round(2).tolist()
        )

# %% 09.4
low, high = 1e-3, 10.0
for _ in range(40):
    middle = (low * high) ** 0.5
    low, high = (middle, high) if effective_clients(middle) < 6 else (low, middle)
history = draw_rounds(middle)
drawn = np.bincount(np.concatenate(history), minlength=M)
print("tau", round(middle, 3), "drawn in 40 rounds", drawn.tolist(), "types", types.tolist())


# %% 09.5
@dataclass(frozen=True)
class SampleTheOthers(SampleBySimilarity):
    def __call__(self, state, federation, round, rng):
        away = {**state, "cosines": -state["cosines"]}
        chosen, after = super().__call__(away, federation, round, rng)
        return chosen, {**after, "cosines": state["cosines"]}


plain = methods.get("fedavg", **training)
for SEED in range(3):
    for name, sample in (
        ("uniform", plain.sample),
        ("like the last", SampleBySimilarity(4, index, 0.1)),
        ("the others", SampleTheOthers(4, index, 0.1)),
    ):
        (_, accuracy, _), _ = play(plain.replace(sample=sample))
        print(SEED, name, accuracy.round(1).tolist())
