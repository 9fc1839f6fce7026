# %% [markdown]
r"""
# Assignment 3 · Prompts

**Time.** About 50 minutes. **Points.** 20. **Helps:** notebook 03, `03_prompt_tuning_a_frozen_vit`.

A vision transformer (ViT) cuts an image into patches and turns each patch into a vector, a
**token**. One more token, `cls`, stands first; after the last layer a classifier reads it. In each
layer every token looks at all others by *attention*, and mixes in what it finds.

To adapt a large ViT one can freeze it and add a few **prompts**: extra tokens that belong to no
patch and are learned. FedGCR and FGPT, two of the four papers of this book, send only prompts and a
classifier between server and clients. You will build attention and prompts by hand, on tokens of
four numbers.
"""

# %% solve="name"
STUDENT = ""  # your name in the course (your numbers depend on it); delete the next line
### BEGIN SOLUTION
STUDENT = "solution"
### END SOLUTION

# %% locked="setup"
import math

import torch

from fedbook.course import toy

mine = toy.numbers(STUDENT, "ps3")
draw = torch.Generator().manual_seed(int(mine.integers(1 << 30)))


def random(*shape):
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


tokens = random(3, 6, 4)  # 3 images, cls and 5 patches each, vectors of 4 numbers
print("cls of the first image:", tokens[0, 0])

# %% [markdown]
r"""
## 1 · Attention

A token asks with a *query* $q$, all tokens show *keys* $k_1, \dots, k_T$ and hold *values*
$v_1, \dots, v_T$. The answer is a mean of the values,

$$\sum_t a_t v_t, \qquad a = \operatorname{softmax}\!\left(\frac{q \cdot k_1}{\sqrt d}, \dots,
\frac{q \cdot k_T}{\sqrt d}\right),$$

with $d$ the length of $q$. Write it for one query `q` of shape `[d]`, keys `K` of shape `[T, d]`
and values `V` of shape `[T, e]`. Return the answer `[e]` and the weights `a` `[T]`.
"""

# %% solve="attention"
def attend(q, K, V):
    """(answer, weights)"""
    ### BEGIN SOLUTION
    a = torch.softmax(K @ q / math.sqrt(len(q)), 0)
    return a @ V, a
    ### END SOLUTION

# %% wrong="attention"
# without the square root of d
def attend(q, K, V):
    a = torch.softmax(K @ q, 0)
    return a @ V, a

# %% test="attention" points=3
one = torch.ones(1, dtype=torch.float64)
keys = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
answer, a = attend(one, keys, torch.eye(2).double())
assert torch.allclose(a, torch.tensor([0.25, 0.75]).double()), "softmax of 0 and log 3"
answer, a = attend(random(4), random(6, 4), random(6, 5))
assert answer.shape == (5,) and torch.isclose(a.sum(), one.sum())
### BEGIN HIDDEN TESTS
q, K, V = random(4), random(6, 4), random(6, 5)
library = torch.nn.functional.scaled_dot_product_attention(q[None], K, V)[0]
assert torch.allclose(attend(q, K, V)[0], library), "divide by the square root of d"
### END HIDDEN TESTS

# %% [markdown]
r"""
## 2 · What one more token does

Add a prompt with key $k$ and value $v$ to the $T$ tokens. The new answer is a mixture of the old
answer and $v$:

$$\text{new} = (1 - a)\,\text{old} + a\,v .$$

Write the function that returns $a$, the share of the prompt, **from the old scores**
$s_t = q \cdot k_t / \sqrt d$ and the new score $s = q \cdot k / \sqrt d$ alone. (Look at the
denominator of the softmax.)
"""

# %% solve="share"
def prompt_share(scores, new_score):
    """The attention a prompt gets; scores is a tensor [T], new_score a number."""
    ### BEGIN SOLUTION
    every = torch.cat([scores, torch.as_tensor([float(new_score)], dtype=scores.dtype)])
    return float(torch.softmax(every, 0)[-1])
    ### END SOLUTION

# %% wrong="share"
# the prompt is compared with one other token instead of all of them
def prompt_share(scores, new_score):
    return float(torch.sigmoid(float(new_score) - scores.max()))

# %% test="share" points=3
assert math.isclose(prompt_share(torch.zeros(1).double(), 0.0), 0.5), "two equal tokens"
assert prompt_share(torch.zeros(5).double(), 50.0) > 0.999
### BEGIN HIDDEN TESTS
assert math.isclose(prompt_share(torch.zeros(4).double(), 0.0), 0.2), "five equal tokens"
q, K, V, k, v = random(4), random(6, 4), random(6, 5), random(4), random(5)
old, _ = attend(q, K, V)
new, _ = attend(q, torch.cat([K, k[None]]), torch.cat([V, v[None]]))
a = prompt_share(K @ q / 2, float(k @ q / 2))
assert torch.allclose(new, (1 - a) * old + a * v)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 3 · Putting prompts in

`tokens` has shape `[B, T, d]` with `cls` at position 0, `prompts` has shape `[S, d]`, the same for
all images. Return `[B, T + S, d]`: **first `cls`, then the prompts, then the patches.** The
classifier will read position 0.
"""

# %% solve="insert"
def insert(tokens, prompts):
    """Tokens with prompts behind cls."""
    ### BEGIN SOLUTION
    every = prompts.expand(len(tokens), -1, -1)
    return torch.cat([tokens[:, :1], every, tokens[:, 1:]], 1)
    ### END SOLUTION

# %% wrong="insert"
# prompts come first, so that position 0 is no longer cls
def insert(tokens, prompts):
    return torch.cat([prompts.expand(len(tokens), -1, -1), tokens], 1)

# %% test="insert" points=3
assert insert(tokens, random(2, 4)).shape == (3, 8, 4)
assert insert(tokens, random(0, 4)).shape == tokens.shape, "no prompts, nothing changes"
### BEGIN HIDDEN TESTS
P = random(2, 4)
there = insert(tokens, P)
assert torch.equal(there[:, 0], tokens[:, 0]), "cls stays first"
assert torch.equal(there[:, 3:], tokens[:, 1:]) and torch.equal(there[2, 1:3], P)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 4 · Prompts made to measure (FedGCR)

FedGCR shifts all prompts of an image by a vector $h(x)$ computed from that image: image $b$ gets
$p_1 + h_b, \dots, p_S + h_b$. `prompts` is `[S, d]`, `h` is `[B, d]`; return `[B, S, d]`.

Beware of `repeat` and `reshape`. A public implementation tiles $h$ and reshapes it; with one image
the result is right, with several images every image gets the vectors of *others*. No error appears,
and training still works, only worse.
"""

# %% solve="customise"
def customise(prompts, h):
    """Every image's own prompts."""
    ### BEGIN SOLUTION
    return prompts[None] + h[:, None]
    ### END SOLUTION

# %% wrong="customise"
# tiles h and reshapes it: right for one image only
def customise(prompts, h):
    tiled = h.repeat(len(prompts), 1).reshape(len(h), len(prompts), -1)
    return prompts[None] + tiled

# %% test="customise" points=4
P = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
shifted = customise(P, torch.tensor([[5.0, 7.0]]))
assert torch.equal(shifted, torch.tensor([[[6.0, 7.0], [5.0, 8.0]]]))
assert customise(random(2, 4), random(3, 4)).shape == (3, 2, 4)
### BEGIN HIDDEN TESTS
P, h = random(2, 4), random(3, 4)
for b in range(3):
    for s in range(2):
        assert torch.allclose(customise(P, h)[b, s], P[s] + h[b]), (b, s)
### END HIDDEN TESTS

# %% [markdown]
r"""
## 5 · Deep prompts

*Shallow* prompts enter once and travel through all layers. *Deep* prompts: every layer has its own;
those of the layer before are thrown away, not kept beside the new ones. `layers` is a list of
functions that map `[B, T, d]` to the same shape, `prompts` a list with one `[S, d]` per layer. Use
the order of part 3, and return the `cls` token `[B, d]` after the last layer.
"""

# %% solve="deep"
def deep(tokens, layers, prompts):
    """cls after all layers, each with its own prompts."""
    ### BEGIN SOLUTION
    for layer, p in zip(layers, prompts):
        out = layer(insert(tokens, p))
        tokens = torch.cat([out[:, :1], out[:, 1 + len(p) :]], 1)
    return tokens[:, 0]
    ### END SOLUTION

# %% wrong="deep"
# the prompts of all layers pile up
def deep(tokens, layers, prompts):
    for layer, p in zip(layers, prompts):
        tokens = layer(insert(tokens, p))
    return tokens[:, 0]

# %% test="deep" points=4
def mean_layer(t):
    """Every token becomes the mean of itself and all."""
    return (t + t.mean(1, keepdim=True)) / 2


P = random(2, 4)
expected = mean_layer(insert(tokens, P))[:, 0]
assert torch.allclose(deep(tokens, [mean_layer], [P]), expected), "one layer"
### BEGIN HIDDEN TESTS
zero = torch.zeros(2, 4, dtype=torch.float64)
seen = []


def counting(t):
    seen.append(t.shape[1])
    return mean_layer(t)


deep(tokens, [counting] * 3, [P, zero, P])
assert seen == [8, 8, 8], "every layer sees cls, 2 prompts and 5 patches"
t = tokens
for p in (P, zero):
    t = mean_layer(insert(t, p))
    t = torch.cat([t[:, :1], t[:, 3:]], 1)
assert torch.allclose(deep(tokens, [mean_layer] * 2, [P, zero]), t[:, 0])
### END HIDDEN TESTS

# %% [markdown]
r"""
## 6 · What travels

At ViT-B/16 a token has $d = 768$ numbers. Count the trained numbers of a model with `prompts`
prompts, a linear classifier for `classes` classes (weights *and* biases), and, if `hidden` is not
0, FedGCR's GC-Net: two linear layers $d \to$ `hidden` $\to d$, with biases.
"""

# %% solve="count"
def trained_numbers(prompts, classes, hidden=0, d=768):
    """How many numbers a client sends."""
    ### BEGIN SOLUTION
    total = prompts * d + d * classes + classes
    if hidden:
        total += d * hidden + hidden + hidden * d + d
    return total
    ### END SOLUTION

# %% wrong="count"
# GC-Net without biases
def trained_numbers(prompts, classes, hidden=0, d=768):
    return prompts * d + d * classes + classes + 2 * d * hidden

# %% test="count" points=3
assert trained_numbers(5, 100) == 80_740, "5 prompts and 100 classes: FGPT's Table 2 has 80,740"
assert trained_numbers(1, 1, d=1) == 3
### BEGIN HIDDEN TESTS
from fedbook.models.backbones import backbone
from fedbook.models.prompts import BUILDERS

with torch.device("meta"):
    large = backbone("vit_base_patch16_224", pretrained=False, device="meta")
    gc = BUILDERS["fedgc"](10, large)
library = sum(p.numel() for p in gc.parameters() if p.requires_grad)
assert trained_numbers(4, 10, hidden=3072) == library == 4_733_194
### END HIDDEN TESTS

# %% [markdown]
r"""
## To think about (no points)

The ViT itself has 86 million numbers. If a round with all of them takes a phone 10 minutes of
uploading, how long does one with 5 prompts and 100 classes take? And which of the two parts,
prompts or classifier, is most of it?
"""
