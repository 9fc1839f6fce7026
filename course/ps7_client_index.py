# %% [markdown]
r"""
# Assignment 7 · One vector per client

**Time.** About 45 minutes. **Points.** 20. **Helps:** notebook 08, `08_client2vec_index`.

*word2vec* gives each word a vector so that related words lie close together. Client2Vec (Guo et
al., 2024) does it with clients, before any training: the **client index** $\beta_i = [\beta_i^f;
\beta_i^l]$ has one half for how a client's samples *look* and one for which *classes* they show.

A small network splits the embedding $D$ of a sample into $z$, which should say what the label says,
and $u$, the rest. Four losses train it:

| loss | asks for | forbids |
|:---|:---|:---|
| $\mathcal L_\text{sim}$ | $z$ points like the label's embedding | $z$ that says nothing |
| $\mathcal L_\text{orth}$ | $z$ and $u$ at right angles | $u$ that repeats $z$ |
| $\mathcal L_\text{recon}$ | $D$ can be rebuilt from $z$ and $u$ | $u$ that says nothing |
| $\mathcal L_\text{div}$ | the $u$ of a batch differ | one $u$ for everybody |

You write three of them, the index, and find a silent failure.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import math

import torch
import torch.nn.functional as F

from fedbook.course import toy
from fedbook.models import dsa_ign

mine = toy.numbers(STUDENT, "ps7")
draw = torch.Generator().manual_seed(int(mine.integers(1 << 30)))


def random(*shape):
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


sizes = [3, 5, 2, 8]  # four clients
client = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))  # who holds a sample
styles = random(2, 6) * 3  # two styles: clients 0, 1 and clients 2, 3
u = styles[torch.tensor([0, 0, 1, 1])][client] + random(18, 6)
labels = random(18, 6)
print("u of the first sample:", u[0])

# %% [markdown]
r"""
## 1 · The index

$\beta_i^f$ is the mean of $u$ over the samples of client $i$. Return all of them: `[clients, d]`.
"""

# %% solve="index"
def feature_index(u, client, clients):
    """The mean of u over each client's samples."""
    ### BEGIN SOLUTION
    return torch.stack([u[client == i].mean(0) for i in range(clients)])
    ### END SOLUTION

# %% wrong="index"
# cuts the samples into equal pieces instead of asking who holds them
def feature_index(u, client, clients):
    return torch.stack([part.mean(0) for part in u.chunk(clients)])

# %% test="index" points=2
pair = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
expected = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
assert torch.equal(feature_index(pair, torch.tensor([0, 0, 1, 1]), 2), expected)
### BEGIN HIDDEN TESTS
assert torch.equal(feature_index(pair, torch.tensor([1, 0, 1, 1]), 2)[0], pair[1])
index = feature_index(u, client, 4)
assert torch.allclose(index[3], u[10:].mean(0))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · How near is a client to a set of clients?

For a set $C$ of clients with $N_j$ samples each, and $N_C = \sum_{j \in C} N_j$,

$$S(i, C) = \frac1{2 N_C} \sum_{j \in C}
N_j \left( \cos(\beta_i^f, \beta_j^f) + \cos(\beta_i^l, \beta_j^l) \right).$$

Large clients of the set count more. Return $S(i, C)$ of **every** client $i$, for the list `C`.
"""

# %% solve="similarity"
def nearness(feature, label, sizes, C):
    """S(i, C) for all clients i, a tensor [clients]."""
    ### BEGIN SOLUTION
    def cosines(t):
        t = F.normalize(t, dim=1)
        return t @ t.T

    both = (cosines(feature) + cosines(label)) / 2
    n = torch.tensor([float(sizes[j]) for j in C], dtype=both.dtype)
    return both[:, list(C)] @ (n / n.sum())
    ### END SOLUTION

# %% wrong="similarity"
# every client of the set counts the same
def nearness(feature, label, sizes, C):
    def cosines(t):
        t = F.normalize(t, dim=1)
        return t @ t.T

    return ((cosines(feature) + cosines(label)) / 2)[:, list(C)].mean(1)

# %% test="similarity" points=4
eye = torch.eye(3, dtype=torch.float64)
assert torch.allclose(nearness(eye, eye, [4, 4, 4], [0, 1]), torch.tensor([0.5, 0.5, 0.0]).double())
assert torch.allclose(nearness(eye, -eye, [1, 2, 3], [2]), torch.tensor([0.0, 0.0, 1.0]).double())
### BEGIN HIDDEN TESTS
from fedbook.methods.client_index import ClientIndex, to_group

found = nearness(eye, eye, [1, 3, 9], [0, 1])
assert torch.allclose(found, torch.tensor([0.25, 0.75, 0.0]).double())
f, l = feature_index(u, client, 4), feature_index(labels, client, 4)
library = ClientIndex(f, l, sizes, range(4))
for C in ([0], [1, 3], [0, 1, 2, 3]):
    assert torch.allclose(nearness(f, l, sizes, C), to_group(library.cosines(), library.sizes, C))
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · $\mathcal L_\text{sim}$

The mean over samples of $1 - \cos(z_j, L_j)$, with $L_j$ the embedding of the label of sample $j$.
"""

# %% solve="sim"
def l_sim(z, L):
    """A float between 0 and 2."""
    ### BEGIN SOLUTION
    return float((1 - F.cosine_similarity(z, L, dim=1)).mean())
    ### END SOLUTION

# %% wrong="sim"
# scalar products of vectors that need not have length 1
def l_sim(z, L):
    return float((1 - (z * L).sum(1)).mean())

# %% test="sim" points=3
assert math.isclose(l_sim(torch.eye(3), torch.eye(3)), 0, abs_tol=1e-6), "the same direction"
assert math.isclose(l_sim(torch.eye(3), -torch.eye(3)), 2, abs_tol=1e-6), "opposite"
### BEGIN HIDDEN TESTS
z, L = random(10, 6), random(10, 6)
assert math.isclose(l_sim(z, L), float(dsa_ign.similarity_loss(z, L)), rel_tol=1e-6)
assert math.isclose(l_sim(7 * z, L), l_sim(z, L), rel_tol=1e-6), "length does not matter"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · $\mathcal L_\text{orth}$

The mean of $|\cos(z_j, u_k)|$ over **all pairs** $j, k$ of the batch, also $j \ne k$.
"""

# %% solve="orth"
def l_orth(z, u):
    """A float between 0 and 1."""
    ### BEGIN SOLUTION
    return float((F.normalize(z, dim=1) @ F.normalize(u, dim=1).T).abs().mean())
    ### END SOLUTION

# %% wrong="orth"
# compares every z with its own u only
def l_orth(z, u):
    return float(F.cosine_similarity(z, u, dim=1).abs().mean())

# %% test="orth" points=3
assert math.isclose(l_orth(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0]])), 0, abs_tol=1e-6)
opposite = l_orth(torch.tensor([[1.0, 1.0]]), torch.tensor([[-2.0, -2.0]]))
assert math.isclose(opposite, 1, rel_tol=1e-5)
### BEGIN HIDDEN TESTS
z, w = random(10, 6), random(10, 6)
assert math.isclose(l_orth(z, w), float(dsa_ign.orthogonality_loss(z, w)), rel_tol=1e-6)
assert math.isclose(l_orth(torch.eye(4), torch.eye(4)), 0.25), "z = u: four pairs of sixteen"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · $\mathcal L_\text{div}$

$$\mathcal L_\text{div} = \frac1B \sum_j \log \sum_{k \ne j} e^{\cos(u_j, u_k)} .$$

It is $\log(B - 1) + 1$ if all $u$ are one vector. Remember that number: a training in which
$\mathcal L_\text{div}$ stays there has failed, however low the other losses are.
"""

# %% solve="div"
def l_div(u):
    """A float."""
    ### BEGIN SOLUTION
    unit = F.normalize(u, dim=1)
    cos = (unit @ unit.T).masked_fill(torch.eye(len(u), dtype=torch.bool), -math.inf)
    return float(cos.logsumexp(1).mean())
    ### END SOLUTION

# %% wrong="div"
# every u is compared with itself, too
def l_div(u):
    unit = F.normalize(u, dim=1)
    return float((unit @ unit.T).logsumexp(1).mean())

# %% test="div" points=4
same, apart = torch.ones(5, 6), torch.eye(6)[:5]
assert l_div(apart) < l_div(same), "five directions are better than one"
assert math.isclose(l_div(3 * apart), l_div(apart), rel_tol=1e-5), "length does not matter"
### BEGIN HIDDEN TESTS
assert math.isclose(l_div(same), math.log(4) + 1, rel_tol=1e-5), "leave out k = j"
batch = random(12, 6)
assert math.isclose(l_div(batch), float(dsa_ign.diversity_loss(batch)), rel_tol=1e-6)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · A silent failure

The network gets $[D, D]$, the embedding twice, cut into patches; the outputs of the first half of
the patches are $z$, those of the second half are $u$. Attention does not know the order of its
patches, and the second half is a copy of the first. What does that make of $z$ and $u$?

`encoder` maps patches `[1, P, w]` to patches `[1, P, w]`; `D` has $P w / 2$ numbers; `position` has
shape `[P, w]` and is **added to the patches before the encoder**. Return $z$ and $u$ as flat
vectors.
"""

# %% locked="encoder"
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(4, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
D = random(12)
none, code = torch.zeros(6, 4, dtype=torch.float64), random(6, 4)  # 6 patches of 4 numbers

# %% solve="split"
@torch.no_grad()
def split(encoder, D, position):
    """(z, u)"""
    ### BEGIN SOLUTION
    patches = torch.cat([D, D]).reshape(position.shape) + position
    out = encoder(patches[None])[0].flatten()
    return out[: len(D)], out[len(D) :]
    ### END SOLUTION

# %% wrong="split"
# the position code is added after the encoder: z and u differ, but only by the code
@torch.no_grad()
def split(encoder, D, position):
    patches = torch.cat([D, D]).reshape(position.shape)
    out = (encoder(patches[None])[0] + position).flatten()
    return out[: len(D)], out[len(D) :]

# %% test="split" points=4
z, v = split(encoder, D, none)
assert z.shape == v.shape == D.shape
assert torch.allclose(z, v), "without a position code z = u, whatever the weights: the failure"
z, v = split(encoder, D, code)
assert not torch.allclose(z, v)
### BEGIN HIDDEN TESTS
with torch.no_grad():
    whole = encoder((torch.cat([D, D]).reshape(6, 4) + code)[None])[0]
assert torch.allclose(torch.cat([z, v]), whole.flatten()), "add the code before the encoder"
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

In the failed network $z = u$. Which of the four losses notices, and by how much, in a batch of 128?
(Part 4 has the case of four samples.) Why did nobody see it in a plot of the total loss?
"""
