# %% [markdown]
# # 2. Self-attention from a dot product
#
# *What you learn: how a dot product becomes a weight, a row of weights a mean, and the mean a new vector for every word; why queries,
# keys and values are three different things; why the scores are divided by $\sqrt{k}$; what a mask does.*
# Two minutes to run, twenty to read.
#
# Everything in BERT rests on one operation that fits into a line:
#
# $$\mathrm{attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{k}}\right) V$$
#
# This notebook builds it up from `x @ x.T`.

# %%
import matplotlib.pyplot as plt
import torch
from pictures import BLUE, ORANGE, heat_map
from torch import nn

from bertpre.attention.dot_product import attend, causal_mask, scaled_dot_product_attention, simple_self_attention

torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Words as vectors
#
# A sentence of six words. Each word gets a number, its place among the sorted words, and the number selects a row of a table: the word's
# vector. The table is random here. In a trained model it is learned.

# %%
sentence = "Life is short, eat dessert first"
words = sentence.replace(",", "").split()
index = {word: number for number, word in enumerate(sorted(words))}
print(index)

torch.manual_seed(123)
embedding = nn.Embedding(50_000, 3)  # 50,000 words, 3 numbers each
x = embedding(torch.tensor([index[word] for word in words])).detach()
print(x.shape)  # (S, E): 6 words, 3 numbers
print(x)

# %% [markdown]
# ## The dot product says how alike two vectors are
#
# $x_i \cdot x_j$ is large where two vectors point the same way, zero where they are at right angles, negative where they oppose each other.
# All pairs at once are one matrix product: $X X^\top$.

# %%
scores = x @ x.T  # (S, S)
fig, ax = plt.subplots(figsize=(4.2, 3.4))
heat_map(ax, scores, words, words, "dot products of all pairs")
plt.show()

# %% [markdown]
# ## Softmax turns a row of scores into weights
#
# $$w_{ij} = \frac{e^{x_i \cdot x_j}}{\sum_t e^{x_i \cdot x_t}}$$
#
# The softmax is taken over each **row**: word $i$ shares one unit of attention among all words $j$. Every row sums to one; the columns do
# not.

# %%
weights = scores.softmax(dim=-1)
print("sums of the rows:   ", weights.sum(dim=1))
print("sums of the columns:", weights.sum(dim=0))

# %% [markdown]
# ## The output is a weighted mean
#
# $$y_i = \sum_j w_{ij}\, x_j$$
#
# The new vector of a word is a mean of all vectors, its own included, each counted by its weight. As a matrix product: $Y = W X$.

# %%
y = weights @ x
by_hand = sum(weights[1, j] * x[j] for j in range(len(words)))  # the second word, one term at a time
print(y[1], by_hand)
assert torch.allclose(y[1], by_hand)
assert torch.equal(y, simple_self_attention(x)[0])  # bertpre/attention/dot_product.py: the same two lines

fig, axes = plt.subplots(1, 3, figsize=(10, 3.2), width_ratios=(2, 1, 1), layout="constrained")
heat_map(axes[0], weights, words, words, "weights W")
heat_map(axes[1], x, words, ["1", "2", "3"], "vectors X")
heat_map(axes[2], y, words, ["1", "2", "3"], "output Y = W X")
plt.show()

# %% [markdown]
# ## It knows no order
#
# Shuffle the words, and the outputs are shuffled in the same way, and otherwise unchanged: self-attention is *permutation equivariant*.
# "dog bites man" and "man bites dog" are the same set to it. Positions have to be put into the vectors (notebook 6).

# %%
order = torch.tensor([3, 5, 0, 1, 4, 2])
shuffled, _ = simple_self_attention(x[order])
print("the same up to rounding:", torch.allclose(shuffled, y[order], atol=1e-6))

# %% [markdown]
# ## Queries, keys and values
#
# So far a word's vector plays three parts, and nothing is learned. Each part gets a matrix of its own:
#
# - the **query** $q_i = x_i W_q$: what word $i$ looks for,
# - the **key** $k_j = x_j W_k$: what word $j$ can be found by,
# - the **value** $v_j = x_j W_v$: what word $j$ says once it is found.
#
# Queries and keys are compared, so they have the same size $k$ (here 2). Values may have any size (here 4). Scores need no longer be
# symmetric: "is" may look at "short" while "short" looks elsewhere.

# %%
torch.manual_seed(123)
w_query, w_key, w_value = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 4)
query, key, value = x @ w_query, x @ w_key, x @ w_value  # (S, 2), (S, 2), (S, 4)

scores = query @ key.T
print("scores of 'is': ", scores[1])
context, weights = scaled_dot_product_attention(query, key, value)
print("weights of 'is':", weights[1])
print("its new vector: ", context[1])

fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.3), layout="constrained")
heat_map(axes[0], scores, words, words, "scores q . k")
heat_map(axes[1], weights, words, words, "weights softmax(q . k / sqrt(2))")
plt.show()

# %% [markdown]
# ## Why divide by $\sqrt{k}$?
#
# A dot product adds up $k$ products. If the entries of $q$ and $k$ are independent with mean 0 and variance 1, the sum has variance $k$:
# the scores grow like $\sqrt{k}$ (Vaswani et al. 2017, footnote 4). Two scores of 112 and 96 with $k = 64$ show what the softmax makes of that:

# %%
large = torch.tensor([112.0, 96.0])
print("not divided:", large.softmax(0))
print("divided:    ", large / 64**0.5, (large / 64**0.5).softmax(0))

# %% [markdown]
# Undivided, the second word gets a ten-millionth of the attention and no gradient: $\partial w_i / \partial s_j = w_i (\delta_{ij} - w_j)$ is near zero
# as soon as one weight is near one. The softmax is *saturated*. Measured, over ten random scores each:

# %%
generator = torch.Generator().manual_seed(0)
sizes = [2, 8, 32, 128, 512]
rows = []
for size in sizes:
    q, k = torch.randn(2000, 1, size, generator=generator), torch.randn(2000, 10, size, generator=generator)
    row = [(q @ k.mT).var().item()]
    for scale in (1.0, size**-0.5):
        w = (q @ k.mT * scale).softmax(-1)
        row += [w.max(-1).values.mean().item(), (w * (1 - w)).sum(-1).mean().item()]
    rows.append(row)
    print(f"k = {size:3}: variance {row[0]:6.1f}; largest weight {row[1]:.2f}, divided {row[3]:.2f}; "
          f"slope {row[2]:.3f}, divided {row[4]:.3f}")

fig, axes = plt.subplots(1, 2, figsize=(8.4, 2.6), layout="constrained")
for ax, column, title in ((axes[0], 1, "largest of ten weights"), (axes[1], 2, "slope of the softmax (sum of w (1 - w))")):
    ax.plot(sizes, [row[column] for row in rows], "o-", color=ORANGE, label="q . k")
    ax.plot(sizes, [row[column + 2] for row in rows], "o-", color=BLUE, label="q . k / sqrt(k)")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("k, the size of queries and keys")
    ax.set_ylim(0, 1)
    ax.set_title(title, fontsize=9, loc="left")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# **An equal form.** Instead of dividing the scores, divide the queries and the keys by $k^{1/4}$ each: $\frac{q}{k^{1/4}} \cdot \frac{k}{k^{1/4}} = \frac{q \cdot k}{\sqrt{k}}$.
# Some implementations do this, because half-precision numbers overflow less easily when the factors are small before they are multiplied.

# %%
k = query.shape[-1]
same, _ = attend((query / k**0.25) @ (key / k**0.25).T, value)
print(torch.allclose(same, context))

# %% [markdown]
# ## A mask: who may look at whom
#
# A model that predicts the next word must not see it. Scores of forbidden pairs become $-\infty$ **before** the softmax, so their weights are
# exactly zero and the rest still sums to one. Setting weights to zero *after* the softmax would leave rows that sum to less than one.

# %%
causal, causal_weights = scaled_dot_product_attention(query, key, value, causal_mask(len(words)))
fig, ax = plt.subplots(figsize=(4.2, 3.3))
heat_map(ax, causal_weights, words, words, "causal: only the words so far")
plt.show()
print("the first word sees only itself:", torch.equal(causal[0], value[0]))

# %% [markdown]
# BERT has no causal mask: every word sees the whole sentence, and the words to predict are hidden in the input instead (notebook 7).
#
# ## Cross-attention: queries from somewhere else
#
# Nothing says that queries and keys come from the same sentence. A translator's queries come from the translation so far, its keys and
# values from the source: 3 queries, 6 keys, a table of weights with 3 rows.

# %%
torch.manual_seed(5)
german = ["Das", "Leben", "ist"]
others = torch.randn(3, 3)  # three words of another sentence, as vectors of the same size
crossed, cross_weights = scaled_dot_product_attention(others @ w_query, key, value)
print(crossed.shape)
fig, ax = plt.subplots(figsize=(4.2, 2.2))
heat_map(ax, cross_weights, german, words, "cross-attention (untrained)")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Give every word the same key. What are the weights, and what is the output?
# 2. Multiply all queries by 1,000. Which function does attention come close to? (`look_up` in `bertpre/attention/dot_product.py`.)
# 3. Row 3 of a mask is all False. What would softmax give, and what does `attend` do instead? When does this happen in practice?

# %% jupyter={"source_hidden": true} tags=["solution"]
# 1. Equal scores give equal weights, so every output is the plain mean of the values.
flat, flat_weights = scaled_dot_product_attention(query, torch.ones_like(key), value)
assert torch.allclose(flat_weights, torch.full((6, 6), 1 / 6)) and torch.allclose(flat[0], value.mean(0))

# 2. The largest score takes all the weight: attention becomes a look-up of the best key's value.
from bertpre.attention.dot_product import look_up

sharp, _ = scaled_dot_product_attention(query * 1000, key, value)
assert torch.allclose(sharp, look_up(query, key, value), atol=1e-3)

# 3. softmax of a row of -inf is NaN, and one NaN spreads to every weight of the model in one step. `attend` returns zeros.
#    It happens with rows that are padding from end to end.
mask = torch.ones(6, 6, dtype=torch.bool)
mask[2] = False
assert scores.masked_fill(~mask, -torch.inf).softmax(-1)[2].isnan().all()
assert scaled_dot_product_attention(query, key, value, mask)[0][2].eq(0).all()
print("solved")

# %% [markdown]
# ## Where this lives in bertpre
#
# - `bertpre/attention/dot_product.py`: `attend`, `simple_self_attention`, `scaled_dot_product_attention`, `causal_mask`.
# - `bertpre/model/layers_bertpre.py`: `eager_attention` is the same formula with a batch and heads. `BertSelfAttention` has $W_q$, $W_k$ and
#   $W_v$ as `query`, `key` and `value`, with a bias each.
#
# Next: [3. Scores and soft addressing](03_scores.ipynb).
