# %% [markdown]
r"""
# Assignment 5 · FedGCR: groups that count, prompts that follow

**Time.** About 60 minutes. **Points.** 20. **Helps:** notebook 05, `05_fedgcr`.

Clients come in *types*, for example one per kind of scanner, and some types are rare. FedGCR
(Cheng et al., AAAI 2024) does two things about it, without being told anybody's type:

- **FedGR**, at the server: clients are clustered into groups, and a client counts more if it *or
  its group* has a high loss;
- **FedGC**, at the client: each image gets a vector $h$ that shifts its prompts, and a loss
  $\ell_{GC}$ pulls $h$ to the centre of the client's group.

You write the pieces of both and compare them with the library.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import math

import numpy as np
import torch

from fedbook import methods, metrics
from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps5")
sizes = mine.integers(10, 60, 6)  # six clients
L = np.round(mine.uniform(0.3, 2.5, 6), 2)  # their losses at the received model
groups = np.array([0, 0, 0, 1, 1, 2])  # as the server has clustered them
L[5] = 3.1  # the single client of group 2 is served badly
print("n =", sizes, " L =", L, " groups =", groups)

# %% [markdown]
r"""
## 1 · What a client looks like: $\bar h_k$

Each client sends one vector: the mean of $h(x)$ over its images, *balanced over classes*. First the
mean for each class that occurs, then the mean of those. A client with 90 images of sevens and 10 of
ones must not look like a seven.

`h` is `[images, d]`, `y` holds the class of every image.
"""

# %% solve="represent"
def represent(h, y):
    """The class-balanced mean of h, of shape [d]."""
    ### BEGIN SOLUTION
    return np.mean([h[y == c].mean(0) for c in np.unique(y)], axis=0)
    ### END SOLUTION

# %% wrong="represent"
# the plain mean: frequent classes count more
def represent(h, y):
    return h.mean(0)

# %% test="represent" points=3
h = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0], [0.0, 6.0]])
assert np.allclose(represent(h, np.array([0, 0, 1, 1])), [1.0, 2.5])
assert np.allclose(represent(h, np.array([3, 3, 3, 3])), h.mean(0)), "one class"
### BEGIN HIDDEN TESTS
from fedbook.methods.clustering import class_balanced_mean

h, y = mine.normal(size=(40, 5)), mine.choice([0, 1, 4], 40, p=[0.7, 0.2, 0.1])
library = class_balanced_mean(torch.tensor(h), torch.tensor(y), 6).numpy()
assert np.allclose(represent(h, y), library), "classes count the same, and only those that occur"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · How well can the groups fit?

The *clustering accuracy* is the share of clients whose type is the most frequent one in their
group. With `T` groups and types that have `counts` clients, what is the best that any grouping can
reach? (Each group can have only one most frequent type.)
"""

# %% solve="bound"
def best_accuracy(counts, T):
    """The highest possible clustering accuracy."""
    ### BEGIN SOLUTION
    return sum(sorted(counts, reverse=True)[:T]) / sum(counts)
    ### END SOLUTION

# %% wrong="bound"
# takes the first T types as they are listed
def best_accuracy(counts, T):
    return sum(counts[:T]) / sum(counts)

# %% test="bound" points=2
assert math.isclose(best_accuracy([10, 6, 3, 2, 1], 3), 19 / 22), "three groups, Digit-Five, DIF 10"
assert best_accuracy([10, 6, 3, 2, 1], 7) == 1.0, "enough groups for all"
### BEGIN HIDDEN TESTS
assert math.isclose(best_accuracy([1, 2, 10, 6], 2), 16 / 19), "the order must not matter"
types = np.repeat(range(4), [1, 2, 10, 6])
for _ in range(50):
    guess = mine.integers(0, 2, 19)
    assert metrics.clustering_accuracy(guess, types) <= best_accuracy([1, 2, 10, 6], 2) + 1e-12
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · Trust in the groups grows

Early groups are poor. FedGR mixes the client's own loss with its group's loss by an exponent that
begins at 0:

$$\beta_r = \delta\,(1 - \gamma^{\,r - 1}), \qquad r = 1, 2, \dots$$
"""

# %% solve="beta"
def beta(r, delta=0.5, gamma=0.5):
    """The mixing exponent of round r, where the first round is r = 1."""
    ### BEGIN SOLUTION
    return delta * (1 - gamma ** (r - 1))
    ### END SOLUTION

# %% wrong="beta"
# the exponent r, as in the public code: groups are trusted before there are any
def beta(r, delta=0.5, gamma=0.5):
    return delta * (1 - gamma**r)

# %% test="beta" points=2
assert math.isclose(beta(60), 0.5), "in the long run it is delta"
assert beta(3) < beta(4) <= 0.5
### BEGIN HIDDEN TESTS
assert beta(1) == 0.0, "in round 1 nobody is grouped yet"
assert math.isclose(beta(3, 0.8, 0.9), 0.8 * 0.19)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · FedGR's weights

With $\omega_k = n_k / \sum_j n_j$, the client's loss $L_k$, and $\tilde L_{g(k)}$ the plain mean of
the losses in its group,

$$w_k \;\propto\; \omega_k \left( L_k^{\,1 - \beta}\; \tilde L_{g(k)}^{\;\beta} \right)^{q + 1},
\qquad \sum_k w_k = 1 .$$

Mind the exponent $q + 1$, and normalise: as printed, without the division, the model would be
multiplied by the sum of the weights.
"""

# %% solve="fedgr"
def fedgr(sizes, L, groups, beta, q):
    """The clients' weights."""
    ### BEGIN SOLUTION
    sizes, L, groups = np.asarray(sizes, float), np.asarray(L, float), np.asarray(groups)
    of_group = np.array([L[groups == g].mean() for g in groups])
    a = sizes / sizes.sum() * (L ** (1 - beta) * of_group**beta) ** (q + 1)
    return a / a.sum()
    ### END SOLUTION

# %% wrong="fedgr"
# the exponent q instead of q + 1
def fedgr(sizes, L, groups, beta, q):
    sizes, L, groups = np.asarray(sizes, float), np.asarray(L, float), np.asarray(groups)
    of_group = np.array([L[groups == g].mean() for g in groups])
    a = sizes / sizes.sum() * (L ** (1 - beta) * of_group**beta) ** q
    return a / a.sum()

# %% test="fedgr" points=5
omega = sizes / sizes.sum()
assert np.allclose(fedgr(sizes, np.ones(6), groups, 0.5, 1), omega), "equal losses give FedAvg"
assert np.isclose(fedgr(sizes, L, groups, 0.5, 1).sum(), 1)
assert fedgr(sizes, L, groups, 0.5, 1)[5] > omega[5], "the badly served client gains"
### BEGIN HIDDEN TESTS
assert np.allclose(fedgr(sizes, L, groups, 0.5, -1), omega), "q = -1 gives FedAvg"
for q, r in ((1.0, 1), (1.0, 3), (0.0, 5), (2.5, 2)):
    library = methods.get("fedgcr", customization=False, q=q, delta=0.5, gamma=0.5)
    expected = toy.weigh(library, sizes, L, groups, rounds=r)
    assert np.allclose(fedgr(sizes, L, groups, 0.5 * (1 - 0.5 ** (r - 1)), q), expected), (q, r)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · The pull to the group: $\ell_{GC}$

For one image with vector $h$, of a client in group $i$, with group centres $H_1, \dots, H_T$ (the
rows of `H`) and the client's own mean of the last round $\bar h_\text{prev}$:

$$\ell_{GC} = -\log \frac{e^{\cos(h, H_i)/\tau}}
{e^{\cos(h, \bar h_\text{prev})/\tau} + \sum_t e^{\cos(h, H_t)/\tau}} .$$

`cos` is the **cosine**: the scalar product divided by both lengths.
"""

# %% solve="gc"
def l_gc(h, H, i, h_prev, tau):
    """l_GC of one image, as a float."""
    ### BEGIN SOLUTION
    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    scores = np.array([cosine(h, c) / tau for c in (*H, h_prev)])
    return float(np.log(np.exp(scores).sum()) - scores[i])
    ### END SOLUTION

# %% wrong="gc"
# scalar products, as printed, instead of cosines: the same for vectors of length 1
def l_gc(h, H, i, h_prev, tau):
    scores = np.array([h @ c / tau for c in (*H, h_prev)])
    return float(np.log(np.exp(scores).sum()) - scores[i])

# %% test="gc" points=5
H = np.array([[1.0, 0.0], [0.0, 1.0]])
value = l_gc(np.array([1.0, 0.0]), H, 0, np.array([0.0, -1.0]), tau=1.0)
assert math.isclose(value, math.log(math.e + 1 + 1) - 1), "cosines 1, 0 and 0"
assert l_gc(np.array([0.6, 0.8]), H, 1, H[1], 0.5) < l_gc(np.array([0.6, 0.8]), H, 0, H[1], 0.5)
### BEGIN HIDDEN TESTS
from fedbook.methods.moon import contrast

h, H, before = mine.normal(size=5), mine.normal(size=(4, 5)), mine.normal(size=5)
every = torch.tensor(np.vstack([H, before]))
for i in range(4):
    library = float(contrast(torch.tensor(h)[None], every, i, 0.5))
    assert math.isclose(l_gc(h, H, i, before, 0.5), library, rel_tol=1e-6)
    assert math.isclose(l_gc(9 * h, H, i, before, 0.5), library, rel_tol=1e-6), "length: no matter"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · Who gains, who pays

With your clients, $q = 1$ and $\beta = 0.5$: set `gain` to the ratio of the weight of **group 2**
(one client) under FedGR to its weight under FedAvg, and `losers` to the list of the clients
(numbers 0 to 5) whose weight is *smaller* than under FedAvg.
"""

# %% solve="gain"
gain = None
losers = None
### BEGIN SOLUTION
weights, omega = fedgr(sizes, L, groups, 0.5, 1), sizes / sizes.sum()
gain = weights[5] / omega[5]
losers = [k for k in range(6) if weights[k] < omega[k]]
### END SOLUTION

# %% wrong="gain"
# the ratio of the groups' losses, which is not yet normalised
gain = float(L[5] ** 2)
losers = [k for k in range(6) if L[k] < L.mean()]

# %% test="gain" points=3
assert gain > 1
assert 1 <= len(losers) <= 5 and all(0 <= k < 6 for k in losers) and 5 not in losers
### BEGIN HIDDEN TESTS
library = methods.get("fedgcr", customization=False, q=1.0, delta=0.5, gamma=0.0)
expected = toy.weigh(library, sizes, L, groups, rounds=2)
omega = sizes / sizes.sum()
assert np.isclose(gain, expected[5] / omega[5])
assert sorted(losers) == [k for k in range(6) if expected[k] < omega[k]]
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

A client is alone in its group, so $H_i$ *is* its own $\bar h$, which changes little from round to
round. Then the numerator of $\ell_{GC}$ also stands once more in the denominator. What is the
lowest value $\ell_{GC}$ can have for this client, and what does that mean for the rarest type, whom
the method wants to help?
"""
