# %% [markdown]
r"""
# Assignment 1 · FedAvg by hand

**Time.** About 40 minutes. **Points.** 20. **Helps:** notebook 01, `01_fedavg_by_hand`.

Several clients want to agree on one number $w$. Client $k$ has $n_k$ samples, and its loss is a
parabola with its lowest point at $b_k$ and the *curvature* $h_k$:

$$F_k(w) = \tfrac12\, h_k\, (w - b_k)^2, \qquad F_k'(w) = h_k\, (w - b_k).$$

Nobody may show its samples. FedAvg finds a common $w$ all the same, in rounds:

1. the server sends $w$ to the clients,
2. client $k$ takes $E$ gradient steps on its own loss and sends back $w_k$,
3. the server replaces $w$ by the weighted mean $\sum_k p_k w_k$ with $p_k = n_k / \sum_j n_j$.

You will write the three steps, find out where the rounds end, and compare every result with the
library. A parabola is enough to see the effect for which FedAvg is known: *client drift*.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import numpy as np

from fedbook import methods
from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps1")
sizes = mine.integers(2, 12, 4)  # n_k of your four clients
sizes[0] = sizes[1:].max() + 5  # one of them is large
curvature = mine.choice([0.5, 1.0, 2.0, 4.0], 4, replace=False)  # h_k
best = mine.integers(-5, 6, 4).astype(float)  # b_k, the client's own best w
best[np.argmax(curvature)] += 7.0  # the steepest client wants something else
print("n =", sizes, " h =", curvature, " b =", best)

# %% [markdown]
r"""
## 1 · What each client counts

Write $p_k = n_k / \sum_j n_j$. The weights of all clients add up to 1.
"""

# %% solve="shares"
def shares(sizes):
    """Numbers of samples in, weights p_k out (a numpy array)."""
    ### BEGIN SOLUTION
    sizes = np.asarray(sizes, float)
    return sizes / sizes.sum()
    ### END SOLUTION

# %% wrong="shares"
# every client counts the same
def shares(sizes):
    return np.ones(len(sizes)) / len(sizes)

# %% test="shares" points=2
assert np.allclose(shares([3, 3]), [0.5, 0.5]), "two clients of one size count the same"
assert np.isclose(shares(sizes).sum(), 1), "weights add up to 1"
### BEGIN HIDDEN TESTS
assert np.allclose(shares([1, 3]), [0.25, 0.75]), "three times the samples, three times the weight"
assert np.allclose(shares(sizes), toy.weigh(methods.get("fedavg"), sizes, np.ones(4)))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · The work of one client

Start at the received $w$ and take `steps` gradient steps with learning rate `eta`. Every step uses
the slope at the point *where the client is now*.
"""

# %% solve="local"
def local_model(w, h, b, eta, steps):
    """The client's w_k after so many steps."""
    ### BEGIN SOLUTION
    for _ in range(steps):
        w = w - eta * h * (w - b)
    return w
    ### END SOLUTION

# %% wrong="local"
# one long step with the slope at the start
def local_model(w, h, b, eta, steps):
    return w - steps * eta * h * (w - b)

# %% test="local" points=3
assert np.isclose(local_model(0.0, h=1.0, b=2.0, eta=0.1, steps=1), 0.2), "one step of 0.1 times 2"
assert np.isclose(local_model(5.0, h=3.0, b=5.0, eta=0.1, steps=7), 5.0), "at its best it stays"
### BEGIN HIDDEN TESTS
assert np.isclose(local_model(0.0, 1.0, 2.0, 0.1, 2), 0.38), "the second step begins at 0.2"
assert np.isclose(local_model(0.0, 4.0, 3.0, 0.1, 200), 3.0), "many steps end at the client's best"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · One round, when some stay away

In a real federation only some clients take part in a round. The mean is then taken over the
clients that are *present*: their weights must add up to 1 again. (The algorithm as first printed
divides by the samples of all clients. Whoever programs it so shrinks the model towards zero.)

`sizes`, `h` and `b` describe all clients; `present` lists the numbers of those that take part.
"""

# %% solve="round"
def fedavg_round(w, sizes, h, b, eta, steps, present):
    """The server's w after one round."""
    ### BEGIN SOLUTION
    models = np.array([local_model(w, h[k], b[k], eta, steps) for k in present])
    return float(shares([sizes[k] for k in present]) @ models)
    ### END SOLUTION

# %% wrong="round"
# divides by the samples of everybody, as printed
def fedavg_round(w, sizes, h, b, eta, steps, present):
    models = [local_model(w, h[k], b[k], eta, steps) for k in range(len(sizes))]
    p = np.asarray(sizes) / np.sum(sizes)
    return float(sum(p[k] * models[k] for k in present))

# %% test="round" points=4
everybody = range(4)
once = fedavg_round(0.0, sizes, curvature, best, 0.1, 1, everybody)
slope = (shares(sizes) * curvature * (0.0 - best)).sum()
assert np.isclose(once, -0.1 * slope), "one step each is one step of ordinary gradient descent"
### BEGIN HIDDEN TESTS
fixed = [2.0, 2.0, 2.0]
assert np.isclose(fedavg_round(2.0, [1, 2, 3], [1, 1, 1], fixed, 0.1, 3, [0, 2]), 2.0), (
    "all clients present are content with 2, so the server must stay at 2"
)
assert np.isclose(fedavg_round(0.0, [1, 2, 3], [1, 1, 1], [10, 20, 30], 0.1, 1, [0, 2]), 2.5)
for E in (1, 4):
    fedavg = methods.get("fedavg", lr=0.1, epochs=E, batch_size=1000)
    library = toy.train(fedavg, sizes, curvature, best, rounds=1)
    assert np.isclose(fedavg_round(0.0, sizes, curvature, best, 0.1, E, everybody), library, 1e-4)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · Where the rounds end

All clients together want the lowest point of $\sum_k p_k F_k(w)$, which is

$$w^\star = \frac{\sum_k p_k h_k b_k}{\sum_k p_k h_k}.$$

Does FedAvg end there? Work it out. After $E$ steps client $k$ has gone the part
$m_k = 1 - (1 - \eta h_k)^E$ of its way to $b_k$:

$$w_k = w + m_k\,(b_k - w).$$

FedAvg comes to rest where the weighted mean of the $w_k$ is $w$ again. Solve
$\sum_k p_k m_k (b_k - w) = 0$ for $w$.
"""

# %% solve="end"
def end_point(sizes, h, b, eta, steps):
    """Where FedAvg with so many local steps comes to rest."""
    ### BEGIN SOLUTION
    m = 1 - (1 - eta * np.asarray(h)) ** steps
    p = shares(sizes)
    return float((p * m * b).sum() / (p * m).sum())
    ### END SOLUTION

# %% wrong="end"
# the point that all clients together want: right for one step only
def end_point(sizes, h, b, eta, steps):
    p = shares(sizes) * np.asarray(h)
    return float((p * b).sum() / p.sum())

# %% test="end" points=5
p = shares(sizes)
wanted = (p * curvature * best).sum() / (p * curvature).sum()
assert np.isclose(end_point(sizes, curvature, best, 0.05, 1), wanted), "with one step: no drift"
### BEGIN HIDDEN TESTS
w = 0.0
for _ in range(400):
    w = fedavg_round(w, sizes, curvature, best, 0.05, 10, range(4))
assert np.isclose(end_point(sizes, curvature, best, 0.05, 10), w), "compare with 400 rounds"
m = 1 - (1 - 0.05 * curvature) ** 10
stays = fedavg_round(w, sizes, curvature, best, 0.05, 10, range(4))
assert np.isclose(stays, w) and np.isclose((shares(sizes) * m * (best - w)).sum(), 0, atol=1e-6)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · How far it drifts

The *drift* is the distance between the end point and $w^\star$. Compute it for your clients with
$\eta = 0.05$ and $E = 1, 2, 5, 20, 1000$, and set

- `drifts` to the list of the five distances,
- `limit` to the number at which FedAvg ends when $E$ is without bound. (What is $m_k$ then? The
  answer needs no power.)
"""

# %% solve="drift"
drifts = None
limit = None
### BEGIN SOLUTION
wanted = (shares(sizes) * curvature * best).sum() / (shares(sizes) * curvature).sum()
ends = [end_point(sizes, curvature, best, 0.05, E) for E in (1, 2, 5, 20, 1000)]
drifts = [abs(e - wanted) for e in ends]
limit = float(shares(sizes) @ best)
### END SOLUTION

# %% wrong="drift"
# the limit as a plain mean
wanted = (shares(sizes) * curvature * best).sum() / (shares(sizes) * curvature).sum()
drifts = [abs(end_point(sizes, curvature, best, 0.05, E) - wanted) for E in (1, 2, 5, 20, 1000)]
limit = float(np.mean(best))

# %% test="drift" points=3
assert len(drifts) == 5 and np.isclose(drifts[0], 0, atol=1e-9), "no drift with one step"
assert min(best) <= limit <= max(best)
### BEGIN HIDDEN TESTS
p = toy.weigh(methods.get("fedavg"), sizes, np.ones(4))
goal = (p * curvature * best).sum() / (p * curvature).sum()
for found, E in zip(drifts, (1, 2, 5, 20, 1000)):
    m = 1 - (1 - 0.05 * curvature) ** E
    assert np.isclose(found, abs((p * m * best).sum() / (p * m).sum() - goal), atol=1e-6), E
assert np.isclose(limit, (p * best).sum()), "all m_k become 1"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · Momentum at the server

FedAvgM keeps a velocity $v$ at the server. With $\bar w$ the weighted mean of what came back,

$$v \leftarrow m\,v + (w - \bar w), \qquad w \leftarrow w - v .$$

With $m = 0$ this is FedAvg. Return the new $w$ and the new $v$.
"""

# %% solve="momentum"
def server_step(w, v, mean, m):
    """(new w, new v)"""
    ### BEGIN SOLUTION
    v = m * v + (w - mean)
    return w - v, v
    ### END SOLUTION

# %% wrong="momentum"
# the velocity is never remembered
def server_step(w, v, mean, m):
    v = w - mean
    return w - v, v

# %% test="momentum" points=3
assert np.allclose(server_step(1.0, 0.0, 0.4, m=0.9), (0.4, 0.6)), "from rest it is FedAvg"
### BEGIN HIDDEN TESTS
assert np.allclose(server_step(1.0, 0.5, 0.4, m=0.9), (-0.05, 1.05))
w, v = 0.0, 0.0
for _ in range(5):
    w, v = server_step(w, v, fedavg_round(w, sizes, curvature, best, 0.05, 1, range(4)), 0.5)
fedavgm = methods.get("fedavgm", server_momentum=0.5, lr=0.05, epochs=1, batch_size=1000)
assert np.isclose(w, toy.train(fedavgm, sizes, curvature, best, rounds=5), atol=1e-4)
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

Who wins when $E$ grows, a client with a steep parabola or one with a flat one? Which of the two
would lose more by it? What would you change in the *clients'* work so that the drift disappears
even for $E = 20$? (SCAFFOLD is one answer: it adds to every local step what the client's slope
misses of everybody's slope.)
"""
