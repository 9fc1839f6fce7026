# %% [markdown]
r"""
# Assignment 6 · FGPT: a prompt for every group of images

**Time.** About 45 minutes. **Points.** 20. **Helps:** notebook 07, `07_fgpt`.

FedGCR makes groups of *clients*. FGPT (Deng et al., 2023) makes groups of *images*. There are $G$
**keys** $b_1, \dots, b_G$, unit vectors that are fixed before training and never learned. An image
with the feature $e$ (from a frozen network) belongs to the group whose key is nearest,

$$g(e) = \arg\max_g \cos(e, b_g),$$

and gets that group's prompt $p_g$. After local training the server averages the prompts *group by
group*: a client's $p_g$ counts as often as its images chose $g$.

Nobody needs to know which client an image comes from, so a new client needs no training of its own.
Whether it works depends on the keys, as you will see.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import numpy as np
import torch
from sklearn.datasets import load_digits

from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps6")
digits = load_digits()
keep = mine.permutation(1797)[:600]
features = digits.data[keep] / 16  # 64 grey values as features of 600 small pictures
owner = mine.integers(0, 5, 600)  # which of five clients holds a picture
print("features", features.shape, " mean grey value", features.mean().round(3))

# %% [markdown]
r"""
## 1 · Keys at right angles

Make $G$ keys in $d \ge G$ dimensions with length 1 and **pairwise scalar product 0**. Take a random
$d \times G$ matrix from `rng.normal`, and let `np.linalg.qr` make its columns orthogonal. Return
the keys as rows: `[G, d]`.
"""

# %% solve="keys"
def make_keys(G, d, rng):
    """G orthogonal unit vectors, as rows."""
    ### BEGIN SOLUTION
    q, _ = np.linalg.qr(rng.normal(size=(d, G)))
    return q.T
    ### END SOLUTION

# %% wrong="keys"
# random unit vectors are only nearly orthogonal
def make_keys(G, d, rng):
    k = rng.normal(size=(G, d))
    return k / np.linalg.norm(k, axis=1, keepdims=True)

# %% test="keys" points=3
keys = make_keys(8, 64, np.random.default_rng(0))
assert keys.shape == (8, 64)
assert np.allclose(np.linalg.norm(keys, axis=1), 1), "length 1"
### BEGIN HIDDEN TESTS
for seed in range(3):
    keys = make_keys(8, 64, np.random.default_rng(seed))
    assert np.allclose(keys @ keys.T, np.eye(8)), "pairwise orthogonal"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · Which group?

Return for every row of `e` the number of the key with the largest **cosine**. In this part keys may
have any length (those of a successor of FGPT are learned and do not keep length 1).
"""

# %% solve="select"
def select(e, keys):
    """One group number per row of e."""
    ### BEGIN SOLUTION
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    return (e @ unit.T).argmax(1)
    ### END SOLUTION

# %% wrong="select"
# scalar products: a long key wins too often
def select(e, keys):
    return (e @ keys.T).argmax(1)

# %% test="select" points=3
assert select(np.array([[3.0, 1.0], [-1.0, 0.5]]), np.eye(2)).tolist() == [0, 1]
assert select(features, np.eye(64)[:8]).shape == (600,)
### BEGIN HIDDEN TESTS
assert select(np.array([[3.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 99.0]])).tolist() == [0]
from fedbook.models.prompts import make_keys as made

K = made(8, 64, seed=1).numpy() * mine.uniform(0.1, 9, (8, 1))
cos = torch.nn.functional.cosine_similarity(
    torch.tensor(features)[:, None], torch.tensor(K)[None], dim=2
)
assert (select(features, K) == cos.argmax(1).numpy()).all()
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · Who used what

Count, for each client, how often each group was chosen: `[clients, G]`. Groups that a client never
chose count 0. (`np.bincount` needs its `minlength`.)
"""

# %% solve="usage"
def usage(chosen, owner, clients, G):
    """How often client i chose group g."""
    ### BEGIN SOLUTION
    return np.array([np.bincount(chosen[owner == i], minlength=G) for i in range(clients)])
    ### END SOLUTION

# %% wrong="usage"
# counts over all clients, and gives every client the same share
def usage(chosen, owner, clients, G):
    return np.tile(np.bincount(chosen, minlength=G) // clients, (clients, 1))

# %% test="usage" points=3
toy_chosen, toy_owner = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
assert usage(toy_chosen, toy_owner, 2, 2).tolist() == [[1, 1], [1, 1]]
assert usage(toy_chosen, toy_owner, 2, 5).shape == (2, 5), "unused groups have a column too"
### BEGIN HIDDEN TESTS
assert usage(np.array([0, 2, 2]), np.array([0, 1, 1]), 3, 4).tolist() == [
    [1, 0, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0],
]
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · Averaging group by group

`prompts[i, g]` is client $i$'s prompt of group $g$ after training, `counts[i, g]` is $N_g^i$ from
part 3, and `old[g]` is the server's prompt before the round:

$$p_g \leftarrow \sum_i \beta_g^i\, p_g^i, \qquad \beta_g^i = \frac{N_g^i}{\sum_j N_g^j} .$$

If nobody chose $g$ the fraction is $0/0$. Then nobody trained $p_g$ either, and **it stays as it
was**.
"""

# %% solve="average"
def average_prompts(prompts, counts, old):
    """New prompts [G, d] from prompts [clients, G, d] and counts [clients, G]."""
    ### BEGIN SOLUTION
    new = np.array(old, float)
    for g in range(counts.shape[1]):
        if counts[:, g].sum():
            new[g] = counts[:, g] @ prompts[:, g] / counts[:, g].sum()
    return new
    ### END SOLUTION

# %% wrong="average"
# a group nobody used is set to zero
def average_prompts(prompts, counts, old):
    total = np.maximum(counts.sum(0), 1)
    return np.einsum("ig,igd->gd", counts, prompts) / total[:, None]

# %% test="average" points=4
prompts = np.array([[[1.0]], [[7.0]], [[3.0]]])
new = average_prompts(prompts, np.array([[6], [0], [18]]), np.array([[9.0]]))
assert np.allclose(new, 2.5), "6 times 1 and 18 times 3; the second client has no say"
### BEGIN HIDDEN TESTS
P, old = mine.normal(size=(3, 4, 5)), mine.normal(size=(4, 5))
N = np.array([[4, 0, 1, 0], [0, 0, 3, 2], [6, 0, 0, 2]])
new = average_prompts(P, N, old)
assert np.allclose(new[1], old[1]), "nobody chose group 1, so its prompt stays"
from fedbook.rounds.weights import normalise

for g in (0, 2, 3):
    beta = normalise(torch.tensor(N[:, g], dtype=torch.float64).log(), range(3))
    assert np.allclose(new[g], np.array(beta) @ P[:, g]), g
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · Are all groups used?

If nearly all images choose one group, FGPT is prompt tuning with one prompt and some ballast. The
**effective number of groups** is $\exp$ of the entropy of the usage shares $u_g$: $\exp(-\sum_g u_g
\log u_g)$, where groups with share 0 add nothing. It is $G$ if all are used alike, and 1 if only
one is.
"""

# %% solve="effective"
def effective(counts):
    """Of a list of G usage counts."""
    ### BEGIN SOLUTION
    u = np.asarray(counts, float)
    u = u[u > 0] / u.sum()
    return float(np.exp(-(u * np.log(u)).sum()))
    ### END SOLUTION

# %% wrong="effective"
# groups that were used at all
def effective(counts):
    return float((np.asarray(counts) > 0).sum())

# %% test="effective" points=3
assert np.isclose(effective([5, 5, 5, 5]), 4)
assert np.isclose(effective([0, 9, 0]), 1)
### BEGIN HIDDEN TESTS
from fedbook.methods.fgpt import effective as library

for counts in ([1, 2, 3], [100, 1, 0, 1], [3, 7, 0, 0, 5]):
    assert np.isclose(effective(counts), library(counts))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · The collapse, and a cure

All grey values are positive, so all features have a large part in common: their mean. A key that
happens to point along the mean is near to *everything*. The next cell has ten sets of eight keys
from the library. For each set `key_sets[k]` compute the effective number of groups over all 600
pictures

- `raw[k]`, with the features as they are,
- `centred[k]`, after the mean over all pictures has been subtracted from every feature.

Two lists of ten numbers.
"""

# %% locked="sets"
from fedbook.models.prompts import make_keys as library_keys

key_sets = [library_keys(8, 64, seed=k).numpy().astype(float) for k in range(10)]

# %% solve="collapse"
raw = None
centred = None
### BEGIN SOLUTION
raw, centred = [], []
for k in range(10):
    keys = key_sets[k]
    for e, into in ((features, raw), (features - features.mean(0), centred)):
        into.append(effective(np.bincount(select(e, keys), minlength=8)))
### END SOLUTION

# %% wrong="collapse"
# subtracts each picture's own mean grey value instead of the mean picture
raw, centred = [], []
for k in range(10):
    keys = key_sets[k]
    own = features - features.mean(1, keepdims=True)
    for e, into in ((features, raw), (own, centred)):
        into.append(effective(np.bincount(select(e, keys), minlength=8)))

# %% test="collapse" points=4
assert len(raw) == len(centred) == 10
assert np.mean(centred) > np.mean(raw), "centring uses the groups more evenly"
### BEGIN HIDDEN TESTS
from fedbook.methods.fgpt import effective as library

for k in range(10):
    for e, found in ((features, raw[k]), (features - features.mean(0), centred[k])):
        chosen = (e @ key_sets[k].T).argmax(1)
        assert np.isclose(found, library(np.bincount(chosen, minlength=8).tolist())), k
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

To centre its features a client needs the mean over *all* clients' images. What would have to be
sent for that, how many bytes is it, and does it tell anything about a single client?
"""
