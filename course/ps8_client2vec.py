# %% [markdown]
r"""
# Assignment 8 · Three uses of a client index

**Time.** About 50 minutes. **Points.** 20. **Helps:** notebook 09, `09_client2vec_in_training`.

Suppose every client $i$ has an index: a vector that says how its data look. For a set $C$ of
clients let $S(i, C)$, between $-1$ and 1, tell how near client $i$ is to them. Client2Vec puts it
to use in three stages of a round:

| | stage | idea |
|:---|:---|:---|
| (i) | who takes part | draw clients like those of the round before: no pulling to and fro |
| (ii) | what each counts | clients like those of *all* rounds so far count more |
| (iii) | what a client minimises | features that have nothing in common with any client's index |
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import numpy as np
import torch
import torch.nn.functional as F

from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps8")
draw = torch.Generator().manual_seed(int(mine.integers(1 << 30)))
M = 12  # clients
index = torch.randn(M, 5, generator=draw, dtype=torch.float64)
unit = F.normalize(index, dim=1)
cosines = (unit @ unit.T).numpy()
sizes = mine.integers(5, 50, M)
S = cosines[:, [0, 3, 7]] @ (sizes[[0, 3, 7]] / sizes[[0, 3, 7]].sum())  # to last round's clients
print("S =", S.round(2))

# %% [markdown]
r"""
## 1 · (i) Who is drawn

$$P_i = \frac{e^{S_i/\tau}}{\sum_j e^{S_j/\tau}},$$

where sum and probabilities leave out the clients in `banned`, who took part lately: they have
probability 0, and **the others add up to 1**.
"""

# %% solve="draw"
def probabilities(S, tau, banned):
    """The probability of every client to be drawn first."""
    ### BEGIN SOLUTION
    s = np.asarray(S, float) / tau
    e = np.exp(s - s.max())
    e[list(banned)] = 0
    return e / e.sum()
    ### END SOLUTION

# %% wrong="draw"
# sets the banned to zero after the division
def probabilities(S, tau, banned):
    e = np.exp(np.asarray(S, float) / tau)
    P = e / e.sum()
    P[list(banned)] = 0
    return P

# %% test="draw" points=4
assert np.allclose(probabilities(np.zeros(4), 1.0, []), 0.25)
P = probabilities(S, 1.0, [])
assert np.isclose(P.sum(), 1) and P.argmax() == S.argmax(), "the nearest client is the likeliest"
assert probabilities(S, 1.0, [2, 5])[[2, 5]].sum() == 0
### BEGIN HIDDEN TESTS
from fedbook.methods.client2vec import log_probabilities

assert np.allclose(probabilities(np.zeros(4), 1.0, [0, 1]), [0, 0, 0.5, 0.5]), "they add up to 1"
for tau in (0.1, 1.0):
    library = log_probabilities(torch.tensor(S.copy()), tau, [1, 4]).exp().numpy()
    assert np.allclose(probabilities(S, tau, [1, 4]), library)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · How long is one banned?

A client may not be drawn for $\lfloor M / (2m) \rfloor$ rounds after it took part, with $M$ clients
in all and $m$ in each round. Return

- `window`: that number of rounds,
- `banned`: how many clients are banned in a late round (everybody who took part in the last
  `window` rounds),
- `starved`: how many clients a very cold sampler ($\tau \to 0$) can leave out for ever: it needs
  those banned and $m$ more to draw from.
"""

# %% solve="ban"
def ban(M, m):
    """(window, banned, starved), three whole numbers."""
    ### BEGIN SOLUTION
    window = M // (2 * m)
    banned = window * m
    return window, banned, M - banned - m
    ### END SOLUTION

# %% wrong="ban"
# rounds to the nearest instead of down
def ban(M, m):
    window = round(M / (2 * m))
    banned = window * m
    return window, banned, M - banned - m

# %% test="ban" points=2
assert ban(60, 6) == (5, 30, 24)
assert ban(8, 8)[0] == 0, "if everybody takes part nobody can be banned"
### BEGIN HIDDEN TESTS
from fedbook.methods.client2vec import SampleBySimilarity

assert ban(50, 7) == (3, 21, 22)
assert ban(100, 30) == (1, 30, 40), "100 / 60 is cut down to 1"
stage = SampleBySimilarity(participation=0.3)
assert ban(100, 30)[0] == stage.window(100)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · (ii) A memory of all rounds

$A_i$ remembers the nearness to the clients of every round, old rounds less:

$$A_i^t = \gamma\, A_i^{t-1} + S(i, C^t), \qquad A_i^0 = 0.$$

`S_rounds` is a list of vectors $S(\cdot, C^1), S(\cdot, C^2), \dots$ Return $A$ after the last.
"""

# %% solve="memory"
def remembered(S_rounds, gamma):
    """A after all rounds, a numpy array."""
    ### BEGIN SOLUTION
    A = np.zeros(len(S_rounds[0]))
    for S in S_rounds:
        A = gamma * A + np.asarray(S)
    return A
    ### END SOLUTION

# %% wrong="memory"
# mixes old and new so that they add up to 1, as a moving average would
def remembered(S_rounds, gamma):
    A = np.asarray(S_rounds[0], float)
    for S in S_rounds[1:]:
        A = gamma * A + (1 - gamma) * np.asarray(S)
    return A

# %% test="memory" points=3
assert np.allclose(remembered([S], 0.5), S), "one round"
assert np.allclose(remembered([S, np.zeros(M)], 0.5), S / 2), "it fades"
### BEGIN HIDDEN TESTS
assert np.allclose(remembered([np.ones(3)] * 50, 0.5), 2.0), "1 + 1/2 + 1/4 + ..."
assert np.allclose(remembered([S, 2 * S, -S], 0.9), (0.81 + 1.8 - 1) * S)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · (ii) What each counts

Client2Vec asks for the weights $p$ (non-negative, sum 1) that maximise

$$J(p) = \sum_i p_i A_i + \lambda \sum_i p_i \log\frac{q_i}{p_i},$$

where $q_i$ are the weights without the index (for FedAvg, shares of samples). The first sum wants
the clients with large $A$, the second keeps $p$ near $q$. The best $p$ is

$$p_i = \frac{q_i e^{A_i/\lambda}}{\sum_j q_j e^{A_j/\lambda}} .$$

Write the weights and $J$. (In $J$, a client with $p_i = 0$ adds 0.)
"""

# %% solve="weights"
def index_weights(q, A, lam):
    """The best p."""
    ### BEGIN SOLUTION
    s = np.log(q) + np.asarray(A) / lam
    e = np.exp(s - s.max())
    return e / e.sum()
    ### END SOLUTION


def J(p, q, A, lam):
    """What is maximised, a float."""
    ### BEGIN SOLUTION
    p, q, A = (np.asarray(v, float) for v in (p, q, A))
    some = p > 0
    return float((p * A).sum() + lam * (p[some] * np.log(q[some] / p[some])).sum())
    ### END SOLUTION

# %% wrong="weights"
# forgets q, which matters as soon as clients have different sizes
def index_weights(q, A, lam):
    e = np.exp((np.asarray(A) - np.max(A)) / lam)
    return e / e.sum()


def J(p, q, A, lam):
    p, q, A = (np.asarray(v, float) for v in (p, q, A))
    some = p > 0
    return float((p * A).sum() + lam * (p[some] * np.log(q[some] / p[some])).sum())

# %% test="weights" points=5
flat = np.full(M, 1 / M)
assert np.allclose(index_weights(flat, np.ones(M), 1.0), flat), "equal A, equal q"
assert np.isclose(index_weights(flat, S, 0.5).sum(), 1)
assert np.isclose(J(flat, flat, np.ones(M), 3.0), 1.0), "p = q: only the first sum is left"
### BEGIN HIDDEN TESTS
q = sizes / sizes.sum()
best = index_weights(q, S, 0.7)
top = J(best, q, S, 0.7)
assert np.isclose(top, 0.7 * np.log((q * np.exp(S / 0.7)).sum())), "the maximum is lambda log Z"
for other in mine.dirichlet(np.ones(M), 200):
    assert J(other, q, S, 0.7) < top
assert np.isclose(J([1.0, 0.0], [0.5, 0.5], [2.0, 5.0], 1.0), 2 + np.log(0.5))
assert np.allclose(index_weights(q, S, 1e6), q, atol=1e-5), "a large lambda is FedAvg"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · (iii) Features that know no client

$z$ `[B, d]` are the features of a batch, $P$ a matrix `[d, e]`, $z_P = z P$, and `index` `[M, e]`
has the clients' feature indices as rows. The regulariser is the mean, over samples and clients, of
$|z_P \cdot \hat\beta_i|$, with $\hat\beta_i$ the index **at length 1** (otherwise a client with a
long index would count more).
"""

# %% solve="orthogonal"
def orthogonal(z, P, index):
    """The mean of absolute products, as a tensor of one number."""
    ### BEGIN SOLUTION
    return ((z @ P) @ F.normalize(index, dim=1).T).abs().mean()
    ### END SOLUTION

# %% wrong="orthogonal"
# indices as they are
def orthogonal(z, P, index):
    return ((z @ P) @ index.T).abs().mean()

# %% test="orthogonal" points=3
eye = torch.eye(2, dtype=torch.float64)
z = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
assert torch.isclose(orthogonal(z, eye, eye), torch.tensor(2.0).double()), "(3 + 1) / 2"
### BEGIN HIDDEN TESTS
assert torch.isclose(orthogonal(z, eye, 10 * eye), torch.tensor(2.0).double()), "length 1"
z, P = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((6, 3), (3, 5)))
assert torch.isclose(orthogonal(z, P, index), orthogonal(z, P, 4 * index))
assert torch.isclose(orthogonal(z, P, index), ((z @ P) @ unit.T).abs().mean())
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · Three ways to please a loss

The loss of part 5 can fall without the features forgetting any client. Mark with `True` every
change that makes it **exactly zero, or as small as you like, while $z$ still tells all clients
apart**:

- `shrink`: all features $z$ are multiplied by 0.001,
- `turn`: $P$ maps everything to directions at right angles to all indices (say there are fewer
  clients than $e$),
- `forget`: $z$ no longer depends on the client.
"""

# %% solve="please"
shrink = None
turn = None
forget = None
### BEGIN SOLUTION
shrink = True
turn = True
forget = False
### END SOLUTION

# %% wrong="please"
# only the way that the authors had in mind
shrink = False
turn = False
forget = True

# %% test="please" points=3
assert all(isinstance(v, bool) for v in (shrink, turn, forget)), "True or False"
### BEGIN HIDDEN TESTS
assert shrink, "0.001 z is as easy to tell apart as z, and its products are a thousandth"
assert turn, "the loss sees z P only"
assert not forget, "that is what the loss is meant to bring about, and then z tells nobody apart"
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

Change the loss of part 5 so that `shrink` no longer helps. Which of the three ways is left, and
what would you have to measure after training to know which one was taken?
"""
