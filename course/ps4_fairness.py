# %% [markdown]
r"""
# Assignment 4 · Fairness weights

**Time.** About 50 minutes. **Points.** 20. **Helps:** notebook 04,
`04_fairness_in_federated_learning`.

FedAvg lets a client count by its number of samples. Small or difficult clients stay behind, and the
mean hides it. Three methods give more weight to clients with a high loss $F_i$:

| method | weight of client $i$ |
|:---|:---|
| q-FFL | $F_i^q / \sum_j F_j^q$ |
| TERM | $p_i e^{t F_i} / \sum_j p_j e^{t F_j}$, with $p_i = n_i / \sum_j n_j$ |
| AFL | $\lambda_i$, moved in each round towards high losses and put back on the simplex |

You write all three so that they survive extreme numbers, and meet two errors that were made in
published code.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import numpy as np
import torch

from fedbook import methods
from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps4")
sizes = mine.integers(5, 40, 5)  # five clients
F = np.round(mine.uniform(0.2, 3.0, 5), 2)  # their losses
p = sizes / sizes.sum()
print("n =", sizes, " F =", F)

# %% [markdown]
r"""
## 1 · Powers that do not vanish

Write q-FFL's weights $F_i^q / \sum_j F_j^q$. The hidden tests use $q = 1000$: then $0.4^{1000}$ is
0 for a computer, and $0 / 0$ is not a number. Take logarithms: the weights are the softmax of $q
\log F_i$, and a softmax does not change when you subtract the largest entry before `np.exp`.
"""

# %% solve="power"
def power_weights(F, q):
    """q-FFL's weights, for any q."""
    ### BEGIN SOLUTION
    s = q * np.log(F)
    e = np.exp(s - s.max())
    return e / e.sum()
    ### END SOLUTION

# %% wrong="power"
# as printed: the powers underflow
def power_weights(F, q):
    a = np.asarray(F, float) ** q
    return a / a.sum()

# %% test="power" points=3
assert np.allclose(power_weights(np.array([1.0, 1.0, 2.0]), 2), [1 / 6, 1 / 6, 4 / 6])
assert np.allclose(power_weights(F, 0), 0.2), "q = 0: everybody counts the same"
### BEGIN HIDDEN TESTS
with np.errstate(all="ignore"):
    extreme = power_weights(np.array([0.4, 0.3, 0.4]), 1000)
assert np.allclose(extreme, [0.5, 0, 0.5]), "work with logarithms"
assert np.allclose(power_weights(F, 3.5), toy.weigh(methods.get("q_ffl", q=3.5), sizes, F))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · Tilting

Write TERM's weights, again without overflow (the tests use $t = 500$).
"""

# %% solve="tilt"
def tilted_weights(F, p, t):
    """TERM's weights; p are the clients' shares of the samples."""
    ### BEGIN SOLUTION
    s = np.log(p) + t * F
    e = np.exp(s - s.max())
    return e / e.sum()
    ### END SOLUTION

# %% wrong="tilt"
# forgets p
def tilted_weights(F, p, t):
    e = np.exp(t * (F - np.max(F)))
    return e / e.sum()

# %% test="tilt" points=3
equal = np.full(5, 0.2)
assert np.allclose(tilted_weights(np.ones(5), equal, 4.0), equal), "equal losses, equal sizes"
assert np.isclose(tilted_weights(F, equal, 500.0).max(), 1.0), "a large t looks at the worst only"
### BEGIN HIDDEN TESTS
assert np.allclose(tilted_weights(F, p, 0.0), p), "t = 0 is FedAvg"
assert np.allclose(tilted_weights(F, p, 2.0), toy.weigh(methods.get("term", t=2.0), sizes, F))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · The nearest point of the simplex

AFL adds $\eta_\lambda F_i$ to the weights and then takes the *nearest* point with non-negative
entries that add up to 1. That point is $\max(v_i - \theta, 0)$ with one number $\theta$ for all. To
find it:

1. sort $v$ in descending order, $u_1 \ge u_2 \ge \dots$,
2. let $\theta_m = (u_1 + \dots + u_m - 1) / m$ for $m = 1, 2, \dots$,
3. take $\theta = \theta_m$ for the largest $m$ with $u_m > \theta_m$.

(Setting negative entries to 0 and dividing by the sum also gives a point of the simplex. It is not
the nearest.)
"""

# %% solve="project"
def project(v):
    """The point of the simplex nearest to v."""
    ### BEGIN SOLUTION
    u = np.sort(v)[::-1]
    theta = (np.cumsum(u) - 1) / np.arange(1, len(u) + 1)
    last = np.flatnonzero(u > theta)[-1]
    return np.maximum(v - theta[last], 0)
    ### END SOLUTION

# %% wrong="project"
# cuts at zero and divides by the sum
def project(v):
    v = np.maximum(v, 0)
    return v / v.sum()

# %% test="project" points=4
assert np.allclose(project(np.array([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5]), "already there"
assert np.allclose(project(np.array([3.0, 0.0, 0.0])), [1, 0, 0])
assert np.isclose(project(p + F).sum(), 1) and (project(p + F) >= 0).all()
### BEGIN HIDDEN TESTS
from fedbook.methods.afl import project as library

assert np.allclose(project(np.array([1.5, 0.4])), [1, 0]), "theta is 0.5"
assert np.allclose(project(np.array([0.6, 0.8])), [0.4, 0.6]), "everybody gives the same"
for v in mine.normal(0, 1, (20, 6)):
    assert np.allclose(project(v), library(torch.tensor(v)).numpy())
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · AFL remembers

In each round $\lambda \leftarrow \operatorname{project}(\lambda + \eta_\lambda F)$, from the
$\lambda$ *of the round before*. Write several rounds: `F_rounds` is a list of loss vectors. Return
$\lambda$ after all of them. (A public implementation starts anew from $p$ in every round. What does
it lose?)
"""

# %% solve="afl"
def afl_weights(p, F_rounds, eta):
    """lambda after these rounds."""
    ### BEGIN SOLUTION
    lam = np.asarray(p, float)
    for F in F_rounds:
        lam = project(lam + eta * np.asarray(F))
    return lam
    ### END SOLUTION

# %% wrong="afl"
# starts anew from p in every round
def afl_weights(p, F_rounds, eta):
    for F in F_rounds:
        lam = project(np.asarray(p, float) + eta * np.asarray(F))
    return lam

# %% test="afl" points=3
assert np.allclose(afl_weights(p, [F], 0.1), project(p + 0.1 * F)), "one round"
assert np.allclose(afl_weights(p, [np.ones(5)] * 3, 0.1), p), "equal losses change nothing"
### BEGIN HIDDEN TESTS
library = toy.weigh(methods.get("afl", eta_lam=0.05), sizes, F, rounds=4)
assert np.allclose(afl_weights(p, [F] * 3, 0.05), library), "three updates before round 4"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · q-FFL's shorter step

With large losses to a high power the objective of q-FFL is steep, so the server does not go all the
way to the weighted mean of the models. It goes the part

$$s = \frac{1}{1 + q \sum_i a_i \dfrac{\lVert w - w_i\rVert^2}{\eta\, F_i}},$$

with $a_i$ the weights of part 1 and $\lVert w - w_i \rVert$ the distance that client $i$ went. Mind
the square: a published baseline left it out. The arguments are the losses, the **distances**
$\lVert w - w_i\rVert$, $q$ and $\eta$.
"""

# %% solve="step"
def server_part(F, distances, q, eta):
    """s, between 0 and 1."""
    ### BEGIN SOLUTION
    a = power_weights(F, q)
    return float(1 / (1 + q * (a * np.asarray(distances) ** 2 / eta / F).sum()))
    ### END SOLUTION

# %% wrong="step"
# distances without the square
def server_part(F, distances, q, eta):
    a = power_weights(F, q)
    return float(1 / (1 + q * (a * np.asarray(distances) / eta / F).sum()))

# %% test="step" points=3
assert np.isclose(server_part(F, np.ones(5), 0, 0.1), 1.0), "q = 0: all the way"
assert np.isclose(server_part(np.ones(4), np.ones(4), 1, 0.5), 1 / 3), "1 / (1 + 1 / 0.5)"
### BEGIN HIDDEN TESTS
far = np.array([1.0, 2.0, 3.0, 4.0])
assert np.isclose(server_part(np.array([1.0, 1.0, 2.0, 4.0]), far, 1, 0.5), 2 / 17)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · What fairness costs

Now let a model answer. `toy.play` trains one number $w$ on clients with parabolas
$\tfrac12 (w - b_i)^2$, by the library's own q-FFL. Look at your clients' losses for several $q$:
"""

# %% locked="look"
wish = np.array([0.0, 0.0, 0.0, *mine.uniform([0.5, 3.5], [1.2, 5.0])])  # b_i: three agree


def losses_at_the_end(q):
    fair = methods.get("q_ffl", q=q, lr=0.3)
    path, _, _ = toy.play(fair, sizes, np.ones(5), wish, rounds=120)
    return (path[-1] - wish) ** 2 / 2


for q in (0.0, 1.0, 5.0):
    print(f"q = {q:g}: losses", losses_at_the_end(q).round(2))

# %% [markdown]
r"""
Fill the table with the **mean loss** and the **largest loss** at $q = 0, 1, 2, 5$ (plain lists of
four numbers). Then set `worse_off` to the number of clients (0 to 5) whose own loss is *higher* at
$q = 5$ than at $q = 0$.
"""

# %% solve="cost"
mean_loss = None
largest_loss = None
worse_off = None
### BEGIN SOLUTION
found = [losses_at_the_end(q) for q in (0.0, 1.0, 2.0, 5.0)]
mean_loss = [float(f.mean()) for f in found]
largest_loss = [float(f.max()) for f in found]
worse_off = int((found[3] > found[0]).sum())
### END SOLUTION

# %% wrong="cost"
# "fairness helps the worst one, and the others stay as they were": only the mean is counted
found = [losses_at_the_end(q) for q in (0.0, 1.0, 2.0, 5.0)]
mean_loss = [float(f.mean()) for f in found]
largest_loss = [float(f.max()) for f in found]
worse_off = 1

# %% test="cost" points=4
assert len(mean_loss) == len(largest_loss) == 4
assert largest_loss == sorted(largest_loss, reverse=True), "the worst client gains"
assert mean_loss == sorted(mean_loss), "and the mean pays for it"
### BEGIN HIDDEN TESTS
w0, w5 = (toy.play(methods.get("q_ffl", q=q, lr=0.3), sizes, np.ones(5), wish, rounds=120)[0][-1]
          for q in (0.0, 5.0))
assert np.isclose(largest_loss[0], ((w0 - wish) ** 2 / 2).max(), atol=1e-4)
assert np.isclose(mean_loss[3], ((w5 - wish) ** 2 / 2).mean(), atol=1e-4)
assert worse_off == ((w5 - wish) ** 2 > (w0 - wish) ** 2).sum()
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

A model that has learned nothing has the same accuracy, 10 %, on all clients. How large is its
standard deviation over clients? Which second number must stand beside every measure of fairness?
"""
