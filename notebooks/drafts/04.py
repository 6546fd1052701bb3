# %% [markdown]
# # 4. Many heads
#
# *What you learn: why one head is not enough; wide heads and narrow ones, and what they cost; that our few lines are `torch.nn.MultiheadAttention`;
# a classifier of film reviews made of one attention layer.* Three minutes to run, fifteen to read.
#
# One head makes one mean. In "Mary gave roses to Susan", *gave* should look at Mary as the giver and at Susan as the receiver: two different
# questions to the same sentence, so two heads, each with its own queries, keys and values.

# %%
import re
import time
from collections import Counter

import matplotlib.pyplot as plt
import torch
from pictures import BLUE, GREY, ORANGE, heat_map
from reviews import load_reviews
from torch import nn

from bertpre.attention.dot_product import padding_mask
from bertpre.attention.heads import AttentionHead, MultiHeadAttention, copy_from_torch

torch.manual_seed(0)

# %% [markdown]
# ## Heads, one after the other
#
# Several `AttentionHead`s side by side; their outputs are joined and a matrix $W_o$ mixes them back to the size of the states.

# %%
E, H = 12, 3  # hidden size, heads
heads = nn.ModuleList(AttentionHead(E, key_size=E // H, value_size=E // H) for _ in range(H))
output = nn.Linear(E, E, bias=False)
states = torch.randn(1, 5, E)  # one sentence of five words

parts = [head(states)[0] for head in heads]  # three times (1, 5, 4)
joined = torch.cat(parts, dim=-1)  # (1, 5, 12)
print([tuple(part.shape) for part in parts], "->", tuple(joined.shape))
one_by_one = output(joined)

# %% [markdown]
# ## Heads, all at once
#
# A loop over heads is slow. The three query matrices are stacked into one, one product makes all queries, and a reshape cuts them into heads:
# $(B, S, H \cdot D) \to (B, S, H, D) \to (B, H, S, D)$. The head becomes a batch dimension.

# %%
together = MultiHeadAttention(E, H, bias=False)
with torch.no_grad():
    for name in ("query", "key", "value"):
        getattr(together, name).weight.copy_(torch.cat([getattr(head, name).weight for head in heads]))
    together.output.weight.copy_(output.weight)
at_once, weights = together(states)
print("the same:", torch.allclose(at_once, one_by_one, atol=1e-6), "weights:", tuple(weights.shape))

words = ["Mary", "gave", "roses", "to", "Susan"]
fig, axes = plt.subplots(1, H, figsize=(9, 2.8), layout="constrained")
for number, ax in enumerate(axes):
    heat_map(ax, weights[0, number], words, words if number >= 0 else [], f"head {number + 1} (untrained)")
plt.show()

# %% [markdown]
# The reshape is where most home-made attention goes wrong. `view(B, H, S, D)` has the right shape and the wrong content: it cuts the *sequence*
# into heads. The heads have to be cut from the last dimension first, and then moved.

# %%
query = together.query(states)
right = query.view(1, 5, H, E // H).transpose(1, 2)
wrong = query.view(1, H, 5, E // H)
print("right == split:", torch.equal(right, together.split(query)), "  wrong == right:", torch.equal(wrong, right))

# %% [markdown]
# ## Wide heads and narrow heads
#
# - **Wide**: every head works on the full size $k$; $H$ heads give $H \cdot k$ numbers, which $W_o$ unifies into $k$. Four matrices of $k \times Hk$.
# - **Narrow**: every head works on $k / H$ numbers. Four matrices of $k \times k$, whatever $H$ is. All BERTs do this: 512 = 8 x 64, 768 = 12 x 64.


# %%
def parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


print(f"wide,   8 heads of 128 from 128: {parameters(MultiHeadAttention(128, 8, head_dim=128, bias=False)):,}")
print(f"narrow, 8 heads of  16 from 128: {parameters(MultiHeadAttention(128, 8, bias=False)):,}")
print(f"narrow, 8 heads of  64 from 512: {parameters(MultiHeadAttention(512, 8, bias=False)):,}")
print(f"narrow, 1 head  of 512 from 512: {parameters(MultiHeadAttention(512, 1, bias=False)):,}")

# %% [markdown]
# With $d_k = d_v = 128$ and eight wide heads: $4 \cdot 128 \cdot 8 \cdot 128 = 524{,}288$. Narrow heads cost an eighth of that, and as much as a single head.
# What narrow heads pay is the size of a query and a key: with $D = 64$ a head can compare words in 64 ways and no more.
#
# ## The same as torch's
#
# `torch.nn.MultiheadAttention` stacks queries, keys and values in one matrix. With its weights copied, ours gives its numbers, padding included.

# %%
theirs = nn.MultiheadAttention(512, 8, batch_first=True)
ours = MultiHeadAttention(512, 8)
copy_from_torch(ours, theirs)
states, lengths = torch.randn(4, 10, 512), torch.tensor([10, 7, 3, 1])
mask = padding_mask(lengths, 10)  # (B, 1, T), True: attend
expected, _ = theirs(states, states, states, key_padding_mask=~mask.squeeze(1))  # torch's mask says what to leave out
computed, _ = ours(states, mask.unsqueeze(1))
print("largest difference below 1e-6:", (computed - expected).abs().max().item() < 1e-6)

# %% [markdown]
# ## A classifier of reviews
#
# Word vectors, one layer of attention, the mean over all words, a linear layer: the smallest network with attention that reads a review. A mean
# over positions must leave the padding out, or short reviews drown in zeros.

# %%
TRAIN, TEST, LENGTH, VOCABULARY = 5000, 2000, 128, 12_000
texts, labels, corpus = load_reviews(TRAIN + TEST)


def tokens(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower().replace("<br />", " "))


counts = Counter(word for text in texts[:TRAIN] for word in tokens(text))
index = {word: number for number, (word, _) in enumerate(counts.most_common(VOCABULARY), start=2)}  # 0 padding, 1 unknown


def encode(text: str) -> torch.Tensor:
    return torch.tensor([index.get(word, 1) for word in tokens(text)[:LENGTH]] or [1])


ids = nn.utils.rnn.pad_sequence([encode(text) for text in texts], batch_first=True)  # (N, S)
lengths, targets = (ids > 0).sum(1), torch.tensor(labels)
print(corpus, tuple(ids.shape), f"{(ids[:TRAIN] == 1).sum() / lengths[:TRAIN].sum():.1%} unknown words")


# %%
class Classifier(nn.Module):
    """Mean of word vectors, with residual attention before the mean where `heads` is given."""

    def __init__(self, hidden_size: int, heads: int | None, head_dim: int | None = None) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY + 2, hidden_size, padding_idx=0)
        self.attention = MultiHeadAttention(hidden_size, heads, head_dim) if heads else None
        self.dropout, self.classifier = nn.Dropout(0.3), nn.Linear(hidden_size, 2)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = padding_mask(lengths, ids.shape[1])  # (B, 1, S)
        states = self.dropout(self.embeddings(ids))
        if self.attention is not None:
            mixed, self.weights = self.attention(states, mask.unsqueeze(1))
            states = states + mixed
        mean = (states * mask.mT).sum(1) / lengths.unsqueeze(1)  # of the words, not of the padding
        return self.classifier(mean)


def accuracy(model: Classifier) -> float:
    model.eval()
    with torch.no_grad():
        right = [
            (model(ids[rows], lengths[rows]).argmax(-1) == targets[rows]).sum()
            for rows in torch.arange(TRAIN, TRAIN + TEST).split(500)
        ]
    return (sum(right) / TEST).item()


def train(heads: int | None, head_dim: int | None = None, epochs: int = 3) -> tuple[Classifier, list[float], float]:
    """The trained model, its accuracy on unseen reviews after each epoch, and the seconds."""
    torch.manual_seed(1)
    model, begin, curve = Classifier(64, heads, head_dim), time.perf_counter(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for _ in range(epochs):
        model.train()
        for rows in torch.randperm(TRAIN).split(64):
            longest = int(lengths[rows].max())
            loss = nn.functional.cross_entropy(model(ids[rows, :longest], lengths[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        curve.append(accuracy(model))
    return model, curve, time.perf_counter() - begin


# %% tags=["varies"]
choices = {"mean of vectors alone": (None,), "8 narrow heads of 8": (8,), "4 wide heads of 64": (4, 64)}
trained = {name: train(*choice) for name, choice in choices.items()}
for name, (model, curve, seconds) in trained.items():
    print(f"{name:22} {parameters(model):,} parameters, {seconds:3.0f} s, accuracy", [f"{value:.3f}" for value in curve])

# %% [markdown]
# Chance is 0.5. Compare the rows with care: on 2,000 reviews one standard error is about 0.8 points.
#
# A layer of attention is not a language model. It has no order, no depth, and has seen a few thousand reviews. What it adds over a mean of word vectors
# is little, and that is the point of everything that follows: positions, depth (notebook 6), and above all pretraining on text without
# labels (notebooks 7 and 9). `bertpre run imdb-mini-cpu` trains four such layers on 22 million words first.
#
# What do the heads look at?

# %% tags=["varies"]
model = trained["8 narrow heads of 8"][0].eval()
sentence = "the plot was not good but the acting was truly wonderful"
row = encode(sentence).unsqueeze(0)
with torch.no_grad():
    share = model(row, torch.tensor([row.shape[1]])).softmax(-1)[0, 1]
seen = model.weights[0].mean(1)  # (H, S): how much attention each word gets from all words
fig, ax = plt.subplots(figsize=(7, 3))
heat_map(ax, seen, [f"head {number + 1}" for number in range(8)], sentence.split(), f"attention received; positive: {share:.2f}", digits=None)
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Permute the eight heads of a `MultiHeadAttention` (their rows in query, key and value, their columns in the output). What changes?
# 2. How many parameters has BERT-base's attention in all twelve layers (768, biases included)?
# 3. Forget the padding mask in `MultiHeadAttention` only. Show that the answer for one review then depends on the batch it is in.

# %% jupyter={"source_hidden": true} tags=["solution"]
# 1. Nothing: the sum over heads has no order.
order = torch.tensor([3, 1, 7, 0, 2, 5, 4, 6])
places = (order.unsqueeze(1) * 64 + torch.arange(64)).flatten()
shuffled = MultiHeadAttention(512, 8)
with torch.no_grad():
    for name in ("query", "key", "value"):
        getattr(shuffled, name).weight.copy_(getattr(ours, name).weight[places])
        getattr(shuffled, name).bias.copy_(getattr(ours, name).bias[places])
    shuffled.output.weight.copy_(ours.output.weight[:, places])
    shuffled.output.bias.copy_(ours.output.bias)
assert torch.allclose(shuffled(states)[0], ours(states)[0], atol=1e-5)

# 2. Four matrices and four biases, twelve times.
print(f"{12 * parameters(MultiHeadAttention(768, 12)):,}")
assert 12 * parameters(MultiHeadAttention(768, 12)) == 12 * 4 * (768 * 768 + 768)

# 3. Beside a longer text it is padded, and the padding takes part in its means.
alone, beside = states[1:2, :7], states[1:2]
assert not torch.allclose(ours(alone)[0], ours(beside)[0][:, :7], atol=1e-3)
assert torch.allclose(ours(alone)[0], ours(beside, mask[1:2].unsqueeze(1))[0][:, :7], atol=1e-6)

# %% [markdown]
# ## Where this lives in bertpre
#
# - `bertpre/attention/heads.py`: `AttentionHead`, `MultiHeadAttention`, `copy_from_torch`.
# - `bertpre/model/layers_bertpre.py`: `BertSelfAttention` (narrow heads, three matrices), `ModernAttention` (one matrix `Wqkv` for all three, no
#   biases); `mean_pool` is the mean without padding.
#
# Next: [5. Before transformers](05_seq2seq.ipynb).
