# %% [markdown]
r"""
# Project · A rule of your own: whom does it serve?

**Time.** Two to three weeks in pairs, about 12 hours. **Points.** 40: 12 by tests, 28 by the rubric
below. **Helps:** notebooks 00 to 04, and that of the paper you start from.

You design a rule that says *what each client counts*, run it against FedAvg, and report for whom it
is better and for whom it is worse. The data come with scikit-learn and a run takes seconds, so
there is time for what matters: a question, a fair comparison, and honest words about it.

## Rubric

| points | what | full points for |
|--:|:---|:---|
| 12 | tests | the cells in parts 1 to 3 pass |
| 5 | question | one sentence that could turn out false, and why you expect it |
| 6 | comparison | same data, model, rounds, trials; validation data; 5 paired seeds with spread |
| 6 | evidence | a table, a figure; mean over clients, mean over types, worst client |
| 6 | honesty | who loses; what noise could explain; what failed; what the data cannot show |
| 5 | form | runs from top to bottom; clear to a reader who knows FedAvg; 3 pages at most |

*Question*: said before the results. *Comparison*: settings are chosen on validation data, never on
test data; differences are paired by seed, with their spread. *Evidence*: axes are named, and
everybody can tell the colours apart. *Honesty*: also what you tried and do not show.

Take off up to 5 points for a claim that the numbers do not support, however well it is written.
"""

# %% solve="name"
STUDENT = ""  # your names (your data depend on them); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedbook import BySize, Federation, Report, Weigh, methods, metrics, models, simulate
from fedbook.course import toy

digits = load_digits()
yours = toy.numbers(STUDENT, "project").permutation(1797)[:1400]  # of 1,797 pictures
X = (digits.images[yours] / 16).astype("float32")[:, None]  # 8 x 8 pixels, from 0 to 1
Y = digits.target[yours]


def looks(x, kind, rng):
    """How three kinds of clients see a digit: as it is, as a negative, or through noise."""
    if kind == 0:
        return x
    if kind == 1:
        return 1 - x
    return np.clip(x + rng.normal(0, 0.5, x.shape), 0, 1).astype("float32")

# %% [markdown]
r"""
## 1 · The federation (4 points)

Make 12 clients of three types with **8, 3 and 1** clients: types 0, 1 and 2 of `looks`. Shuffle all
pictures with a generator of seed `seed`, give every client 40 training and 60 test pictures, and no
picture to two clients. Return `Federation.from_arrays(...)` with one dict per client: `train=(x,
y)`, `test=(x, y)`, `type=...`.
"""

# %% solve="federation"
def federation(seed):
    """Twelve clients of three types."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    clients = []
    for k, kind in enumerate(np.repeat(range(3), [8, 3, 1])):
        rows = order[100 * k : 100 * (k + 1)]
        x = looks(X[rows], kind, rng)
        clients.append(
            {"train": (x[:40], Y[rows[:40]]), "test": (x[40:], Y[rows[40:]]), "type": int(kind)}
        )
    return Federation.from_arrays(clients, class_names=[str(c) for c in range(10)])
    ### END SOLUTION

# %% wrong="federation"
# test pictures are among the training pictures
def federation(seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    clients = []
    for k, kind in enumerate(np.repeat(range(3), [8, 3, 1])):
        rows = order[60 * k : 60 * (k + 1)]
        x = looks(X[rows], kind, rng)
        part = {"train": (x[:40], Y[rows[:40]]), "test": (x, Y[rows]), "type": int(kind)}
        clients.append(part)
    return Federation.from_arrays(clients, class_names=[str(c) for c in range(10)])

# %% test="federation" points=4
fed = federation(0)
assert [c.type for c in fed.clients] == [0] * 8 + [1] * 3 + [2]
assert {len(c.train) for c in fed.clients} == {40} and {len(c.test) for c in fed.clients} == {60}
### BEGIN HIDDEN TESTS
for seed in (0, 1):
    fed = federation(seed)
    plain = [c for c in fed.clients if c.type == 0]
    seen = [fed.x[i].numpy().tobytes() for c in plain for i in (*c.train, *c.test)]
    assert len(set(seen)) == len(seen), "a picture occurs twice"
    assert not torch.equal(federation(0).x, federation(1).x), "the seed must matter"
    assert torch.equal(federation(seed).x, fed.x), "and nothing else"
    negative = next(c for c in fed.clients if c.type == 1)
    assert fed.x[negative.train].mean() > 0.5, "type 1 sees negatives"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · Your rule (5 points)

A rule is a subclass of `Weigh` that returns the *logarithm* of a factor for each participant;
`BySize()` is another factor, and factors multiply. It must have one parameter that switches it off:
at `strength = 0` the result is FedAvg, exactly. What a participant reports: `r.size`, `r.loss` (at
the received model), `r.id`.

The sample below counts clients by a power of their loss. Replace it: by the *rank* of the loss, by
how much the loss fell since the client was last seen, by its distance to the median, by a group you
find from the losses... Say in the docstring what it does.
"""

# %% solve="rule"
@dataclass(frozen=True)
class Mine(Weigh):
    """Say here what a client counts."""

    strength: float = 1.0
    loss: str | None = field(default="received", kw_only=True)

    def __call__(self, state, reports):
        ### BEGIN SOLUTION
        losses = self.losses(reports)
        rank = losses.argsort().argsort().double() / max(1, len(reports) - 1)
        return self.strength * rank, state
        ### END SOLUTION

# %% wrong="rule"
# weights instead of their logarithms: strength 0 is not FedAvg for clients that differ
@dataclass(frozen=True)
class Mine(Weigh):
    """A power of the loss, not in logarithms."""

    strength: float = 1.0
    loss: str | None = field(default="received", kw_only=True)

    def __call__(self, state, reports):
        return self.losses(reports) ** (1 + self.strength), state

# %% test="rule" points=5
def weights(strength, sizes, losses):
    method = methods.get("fedavg").replace(weigh=(BySize(), Mine(strength)))
    return toy.weigh(method, sizes, losses)


sizes, losses = [10, 20, 30], [0.5, 0.5, 0.5]
assert np.isclose(weights(1.0, sizes, losses).sum(), 1)
assert np.allclose(weights(0.0, sizes, losses), np.array(sizes) / 60), "strength 0 is FedAvg"
### BEGIN HIDDEN TESTS
off, on = (weights(s, [10, 20, 30, 40], [0.2, 1.4, 0.6, 3.0]) for s in (0.0, 1.0))
assert np.allclose(off, [0.1, 0.2, 0.3, 0.4]), "at strength 0 losses must not matter"
assert not np.allclose(on, off), "at strength 1 something must happen"
assert np.isfinite(weights(1.0, [5, 5], [1e-12, 50.0])).all()
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · One comparison (3 points)

Train both rules on the same federation from the same model and seed: `rounds` rounds of
`methods.get("fedavg", lr=0.1, epochs=1, batch_size=20)`, and the same with your weights. Return the
**paired differences, yours minus FedAvg's**, of the last round: mean over clients, mean over types,
worst client. `record.test_acc` has every client's accuracy.
"""

# %% solve="compare"
def compare(seed, strength=1.0, rounds=15):
    """A dict: avg_client, avg_type, worst_client."""
    ### BEGIN SOLUTION
    fed = federation(seed)
    plain = methods.get("fedavg", lr=0.1, epochs=1, batch_size=20)
    scores = []
    for method in (plain.replace(weigh=(BySize(), Mine(strength))), plain):
        run = simulate(method, fed, models.build("mlp", fed), rounds, seed, quiet=True).run()
        scores.append(metrics.summarise(run.records[-1], [c.type for c in fed.clients]))
    names = ("avg_client", "avg_type", "worst_client")
    return {n: scores[0][n] - scores[1][n] for n in names}
    ### END SOLUTION

# %% wrong="compare"
# compares runs of different seeds
def compare(seed, strength=1.0, rounds=15):
    plain = methods.get("fedavg", lr=0.1, epochs=1, batch_size=20)
    scores = []
    for s, rule in ((seed, Mine(strength)), (seed + 1, None)):
        fed = federation(s)
        weigh = (BySize(),) if rule is None else (BySize(), rule)
        method, model = plain.replace(weigh=weigh), models.build("mlp", fed)
        last = simulate(method, fed, model, rounds, s, quiet=True).run().records[-1]
        scores.append(metrics.summarise(last, [c.type for c in fed.clients]))
    names = ("avg_client", "avg_type", "worst_client")
    return {n: scores[0][n] - scores[1][n] for n in names}

# %% test="compare" points=3
once = compare(0, rounds=3)
assert set(once) == {"avg_client", "avg_type", "worst_client"}
assert all(-1 <= v <= 1 for v in once.values())
### BEGIN HIDDEN TESTS
assert all(v == 0 for v in compare(1, strength=0.0, rounds=2).values()), (
    "at strength 0 both rules are FedAvg: same data, same seed, no difference at all"
)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · The report (28 points, by the rubric)

Add cells below for your runs, table and figure. Then write.
"""

# %% [markdown] written="question" points=5
r"""
### Question

### BEGIN SOLUTION
**Sample.** We expect that counting clients by the rank of their loss raises the accuracy of the
single noisy client by at least five points at strength 2, because it has the highest loss in every
round, and lowers the mean over clients by less than two. It would be wrong if the noisy client's
loss is high for a reason that weight cannot mend.
### END SOLUTION
"""

# %% [markdown] written="report" points=23
r"""
### Report

### BEGIN SOLUTION
**Sample of what earns full points.** Comparison: strength chosen from 0.5, 1, 2 by the mean over
types on a third of the training pictures, three trials for FedAvg's learning rate too; five seeds,
differences paired. Evidence: table of the three measures with mean and standard deviation over
seeds, figure of all twelve clients, both rules. Honesty: the eight clients of type 0 lose, by how
much; the difference of the worst client is inside its spread for two of five seeds; ranks by the
*rise* of the loss did nothing and are not shown; 60 test pictures per client mean that one picture
is 1.7 points.
### END SOLUTION
"""
