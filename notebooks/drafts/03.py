# %% [markdown]
# # 3. Scores and soft addressing
#
# *What you learn: four ways to compare a query with a key; attention as a look-up that may be trained; which score learns best at which
# size, measured.* Two minutes to run, fifteen to read.
#
# The dot product is one way to say how well a key fits a query. Attention was invented with another one.

# %%
import time

import matplotlib.pyplot as plt
import torch
from pictures import BLUE, GREEN, GREY, ORANGE, heat_map
from torch import nn

from bertpre.attention.dot_product import attend, look_up
from bertpre.attention.scores import AdditiveScore, BilinearScore, dot_score, scaled_dot_score

torch.manual_seed(0)

# %% [markdown]
# ## A memory that answers softly
#
# A Python dictionary finds the value whose key **equals** the query. Attention compares the query with *all* keys and returns a mean of all
# values, weighted by how well their keys fit. Four cities with made-up coordinates as keys, and their temperature as value:

# %%
cities = ["Oslo", "Rome", "Cairo", "Nairobi"]
keys = torch.tensor([[59.9, 10.8], [41.9, 12.5], [30.0, 31.2], [-1.3, 36.8]]) / 30  # latitude and longitude, made small
values = torch.tensor([[6.0], [16.0], [22.0], [19.0]])  # degrees

athens = torch.tensor([[38.0, 23.7]]) / 30
for sharpness in (0.3, 1.0, 5.0, 50.0):
    distance = (athens.unsqueeze(-2) - keys).square().sum(-1)  # near keys fit well: minus the squared distance
    answer, weights = attend(-sharpness * distance, values)
    print(f"sharpness {sharpness:4}: {answer.item():5.2f} degrees, weights", [round(w, 2) for w in weights[0].tolist()])

# %% [markdown]
# Softly, every city has a say. The sharper the comparison, the nearer the answer comes to the one value of the best key. The limit is a plain
# look-up, and it cannot be trained: its answer jumps from one value to another, and its gradient is zero in between. Softness is what
# lets a gradient flow to the keys.
#
# $-\lVert q - k\rVert^2 = 2\, q \cdot k - \lVert q\rVert^2 - \lVert k\rVert^2$, so for keys of one length this *is* the dot product: the term with
# $q$ alone is the same for every key, and softmax ignores what is the same for all.

# %%
line = torch.linspace(-1.5, 1.5, 301).unsqueeze(1)  # queries
places, heights = torch.tensor([[-1.0], [0.0], [1.0]]), torch.tensor([[1.0], [3.0], [2.0]])
fig, ax = plt.subplots(figsize=(5.4, 2.6))
for sharpness, colour in ((1.0, GREEN), (5.0, BLUE), (50.0, ORANGE)):
    mixed, _ = attend(-sharpness * (line - places.T).square(), heights)
    ax.plot(line, mixed, color=colour, label=f"sharpness {sharpness:g}")
hard = look_up(torch.cat((line, torch.ones_like(line)), 1), torch.cat((places, -places.square() / 2), 1), heights)
ax.plot(line, hard, ":", color=GREY, label="hard look-up")
ax.plot(places, heights, "ko", markersize=4)
ax.set_xlabel("query")
ax.set_ylabel("answer")
ax.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# The hard look-up above finds the nearest key with a dot product alone: a key's square is put beside it as a second number
# ($q \cdot k - \lVert k\rVert^2 / 2$).
#
# ## Four scores
#
# | score | formula | parameters | source |
# |---|---|---|---|
# | additive | $v^\top \tanh(W k + U q + b)$ | $W$, $U$, $v$, $b$ | Bahdanau et al. 2014 |
# | dot product | $q \cdot k$ | none | Luong et al. 2015 |
# | scaled dot product | $q \cdot k / \sqrt{d}$ | none | Vaswani et al. 2017 |
# | bilinear ("general") | $k^\top W q$ | $W$ | Luong et al. 2015 |
#
# `additive` is a small network that reads both; queries and keys may differ in size. So may they for `bilinear`, which is a dot product after
# one of the two was turned and stretched. The dot products are one matrix product for all pairs, which is why they have won.

# %%
query, key = torch.randn(3, 5), torch.randn(4, 6)  # 3 queries of size 5, 4 keys of size 6
additive, bilinear = AdditiveScore(5, 6, hidden_size=8), BilinearScore(5, 6)
print("additive", tuple(additive(query, key).shape), "bilinear", tuple(bilinear(query, key).shape))

by_hand = additive.energy.weight[0] @ torch.tanh(additive.key.weight @ key[2] + additive.query(query[1]))
assert torch.isclose(additive(query, key)[1, 2], by_hand, atol=1e-5)
assert torch.isclose(bilinear(query, key)[1, 2], key[2] @ bilinear.weight @ query[1], atol=1e-5)

# %% [markdown]
# ## The memory that each score needs
#
# Additive scores make a vector of $h$ numbers for **every pair**; a dot product makes one number. For 512 words, $h = 64$ and one head, that is
# 64 MB against 1 MB.

# %%
states = torch.randn(512, 64)
layer = AdditiveScore(64, 64, hidden_size=64)


def milliseconds(score, repeats: int = 5) -> float:
    """The fastest of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.no_grad():
            score(states, states)
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


# %% tags=["varies"]
print(f"additive {milliseconds(layer):.1f} ms, dot product {milliseconds(dot_score):.2f} ms for 512 x 512 pairs")

# %% [markdown]
# ## Which score learns best?
#
# A task with one right answer: a row has eight keys, and a query that equals one of them but was turned by an unknown, fixed rotation and
# blurred by noise. The model learns projections of queries and keys, and is to find the key. Vaswani et al. (section 3.2.1) report that
# additive attention and the dot product are alike at small sizes, and that the unscaled dot product falls behind at large ones.


# %%
class Retriever(nn.Module):
    """Project queries and keys, and score each of the eight keys."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        for layer in (self.query, self.key):  # projections that keep the variance of the entries at 1
            nn.init.normal_(layer.weight, std=size**-0.5)
        scores = {
            "additive": lambda: AdditiveScore(size, size, hidden_size=128),
            "additive, b = 0": lambda: AdditiveScore(size, size, hidden_size=128, bias=False),
            "dot product": lambda: dot_score,
            "scaled": lambda: scaled_dot_score,
            "bilinear": lambda: BilinearScore(size, size),
        }
        self.score = scores[kind]()

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return self.score(self.query(query), self.key(key)).squeeze(1)  # (B, 1, 8) -> (B, 8)


def batch(size: int, rotation: torch.Tensor, generator: torch.Generator, rows: int = 64) -> tuple[torch.Tensor, ...]:
    """Queries (B, 1, d), keys (B, 8, d) and the place of the right key (B,)."""
    key = torch.randn(rows, 8, size, generator=generator)
    place = torch.randint(8, (rows,), generator=generator)
    blurred = key[torch.arange(rows), place] + 0.5 * torch.randn(rows, size, generator=generator)
    return (blurred @ rotation).unsqueeze(1), key, place


def train(size: int, kind: str, steps: int = 300) -> tuple[float, list[float]]:
    """The share of right keys on fresh rows after training, and the losses on the way."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator)).Q
    model, losses = Retriever(size, kind), []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        query, key, place = batch(size, rotation, generator)
        loss = nn.functional.cross_entropy(model(query, key), place)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    query, key, place = batch(size, rotation, generator, rows=2000)
    with torch.no_grad():
        return (model(query, key).argmax(-1) == place).float().mean().item(), losses


sizes, kinds = (2, 8, 32, 128), ("additive", "additive, b = 0", "dot product", "scaled", "bilinear")
results = {(kind, size): train(size, kind) for kind in kinds for size in sizes}
table = torch.tensor([[results[kind, size][0] for size in sizes] for kind in kinds])

# %% tags=["varies"]
fig, axes = plt.subplots(1, 2, figsize=(9, 2.9), layout="constrained")
heat_map(axes[0], table, kinds, [f"d = {size}" for size in sizes], "share of right keys after 300 steps (chance: 0.125)")
colours = (BLUE, GREY, ORANGE, GREEN, "#8a4fbf")
for kind, colour in zip(kinds, colours, strict=True):
    smooth = torch.tensor(results[kind, 128][1]).unfold(0, 10, 1).mean(1)  # over ten steps
    axes[1].plot(smooth, color=colour, label=kind)
axes[1].set_yscale("log")
axes[1].set_xlabel("step")
axes[1].set_title("loss at d = 128", fontsize=9, loc="left")
axes[1].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# What these runs say:
#
# - **Small d: the additive score wins.** A dot product prefers long keys to near ones; the little network can learn better.
# - **Large d: the dot products win**, and learn faster. In 128 dimensions random keys are nearly at right angles and of nearly equal length,
#   so the dot product is all one needs, and the additive score must learn it first.
# - **Without scaling the first losses are ten times those of a coin with eight sides** ($\ln 8 = 2.08$): the softmax is saturated on wrong
#   answers. Adam recovers here, in a model of one layer, but single confident mistakes go on costing (the spikes).
# - **Without the bias $b$ the additive score learns nothing at all.** $v^\top \tanh(Wk + Uq)$ is an *odd* function: turn both $q$ and $k$ round
#   and the score changes its sign. But if $k$ fits $q$, then $-k$ fits $-q$. Bahdanau's paper leaves biases out of its formulas "to increase
#   readability", and many a tutorial leaves them out of its code.

# %%
without = AdditiveScore(5, 6, hidden_size=8, bias=False)
assert torch.allclose(without(-query, -key), -without(query, key), atol=1e-6)
assert not torch.allclose(additive(-query, -key), -additive(query, key), atol=1e-3)
print("odd without b:", True)

# %% [markdown]
# ## Exercises
#
# 1. Show that a bilinear score with $W = I / \sqrt{d}$ is the scaled dot product.
# 2. For keys of length 1, a soft look-up by distance and one by dot product give the same weights. Check it.
# 3. How many multiplications do 512 x 512 scores cost at $d = h = 64$, for the dot product and for the additive score (projections left out)?

# %% jupyter={"source_hidden": true} tags=["solution"]
# 1.
query, key = torch.randn(3, 16), torch.randn(4, 16)
bilinear = BilinearScore(16, 16)
bilinear.weight.data = torch.eye(16) / 16**0.5
assert torch.allclose(bilinear(query, key), scaled_dot_score(query, key), atol=1e-6)

# 2. -|q - k|^2 = 2 q . k - |q|^2 - 1: the last two are the same for every key, and softmax ignores them.
key = nn.functional.normalize(key, dim=-1)
by_distance = (-torch.cdist(query, key).square()).softmax(-1)
assert torch.allclose(by_distance, (2 * dot_score(query, key)).softmax(-1), atol=1e-5)

# 3. The same: 512 * 512 * 64 each. But the additive score also takes as many tanh, and its vectors go through memory.
print(512 * 512 * 64)

# %% [markdown]
# ## Where this lives in bertpre
#
# - `bertpre/attention/scores.py`: `AdditiveScore`, `BilinearScore`, `dot_score`, `scaled_dot_score`.
# - `bertpre/model/layers_bertpre.py`: BERT uses the scaled dot product alone; `run_attention` passes `scaling = head_dim ** -0.5` to it.
#
# Next: [4. Many heads](04_many_heads.ipynb).
