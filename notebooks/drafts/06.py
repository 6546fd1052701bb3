# %% [markdown]
# # 6. The transformer block
#
# *What you learn: what the parts around attention are for (residuals, norms, the feed-forward network, positions); that our block is torch's; and that BERT, GPT,
# T5 and ViT are the same block with other masks and inputs, each trained for a minute.* Five minutes to run, twenty-five to read.
#
# $$x \leftarrow x + \mathrm{attention}(\mathrm{norm}(x)) \qquad x \leftarrow x + \mathrm{feedforward}(\mathrm{norm}(x))$$
#
# Attention moves information between positions. The feed-forward network works on each position by itself. Everything else is there so that many such layers can be
# trained on top of each other.

# %%
import random
import re
import time
from collections import Counter

import matplotlib.pyplot as plt
import torch
from pictures import BLUE, GREEN, GREY, ORANGE, heat_map
from sklearn.datasets import load_digits
from torch import nn

from bertpre.attention.dot_product import causal_mask, padding_mask
from bertpre.attention.heads import copy_from_torch
from bertpre.attention.transformer import (
    Block,
    LanguageModel,
    Stack,
    Translator,
    VisionTransformer,
    sinusoidal_positions,
)
from bertpre.data.sample import generate

torch.manual_seed(0)

# %% [markdown]
# ## Residuals: why deep stacks train at all
#
# A residual adds a layer's input to its output. The gradient then has a way from the loss to every layer on which nothing multiplies it. Twelve layers, with and without:


# %%
def gradient_norms(is_residual: bool, depth: int = 12) -> list[float]:
    """The size of the gradient that reaches each layer's output, from the last to the first."""
    torch.manual_seed(0)
    stack, states = Stack(64, 4, depth, norm_first=True).layer, torch.randn(8, 16, 64, requires_grad=True)
    kept = [states]
    for layer in stack:
        if is_residual:
            kept.append(layer(kept[-1]))
        else:  # the same parts, without the two sums
            mixed, _ = layer.attention(layer.norms[0](kept[-1]))
            kept.append(layer.feed_forward(layer.norms[1](mixed)))
    for state in kept:
        state.retain_grad()
    (kept[-1] * torch.randn_like(kept[-1])).sum().backward()
    return [(state.grad / kept[-1].grad.norm()).norm().item() for state in kept[1:]]


fig, ax = plt.subplots(figsize=(5, 2.5))
for is_residual, colour, label in ((True, BLUE, "with residuals"), (False, ORANGE, "without")):
    ax.plot(range(1, 13), gradient_norms(is_residual), "o-", color=colour, label=label, markersize=3)
ax.set_yscale("log")
ax.set_xlabel("layer")
ax.set_ylabel("gradient (last layer: 1)")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## LayerNorm, not BatchNorm
#
# A norm brings numbers back to mean 0 and variance 1. **BatchNorm** takes the mean over all rows and positions of a batch, for each feature. **LayerNorm** takes
# it over the features of one position. Texts are padded, and that decides: with BatchNorm the padding takes part in the mean, so a sentence's result depends on how long
# its neighbours are.

# %%
short, filler = torch.randn(1, 4, 8) + 1.0, torch.zeros(1, 12, 8)
batch_norm, layer_norm = nn.BatchNorm1d(8), nn.LayerNorm(8)
padded = torch.cat((short, filler), dim=1)  # the same four words beside a text of sixteen
for name, norm in (("BatchNorm", lambda x: batch_norm(x.mT).mT), ("LayerNorm", layer_norm)):
    change = (norm(padded)[:, :4] - norm(short)).abs().max().item()
    print(f"{name}: padding moves a word's numbers by up to {change:.2f}")

# %% [markdown]
# ## Positions
#
# Attention knows no order (notebook 2), so each position gets a vector that is added to its word's. The original transformer uses sines and cosines of falling frequency:
#
# $$p_{t, 2i} = \sin(t / 10000^{2i/E}) \qquad p_{t, 2i+1} = \cos(t / 10000^{2i/E})$$
#
# Each pair is a clock hand: fast hands tell neighbours apart, slow ones tell far from near. Moving by $k$ positions turns every hand by a fixed angle, wherever one starts,
# so "three words before" is one linear map, and a layer can learn it. BERT learns its position vectors instead; `modern` turns queries and keys
# by these angles (RoPE, `rotate` in `layers_bertpre.py`).

# %%
positions = sinusoidal_positions(64, 32)
fig, axes = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
axes[0].imshow(positions.T, cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
axes[0].set_xlabel("position")
axes[0].set_ylabel("feature")
axes[0].set_title("one column per position", fontsize=9, loc="left")
for place, colour in ((10, BLUE), (30, ORANGE), (50, GREEN)):
    axes[1].plot(positions @ positions[place], color=colour, label=f"position {place}")
axes[1].set_xlabel("position")
axes[1].set_title("dot product with three positions: the same shape", fontsize=9, loc="left")
axes[1].legend(frameon=False)
plt.show()

turn = torch.linalg.lstsq(positions[:40].double(), positions[5:45].double()).solution  # one matrix for "5 further"
print("one map moves every position by 5:", torch.allclose(positions[5:].double(), positions[:-5].double() @ turn, atol=1e-5))

# %% [markdown]
# ## The block is torch's
#
# `Block` is about thirty lines. With copied weights it gives what `torch.nn.TransformerEncoderLayer` gives, with norms before or after.

# %%
theirs = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, activation="gelu", batch_first=True, norm_first=True).eval()
ours = Block(64, 4, norm_first=True)
copy_from_torch(ours.attention, theirs.self_attn)
copies = (theirs.linear1, ours.feed_forward[0]), (theirs.linear2, ours.feed_forward[2]), (theirs.norm1, ours.norms[0])
for source, target in (*copies, (theirs.norm2, ours.norms[1])):
    target.load_state_dict(source.state_dict())
states = torch.randn(2, 7, 64)
print("largest difference below 1e-5:", (ours(states) - theirs(states)).abs().max().item() < 1e-5)

# %% [markdown]
# ## Masks make the models
#
# | model | who may look at whom | learns |
# |---|---|---|
# | encoder (BERT) | every position at all others | words that were masked |
# | decoder (GPT) | every position at itself and those before | the next word |
# | encoder-decoder (T5) | source: all; target: those before, and the whole source | the target's next word |
# | ViT | every patch at all others | a class, from an extra token |

# %%
length = 6
masks = {
    "encoder": torch.ones(length, length), "decoder": causal_mask(length).float(),
    "decoder to source": padding_mask(torch.tensor([4]), length)[0].float().expand(length, -1),
}  # fmt: skip
fig, axes = plt.subplots(1, 3, figsize=(7, 2.3), layout="constrained")
names = [str(number) for number in range(1, length + 1)]
for ax, (name, mask) in zip(axes, masks.items(), strict=True):
    heat_map(ax, mask, names, names, name, digits=None)
plt.show()

# %% [markdown]
# ## 1. Encoder: BERT's way
#
# Words of the articles in bertpre's embedded corpus. 15 % are hidden behind `[MASK]`; the loss counts those alone. The line to beat is what word frequencies give: a
# model that ignores the context cannot fall below the entropy of the words.

# %%
articles = [re.findall(r"\w+|[^\w\s]", document.text.lower()) for document in generate("articles", 700)]
counts = Counter(word for words in articles for word in words)
vocabulary = ["[PAD]", "[MASK]", "[UNK]"] + sorted(word for word, count in counts.items() if count > 2)
index = {word: number for number, word in enumerate(vocabulary)}
MASK, LENGTH = 1, 48
stream = torch.tensor([index.get(word, 2) for words in articles for word in words])
rows = stream[: len(stream) // LENGTH * LENGTH].view(-1, LENGTH)  # (N, 48)
train_rows, test_rows = rows[:-64], rows[-64:]
share = torch.bincount(stream, minlength=len(vocabulary)) / len(stream)
entropy = -(share[share > 0] * share[share > 0].log()).sum().item()
print(f"{len(stream):,} words, {len(vocabulary):,} different ones, entropy {entropy:.2f} nats")


def hide(rows: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs with [MASK] at 15 % of the places, and labels, -100 everywhere else."""
    chosen = torch.rand(rows.shape, generator=generator) < 0.15
    return rows.masked_fill(chosen, MASK), rows.masked_fill(~chosen, -100)


def next_word(rows: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Each position is to predict the word after it."""
    return rows[:, :-1], rows[:, 1:]


def train(model: nn.Module, examples, steps: int, data: torch.Tensor, learning_rate: float = 2e-3) -> list[float]:
    """Losses of `steps` steps on batches of 64 rows."""
    generator, losses = torch.Generator().manual_seed(0), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for _ in range(steps):
        inputs, labels = examples(data[torch.randint(len(data), (64,), generator=generator)], generator)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


# %% tags=["varies"]
STEPS, curves = 450, {}
torch.manual_seed(0)
bert = LanguageModel(len(vocabulary), 96, 4, 2, LENGTH, is_causal=False)
begin = time.perf_counter()
curves["BERT"] = train(bert, hide, STEPS, train_rows)
print(f"{time.perf_counter() - begin:.0f} s, loss {sum(curves['BERT'][-30:]) / 30:.2f}, word frequencies alone {entropy:.2f}")

sentence = "the film was directed by [MASK] and released in [MASK] ."
ids = torch.tensor([[index.get(word, 2) for word in re.findall(r"\[MASK\]|\w+|[^\w\s]", sentence)]])
with torch.no_grad():
    for place in (ids[0] == MASK).nonzero().flatten().tolist():
        best = bert(ids)[0, place].softmax(-1).topk(4)
        print(place, [(vocabulary[number], round(value, 2)) for value, number in zip(*map(torch.Tensor.tolist, best), strict=True)])

# %% [markdown]
# ## 2. Decoder: GPT's way
#
# The same class, the same rows, a causal mask. Every position is a target now, not 15 % of them, so GPT learns more per pass; but each sees only what comes before. And it can write:

# %% tags=["varies"]
torch.manual_seed(0)
gpt = LanguageModel(len(vocabulary), 96, 4, 2, LENGTH, is_causal=True)
begin = time.perf_counter()
curves["GPT"] = train(gpt, next_word, STEPS, train_rows)
print(f"{time.perf_counter() - begin:.0f} s, loss {sum(curves['GPT'][-30:]) / 30:.2f}")
words, generator = ["the", "film"], torch.Generator().manual_seed(4)
with torch.no_grad():
    while len(words) < 40:
        ids = torch.tensor([[index[word] for word in words[-LENGTH + 1 :]]])
        probabilities = (gpt(ids)[0, -1] / 0.7).softmax(-1)  # temperature 0.7
        words.append(vocabulary[torch.multinomial(probabilities, 1, generator=generator).item()])
print(" ".join(words))

fig, ax = plt.subplots(figsize=(5.2, 2.5))
for (name, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=True):
    ax.plot(torch.tensor(curve).unfold(0, 15, 5).mean(1), color=colour, label=name)
ax.axhline(entropy, color=GREY, linestyle=":", label="word frequencies")
ax.set_xlabel("step / 5")
ax.set_ylabel("loss, nats per predicted word")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 3. Encoder and decoder: T5's way
#
# Text in, text out: dates as people write them become ISO dates, character by character. The decoder's second attention looks at the source.

# %%
MONTHS = "January February March April May June July August September October November December".split()


def date_pair(rng: random.Random) -> tuple[str, str]:
    year, month, day = rng.randint(1900, 2030), rng.randint(1, 12), rng.randint(1, 28)
    name = MONTHS[month - 1]
    written = rng.choice([f"{day} {name} {year}", f"{name} {day}, {year}", f"{day} {name[:3]} {year}", f"{day}.{month}.{year}"])
    return written, f"{year}-{month:02}-{day:02}"


letters = ["<pad>", "<s>"] + sorted({letter for _ in range(3000) for text in date_pair(random.Random(_)) for letter in text})
number_of = {letter: number for number, letter in enumerate(letters)}


def date_batch(pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = [torch.tensor([number_of[letter] for letter in text]) for text, _ in pairs]
    target = torch.tensor([[1] + [number_of[letter] for letter in text] for _, text in pairs])
    padded = nn.utils.rnn.pad_sequence(source, batch_first=True)
    return padded, padding_mask(torch.tensor([len(row) for row in source]), padded.shape[1]), target


# %% tags=["varies"]
torch.manual_seed(0)
t5, rng, begin = Translator(len(letters), len(letters), 64, 4, 2, longest=24), random.Random(0), time.perf_counter()
optimizer = torch.optim.AdamW(t5.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=500)
for step in range(500):
    source, mask, target = date_batch([date_pair(rng) for _ in range(64)])
    loss = nn.functional.cross_entropy(t5(source, mask, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
source, mask, target = date_batch([date_pair(random.Random(10_000 + number)) for number in range(200)])
written = torch.ones(200, 1, dtype=torch.long)
with torch.no_grad():
    while written.shape[1] < target.shape[1]:
        written = torch.cat((written, t5(source, mask, written)[:, -1:].argmax(-1)), dim=1)
right = (written == target).all(1).float().mean().item()
print(f"{time.perf_counter() - begin:.0f} s, loss {loss.item():.3f}, right dates: {right:.0%} of 200")
for row in range(3):
    print("".join(letters[number] for number in source[row] if number), "->", "".join(letters[number] for number in written[row, 1:]))

# %% [markdown]
# ## 4. Patches: ViT's way
#
# An image of 8 x 8 pixels is cut into sixteen patches of 2 x 2. Each patch is four numbers; a matrix makes a vector of them, and from there on they are words. A class token is put
# first, as BERT's `[CLS]`, and its last state is classified.

# %%
digits = load_digits()
images, classes = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train_part, test_part = order[:1400], order[1400:]
print(tuple(images.shape), "->", tuple(VisionTransformer(8, 2, 10, 64, 4, 2).patches(images).shape))

# %% tags=["varies"]
torch.manual_seed(0)
vit, begin = VisionTransformer(side=8, patch=2, num_classes=10, hidden_size=64, num_heads=4, num_layers=2), time.perf_counter()
optimizer = torch.optim.AdamW(vit.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=25 * 22)
for epoch in range(25):
    for part in train_part[torch.randperm(len(train_part))].split(64):
        loss = nn.functional.cross_entropy(vit(images[part]), classes[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
with torch.no_grad():
    accuracy = (vit(images[test_part]).argmax(-1) == classes[test_part]).float().mean().item()
print(f"{time.perf_counter() - begin:.0f} s, accuracy {accuracy:.3f} on {len(test_part)} unseen digits")

fig, axes = plt.subplots(2, 6, figsize=(8, 2.9), layout="constrained")
with torch.no_grad():
    vit(images[test_part[:6]])
for column in range(6):
    seen = vit.stack.layer[-1].weights[column, :, 0, 1:].mean(0).view(4, 4)  # the class token's attention, mean of the heads
    axes[0, column].imshow(images[test_part[column]], cmap="Greys")
    axes[1, column].imshow(seen, cmap="Blues", vmin=0)
    for row in range(2):
        axes[row, column].set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("image")
axes[1, 0].set_ylabel("[CLS] looks at")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Take the position vectors away from `bert` above. Which task suffers more, filling masks or writing on?
# 2. How many parameters has one block of size 768? How many of them are in the feed-forward network?
# 3. Why must the decoder's mask be causal in *training*? Train `gpt` for 50 steps without it and look at the loss.

# %% jupyter={"source_hidden": true} tags=["solution", "varies"]
# 1. Shuffled words in one order or another look the same to an encoder without positions.
blind = LanguageModel(len(vocabulary), 96, 4, 2, LENGTH, is_causal=False)
blind.positions.zero_()
shuffled = torch.randperm(LENGTH)
with torch.no_grad():
    print("order is lost:", torch.allclose(blind(rows[:1])[:, shuffled], blind(rows[:1, shuffled]), atol=1e-4))
# A causal model without positions still knows how many words came before (its softmax has that many terms), so GPT suffers less.

# 2. Two thirds of a block are in the feed-forward network.
block = Block(768, 12)
total = sum(weight.numel() for weight in block.parameters())
inner = sum(weight.numel() for weight in block.feed_forward.parameters())
print(f"{total:,} parameters, {inner / total:.0%} in the feed-forward network")

# 3. It copies the answer from the next position, and can write nothing afterwards.
cheat = LanguageModel(len(vocabulary), 96, 4, 2, LENGTH, is_causal=False)
print(f"loss after 150 steps without the mask: {train(cheat, next_word, 150, train_rows)[-1]:.2f}; with it: {curves['GPT'][149]:.2f}")

# %% [markdown]
# ## Where this lives in bertpre
#
# - `bertpre/attention/transformer.py`: `Block`, `Stack`, `LanguageModel`, `Translator`, `VisionTransformer`, `sinusoidal_positions`.
# - `bertpre/model/layers_bertpre.py`: `BertLayer` has the norms after (`BertResidual`), `ModernLayer` before; `BertEncoder` and `ModernEncoder` are the stacks;
#   `ModernMLP` is a feed-forward network with a gate; `rotary_rotation` and `rotate` are the clock hands inside attention.
#
# Next: [7. From word vectors to BERT](07_to_bert.ipynb).
