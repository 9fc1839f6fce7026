# %% [markdown]
r"""
# Assignment 2 · Who holds what, and for whom it works

**Time.** About 45 minutes. **Points.** 20. **Helps:** notebook 02,
`02_client_types_and_partitions`.

Two things decide what an experiment in federated learning can show: how the samples are dealt out
to the clients (the **partition**), and by which number the result is judged (the **measure**). Both
look harmless. In this assignment you write three partitions and four measures, and meet the traps
in each: a rounding rule, a forgotten sort, a wrong denominator, an average that hides a minority.

A **type** is a group of clients that differ from the others in the same way: hospitals with one
kind of scanner, phones of one language.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import numpy as np
from sklearn.datasets import load_digits

from fedbook import metrics, partition
from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps2")
labels = mine.permutation(load_digits().target)[:1200]  # which digit 1,200 small pictures show
types = np.repeat(range(4), [8, 4, 2, 1])  # 15 clients of four types
accuracy = np.round(np.array([0.93, 0.85, 0.7, 0.45])[types] + mine.normal(0, 0.03, 15), 3)
print("digits", labels[:12], "...   accuracies", accuracy)

# %% [markdown]
r"""
## 1 · How many clients has a type?

FedGCR counts clients by a *domain imbalance factor*. With $D$ types, ordered from the most frequent
to the rarest, and a ratio $\rho \ge 1$, type $i = 0, \dots, D - 1$ has

$$N_i = \operatorname{round}\!\left(\rho^{\,D - 1 - i}\right)$$

clients, where *round* goes to the nearest whole number (Python's `round`).
"""

# %% solve="counts"
def clients_per_type(rho, D):
    """A list of D whole numbers, the most frequent type first."""
    ### BEGIN SOLUTION
    return [round(rho ** (D - 1 - i)) for i in range(D)]
    ### END SOLUTION

# %% wrong="counts"
# int cuts instead of rounding
def clients_per_type(rho, D):
    return [int(rho ** (D - 1 - i)) for i in range(D)]

# %% test="counts" points=2
assert clients_per_type(2, 4) == [8, 4, 2, 1]
assert clients_per_type(1, 3) == [1, 1, 1]
### BEGIN HIDDEN TESTS
assert clients_per_type(1.5, 5) == partition.clients_per_domain(5, 5) == [5, 3, 2, 2, 1]
assert clients_per_type(1.8, 5) == partition.clients_per_domain(10, 5)
assert clients_per_type(1.6, 6) == partition.clients_per_domain(10, 6)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · Few classes per client

The oldest partition of federated learning, by *shards*: put all samples in the order of their
labels, cut that order into `clients * s` pieces of equal length, and give `s` pieces to every
client. `deal` is a list of all piece numbers in random order: client 0 gets the first `s` of them,
client 1 the next `s`, and so on.

Return one array of *row numbers* (positions in `labels`) per client. The labels come in any order,
and their number is a multiple of the number of pieces.

Use `np.argsort(labels, kind="stable")` and `np.array_split`.
"""

# %% solve="shards"
def shards(labels, clients, s, deal):
    """One array of row numbers per client."""
    ### BEGIN SOLUTION
    order = np.argsort(labels, kind="stable")
    pieces = np.array_split(order, clients * s)
    return [
        np.concatenate([pieces[d] for d in deal[k * s : (k + 1) * s]]) for k in range(clients)
    ]
    ### END SOLUTION

# %% wrong="shards"
# the rows are cut without having been sorted by label
def shards(labels, clients, s, deal):
    pieces = np.array_split(np.arange(len(labels)), clients * s)
    return [
        np.concatenate([pieces[d] for d in deal[k * s : (k + 1) * s]]) for k in range(clients)
    ]

# %% test="shards" points=4
sorted_already = np.repeat(range(4), 6)
parts = shards(sorted_already, 2, 2, [3, 0, 1, 2])
assert [sorted(set(sorted_already[p])) for p in parts] == [[0, 3], [1, 2]], "pieces 3, 0 and 1, 2"
parts = shards(labels, 20, 2, mine.permutation(40))
assert sorted(np.concatenate(parts)) == list(range(1200)), "every row belongs to one client"
### BEGIN HIDDEN TESTS
for seed in range(3):
    deal = np.random.default_rng(seed).permutation(40)
    parts = shards(labels, 20, 2, deal)
    held = [len(np.unique(labels[p])) for p in parts]
    assert {len(p) for p in parts} == {60}, "equal shares"
    assert max(held) <= 4, "two pieces hold at most four digits; are the rows sorted by label?"
    library = partition.pathological(labels, 20, 2, seed=seed, style="shards")
    assert max(len(np.unique(labels[p])) for p in library) <= 4
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · How one-sided is a client?

For a client, let $c_1, c_2, \dots$ be its numbers of samples of each class, with shares $s_j = c_j
/ \sum_i c_i$. The **effective number of classes** is $\exp$ of the entropy of the shares,

$$\exp\Big(-\sum_j s_j \log s_j\Big), \qquad 0 \log 0 = 0.$$

It is 1 for a client of one class, and $C$ for a client that has $C$ classes in equal parts. Write
it for a list of counts, which may contain zeros.
"""

# %% solve="effective"
def effective_classes(counts):
    """A number between 1 and the number of classes."""
    ### BEGIN SOLUTION
    share = np.asarray(counts, float) / np.sum(counts)
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))
    ### END SOLUTION

# %% wrong="effective"
# classes are counted, whatever their share
def effective_classes(counts):
    return float(np.count_nonzero(counts))

# %% test="effective" points=3
assert np.isclose(effective_classes([7, 7, 7]), 3), "three classes in equal parts"
assert np.isclose(effective_classes([0, 5, 0]), 1), "one class"
### BEGIN HIDDEN TESTS
assert np.isclose(effective_classes([1, 3]), np.exp(0.25 * np.log(4) + 0.75 * np.log(4 / 3)))
assert np.isclose(effective_classes([999, 1]), 1.008, atol=1e-3), "one sample hardly counts"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · The average of what?

Your 15 clients have the accuracies in `accuracy`, and types 0 to 3 in `types`. Type 0 has eight
clients, type 3 has one. Compute

- `over_clients`: the plain mean,
- `over_types`: first the mean inside every type, then the mean of these four,
- `sigma_types`: the *population* standard deviation of the four type means (divide by 4, not 3).

FedGCR prints the second and calls it the average over clients. For FedAvg on its hardest setting
the two are 60.62 and 78.87 per cent.
"""

# %% solve="averages"
over_clients = None
over_types = None
sigma_types = None
### BEGIN SOLUTION
by_type = np.array([accuracy[types == t].mean() for t in range(4)])
over_clients = accuracy.mean()
over_types = by_type.mean()
sigma_types = by_type.std()
### END SOLUTION

# %% wrong="averages"
# the sample standard deviation, divided by 3, as pandas' std gives it
by_type = np.array([accuracy[types == t].mean() for t in range(4)])
over_clients = accuracy.mean()
over_types = by_type.mean()
sigma_types = by_type.std(ddof=1)

# %% test="averages" points=4
assert over_types < over_clients, "the many clients of type 0 lift the mean over clients"
assert 0 < sigma_types < 0.5
### BEGIN HIDDEN TESTS
assert np.isclose(over_clients, metrics.avg_client(accuracy))
assert np.isclose(over_types, metrics.avg_type(accuracy, types))
assert np.isclose(sigma_types, metrics.sigma_type(accuracy, types)), "divide by 4"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · The worst tenth

Fairness papers also report the mean over the worst 10 % of the clients. Of $n$ clients these are
$\lceil n / 10 \rceil$, so at least one. (`math.ceil` or `-(-n // 10)`.)
"""

# %% solve="bottom"
def worst_tenth(accuracies):
    """The mean accuracy of the worst tenth of the clients."""
    ### BEGIN SOLUTION
    a = np.sort(np.asarray(accuracies, float))
    return float(a[: -(-len(a) // 10)].mean())
    ### END SOLUTION

# %% wrong="bottom"
# rounds down
def worst_tenth(accuracies):
    a = np.sort(np.asarray(accuracies, float))
    return float(a[: max(1, len(a) // 10)].mean())

# %% test="bottom" points=3
assert np.isclose(worst_tenth([0.9, 0.2, 0.5]), 0.2), "of three clients the worst one"
assert np.isclose(worst_tenth(np.arange(20) / 20), 0.025), "of twenty the worst two"
### BEGIN HIDDEN TESTS
assert np.isclose(worst_tenth(accuracy), metrics.bottom(accuracy)), "of fifteen the worst two"
assert np.isclose(worst_tenth(np.arange(11.0)), 0.5)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · Rare classes count too

A model that never says "ventricular beat" can be right on 97 % of all heartbeats. The **macro-F1**
shows it. For class $c$, with TP, FP and FN the true positives, false positives and false negatives,

$$F_1(c) = \frac{2\,\mathrm{TP}}{2\,\mathrm{TP} + \mathrm{FP} + \mathrm{FN}},$$

and macro-F1 is the plain mean over **all** `classes`, where a class that neither occurs nor is
predicted counts 0.
"""

# %% solve="f1"
def macro_f1(truth, predicted, classes):
    """Mean F1 over the classes 0 ... classes - 1."""
    ### BEGIN SOLUTION
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    total = 0.0
    for c in range(classes):
        hit = ((truth == c) & (predicted == c)).sum()
        both = (truth == c).sum() + (predicted == c).sum()
        total += 2 * hit / both if both else 0.0
    return total / classes
    ### END SOLUTION

# %% wrong="f1"
# the mean over the classes that occur in the truth
def macro_f1(truth, predicted, classes):
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    scores = []
    for c in np.unique(truth):
        hit = ((truth == c) & (predicted == c)).sum()
        scores.append(2 * hit / ((truth == c).sum() + (predicted == c).sum()))
    return float(np.mean(scores))

# %% test="f1" points=4
assert np.isclose(macro_f1([0, 1, 1], [0, 1, 1], 2), 1.0), "all right"
assert np.isclose(macro_f1([0, 0, 0, 1], [0, 0, 0, 0], 2), 3 / 7), "class 1 is never predicted"
### BEGIN HIDDEN TESTS
assert np.isclose(macro_f1([0, 0, 1], [0, 0, 1], 3), 2 / 3), "class 2 occurs nowhere: it counts 0"
truth, said = mine.integers(0, 5, 60), mine.integers(0, 6, 60)
assert np.isclose(macro_f1(truth, said, 7), metrics.macro_f1(truth, said, 7))
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

A paper reports only the mean over clients, and it rises by one point. Construct accuracies for the
15 clients above in which the mean over clients rises by one point and the single client of type 3
loses ten. Which of the four measures of this assignment would have told you?
"""
