# %% [markdown]
r"""
# Assignment 9 · GRP-FED: an adaptive power, and models of one's own

**Time.** About 50 minutes. **Points.** 20. **Helps:** notebook 10, `10_grp_fed`.

GRP-FED (Chou et al., 2021) wants two things at once: a *global* model that is fair to all clients,
and a *personal* model for each client that still knows what the others know.

- The global model is the mean of the clients' models with weights $\lambda_m \propto L_m^{\,q}$: a
  client with a high loss $L_m$ counts more. The power $q$ adapts itself to the spread of the
  losses.
- The personal feature extractor is trained on $\beta\, L_\text{CE} + (1 - \beta)\, L_R$. The first
  term fits the client's own samples. The second wants features that a *discriminator* $D$ takes for
  those of the global model.
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

mine = toy.numbers(STUDENT, "ps9")
L = np.round(mine.uniform(0.4, 2.0, 8), 2)  # losses of eight clients
spreads = np.round(0.6 * np.cumprod(mine.uniform(0.8, 1.05, 12)), 4)  # of twelve rounds
own, all_ = np.round(mine.uniform(0.6, 0.98, 8), 3), np.round(mine.uniform(0.1, 0.6, 8), 3)
print("L =", L, "\nspreads =", spreads)

# %% [markdown]
r"""
## 1 · How many clients make the mean?

With weights $\lambda_m = L_m^q / \sum_i L_i^q$ the **effective number of clients** is $1 / \sum_m
\lambda_m^2$: as many clients with equal weights would make an equally noisy mean. Write it as a
function of the losses and $q$. The tests use $q = 400$, so take logarithms (softmax of $q \log
L_m$, the largest entry subtracted before `exp`).
"""

# %% solve="effective"
def effective_clients(L, q):
    """A float between 1 and the number of clients."""
    ### BEGIN SOLUTION
    s = q * np.log(L)
    lam = np.exp(s - s.max())
    lam = lam / lam.sum()
    return float(1 / (lam**2).sum())
    ### END SOLUTION

# %% wrong="effective"
# powers as printed: they overflow or vanish
def effective_clients(L, q):
    with np.errstate(all="ignore"):
        lam = np.asarray(L) ** float(q)
        lam = lam / lam.sum()
    return float(1 / (lam**2).sum())

# %% test="effective" points=3
assert math.isclose(effective_clients(np.array([1.0, 1.0, 2.0]), 2), 2.0)
assert math.isclose(effective_clients(L, 0), 8.0), "q = 0: everybody counts the same"
### BEGIN HIDDEN TESTS
assert math.isclose(effective_clients(np.array([0.1, 0.1, 0.05]), 400), 2.0), "use logarithms"
weights = toy.weigh(methods.get("grp_fed", q=10.0), np.ones(8), L)
assert math.isclose(effective_clients(L, 10), metrics.effective_clients(weights), rel_tol=1e-6)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · The power adapts

With $s$ the standard deviation of the losses over clients, before and now,

$$q \leftarrow q + \eta_q\,
\frac{s_\text{now} - s_\text{before}}{(s_\text{now} + s_\text{before}) / 2} .$$

If the losses spread, $q$ grows and the worst clients count more. The change is relative to the
**middle** of the two spreads.
"""

# %% solve="adapt"
def adapted(q, before, now, eta):
    """The next q."""
    ### BEGIN SOLUTION
    return q + eta * (now - before) / ((now + before) / 2)
    ### END SOLUTION

# %% wrong="adapt"
# relative to the spread before
def adapted(q, before, now, eta):
    return q + eta * (now - before) / before

# %% test="adapt" points=3
assert adapted(10, 0.3, 0.3, 0.5) == 10, "nothing changed"
assert adapted(10, 0.3, 0.4, 0.5) > 10 > adapted(10, 0.3, 0.2, 0.5)
### BEGIN HIDDEN TESTS
from fedbook.methods import grp_fed

assert math.isclose(adapted(10, 0.4, 0.1, 0.5), 9.4)
for a, b in mine.uniform(0.1, 2, (20, 2)):
    assert math.isclose(adapted(5.0, a, b, 0.7), grp_fed.adapted(5.0, a, b, 0.7))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · How far can it go?

Let the spread run through your twelve numbers in `spreads`, from $q = 10$ with $\eta_q = 0.5$. Set

- `last_q` to the power after all eleven changes,
- `estimate` to $10 + \eta_q \ln(s_\text{last} / s_\text{first})$.

The two are nearly equal: many small relative changes add up to a logarithm. So if the spread falls
to a hundredth, $q$ falls from 10 to about 7.7. The *start* decides, not the adaptation.
"""

# %% solve="far"
last_q = None
estimate = None
### BEGIN SOLUTION
last_q = 10.0
for before, now in zip(spreads, spreads[1:]):
    last_q = adapted(last_q, before, now, 0.5)
estimate = 10 + 0.5 * math.log(spreads[-1] / spreads[0])
### END SOLUTION

# %% wrong="far"
# one step from the first to the last spread
last_q = adapted(10.0, spreads[0], spreads[-1], 0.5)
estimate = 10 + 0.5 * math.log(spreads[-1] / spreads[0])

# %% test="far" points=3
assert abs(last_q - estimate) < 0.1
### BEGIN HIDDEN TESTS
expected = 10.0
for a, b in zip(spreads, spreads[1:]):
    expected += 0.5 * (b - a) / ((a + b) / 2)
assert math.isclose(last_q, expected, abs_tol=1e-9), "eleven changes, one after the other"
assert math.isclose(estimate, 10 + 0.5 * math.log(spreads[-1] / spreads[0]))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · The game

The discriminator gives features a *logit* $x$; $D = \sigma(x) = 1/(1 + e^{-x})$ near 1 means "this
comes from the global extractor". As losses of binary cross-entropy,

$$L_D = -\log D(f^\text{global}) - \log\big(1 - D(f^\text{personal})\big), \qquad
L_R = -\log D(f^\text{personal}) .$$

$D$ learns to tell the two apart; the personal extractor learns to be taken for the global one.
Write both for logits (numpy arrays), as means over the batch. Use `np.logaddexp(0, -x)`, which is
$-\log \sigma(x)$ and does not overflow; $-\log(1 - \sigma(x))$ is `np.logaddexp(0, x)`.
"""

# %% solve="game"
def l_d(on_global, on_personal):
    """The discriminator's loss."""
    ### BEGIN SOLUTION
    return float((np.logaddexp(0, -on_global) + np.logaddexp(0, on_personal)).mean())
    ### END SOLUTION


def l_r(on_personal):
    """What the personal extractor pays for being recognised."""
    ### BEGIN SOLUTION
    return float(np.logaddexp(0, -on_personal).mean())
    ### END SOLUTION

# %% wrong="game"
# the roles are exchanged: D = 1 is taken to mean "personal"
def l_d(on_global, on_personal):
    return float((np.logaddexp(0, on_global) + np.logaddexp(0, -on_personal)).mean())


def l_r(on_personal):
    return float(np.logaddexp(0, on_personal).mean())

# %% test="game" points=4
zero = np.zeros(3)
assert math.isclose(l_d(zero, zero), 2 * math.log(2)), "D = 1/2 everywhere: it cannot tell"
assert math.isclose(l_r(zero), math.log(2))
assert math.isfinite(l_d(np.array([800.0]), np.array([-800.0]))), "no overflow"
### BEGIN HIDDEN TESTS
from fedbook.methods import grp_fed

a, b = mine.normal(0, 2, 7), mine.normal(0, 2, 7)
A, B = torch.tensor(a), torch.tensor(b)
assert math.isclose(l_d(a, b), float(grp_fed.discriminator_loss(A, B, "bce")), rel_tol=1e-6)
assert math.isclose(l_r(b), float(grp_fed.generator_loss(B, "bce")), rel_tol=1e-6)
assert l_r(np.array([5.0])) < l_r(np.array([-5.0])), "being taken for global is what it wants"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · $\beta$, and where it pulls

A personal extractor of a single number: its feature for every sample is $f$. The client's own
samples want $f = a$, $L_\text{CE} = \tfrac12 (f - a)^2$; the game wants $f$ like the global feature
$c$, and we write it as $L_R = \tfrac12 (f - c)^2$. Return the $f$ that minimises $\beta L_\text{CE}
+ (1 - \beta) L_R$.
"""

# %% solve="pull"
def personal(beta, a, c):
    """The best f."""
    ### BEGIN SOLUTION
    return beta * a + (1 - beta) * c
    ### END SOLUTION

# %% wrong="pull"
# beta on the wrong side
def personal(beta, a, c):
    return (1 - beta) * a + beta * c

# %% test="pull" points=3
assert math.isclose(personal(0.5, 1.0, 3.0), 2.0), "half way"
### BEGIN HIDDEN TESTS
assert math.isclose(personal(1.0, 1.0, 3.0), 1.0), "beta = 1 is local training"
grid = np.linspace(-5, 5, 20001)
for beta, a, c in mine.uniform(0, 1, (5, 3)):
    values = beta * (grid - a) ** 2 + (1 - beta) * (grid - c) ** 2
    assert abs(personal(beta, a, c) - grid[values.argmin()]) < 1e-3
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · Own samples, and everybody's

A personal model is tested twice: on the client's own test samples ($T_p$, personalisation) and on
everybody's ($T_r$, generalisation). GRP-FED's summary $T_l$ is the harmonic mean $2ab/(a + b)$ of
the two. But of what? Two readings:

- for each client the harmonic mean of *its* two scores, then the mean over clients,
- the harmonic mean of the two averages.

The printed table fits the **first**. Write it, for lists of the clients' scores; a client with two
zeros counts 0.
"""

# %% solve="tl"
def t_l(p, r):
    """The mean over clients of their harmonic means."""
    ### BEGIN SOLUTION
    p, r = np.asarray(p, float), np.asarray(r, float)
    both = np.where(p + r > 0, p + r, 1)
    return float((2 * p * r / both).mean())
    ### END SOLUTION

# %% wrong="tl"
# the harmonic mean of the averages
def t_l(p, r):
    a, b = np.mean(p), np.mean(r)
    return float(2 * a * b / (a + b))

# %% test="tl" points=4
assert math.isclose(t_l([0.9], [0.45]), 0.6), "one client"
assert math.isclose(t_l([0.5, 0.5], [0.5, 0.5]), 0.5)
### BEGIN HIDDEN TESTS
assert math.isclose(t_l([1.0, 0.5], [0.0, 0.5]), 0.25), "client by client"
assert t_l([0.0, 1.0], [0.0, 1.0]) == 0.5, "a client with two zeros counts 0"
assert math.isclose(t_l(own, all_), metrics.local_tests(own, all_)["t_l"])
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

Show that the first reading is never larger than the second. (The harmonic mean is a concave
function.) By which of the two would *you* like to be judged, if your method is very good for half
of the clients and useless for the rest?
"""
