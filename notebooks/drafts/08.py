# %% [markdown]
# # 8. Eleven mistakes of from-scratch BERTs
#
# *What you learn: mistakes that stand in public tutorials and repositories, how each one looks in a loss curve, and a check that finds it in a second.*
# Four minutes to run, twenty to read.
#
# None of these mistakes crashes. The loss falls in all but two of them. That is what makes them expensive: the curve has to be read by someone who knows what it should look like. For each
# mistake there is a **check** that fails on the wrong code and passes on the right one.

# %%
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import torch
from pictures import BLUE, GREY, ORANGE
from torch import Tensor, nn

from bertpre.attention.dot_product import attend
from bertpre.attention.heads import MultiHeadAttention
from bertpre.attention.transformer import Block, sinusoidal_positions
from bertpre.data.sample import generate

MISTAKES = [
    "no residuals", "scores / sqrt(length)", "segment table of vocabulary size", "segment border at half", "masks shifted by one",
    "positions with replacement", "nothing kept", "class 0 ignored", "accuracy over all tokens", "static masks", "negatives from the same document",
]  # fmt: skip


def check(name: str, test: Callable[[bool], bool]) -> None:
    """Show that a check passes on the right code and fails on the wrong one; `test` takes whether to make the mistake."""
    right, wrong = test(False), test(True)
    print(f"{name:34} right code: {'passes' if right else 'FAILS'}   wrong code: {'passes' if wrong else 'fails'}")
    assert right and not wrong


# %% [markdown]
# ## A small BERT, and a switch for each mistake
#
# Articles from bertpre's embedded corpus, words as tokens, rows of two segments. Everything fits into three cells: the data, the model, the loop.

# %%
PAD, CLS, SEP, MASK, UNKNOWN = range(5)
LENGTH, SEGMENT = 45, 21  # of a row; the longest segment: [CLS] A [SEP] B [SEP] fit

documents = []
for document in generate("articles", 1200):
    sentences = [re.findall(r"\w+|[^\w\s]", part.lower()) for part in re.split(r"(?<=[.!?])\s+", document.text)]
    documents.append([words for words in sentences if len(words) > 3])
documents = [sentences for sentences in documents if len(sentences) > 3]
counts = Counter(word for sentences in documents for words in sentences for word in words)
vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"] + sorted(word for word, count in counts.items() if count > 3)
index = {word: number for number, word in enumerate(vocabulary)}
documents = [[[index.get(word, UNKNOWN) for word in words] for words in sentences] for sentences in documents]
share = torch.bincount(torch.tensor([word for text in documents for words in text for word in words])).float()
share /= share.sum()
ENTROPY = -(share[share > 0] * share[share > 0].log()).sum().item()  # nats: what a model without context can reach
print(f"{len(documents)} documents, {len(vocabulary):,} words, entropy {ENTROPY:.2f} nats")


@dataclass
class Row:
    """One example: its tokens with [CLS] and [SEP], the length of segment A with both, the label, and its documents."""

    ids: list[int]
    border: int
    is_random: int
    sources: tuple[int, int]


def make_row(rng: random.Random, texts: list[int], mistake: str = "") -> Row:
    """A sentence, and the next one or a random one (Devlin et al. 2018, section 3.1, task 2)."""
    one = rng.choice(texts)
    place, is_random = rng.randrange(len(documents[one]) - 1), int(rng.random() < 0.5)
    other, second = one, place + 1
    if is_random:
        other = one if mistake == "negatives from the same document" else rng.choice([text for text in rng.sample(texts, 2) if text != one])
        second = rng.choice([number for number in range(len(documents[other])) if other != one or number not in (place, place + 1)])
    a, b = documents[one][place][:SEGMENT], documents[other][second][:SEGMENT]
    return Row([CLS, *a, SEP, *b, SEP], len(a) + 2, is_random, (one, other))


def token_types(row: Row, mistake: str = "") -> list[int]:
    """0 for [CLS] A [SEP], 1 for B [SEP], 0 for the padding."""
    border = LENGTH // 2 if mistake == "segment border at half" else row.border
    return [int(border <= place < len(row.ids)) for place in range(LENGTH)]


def mask_row(row: Row, rng: random.Random, mistake: str = "") -> tuple[list[int], list[int]]:
    """Inputs and labels (-100: no target): 15 % of the words, 80/10/10 (Devlin et al. 2018, section 3.1, task 1)."""
    ids, labels = list(row.ids), [-100] * len(row.ids)
    words = [place for place, token in enumerate(row.ids) if token not in (CLS, SEP)]
    wanted = max(1, round(0.15 * len(words)))
    chosen = rng.choices(words, k=wanted) if mistake == "positions with replacement" else rng.sample(words, wanted)
    for place in chosen:
        point = rng.random()
        labels[place] = row.ids[place]
        if mistake == "nothing kept" or point < 0.8:
            ids[place] = MASK
        elif point < 0.9:
            ids[place] = rng.randrange(5, len(vocabulary))
    if mistake == "masks shifted by one":  # made before [CLS] was put in front
        labels = [*labels[1:], -100]
    return ids, labels


# %%
class LengthScaledAttention(MultiHeadAttention):
    """The mistake: scores divided by the square root of the sequence length."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        query, key, value = (self.split(project(hidden_states)) for project in (self.query, self.key, self.value))
        mixed, weights = attend(query @ key.mT / hidden_states.shape[1] ** 0.5, value, mask)
        return self.output(mixed.transpose(1, 2).flatten(2)), weights


class NoResidualBlock(Block):
    """The mistake: the block's parts without the sums."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None, memory: Tensor | None = None, memory_mask: Tensor | None = None) -> Tensor:
        mixed, _ = self.attention(self.norms[0](hidden_states), mask)
        return self.feed_forward(self.norms[1](mixed))


class SmallBert(nn.Module):
    """Embeddings, three pre-LN blocks, a head for masked words and one for the next sentence."""

    def __init__(self, mistake: str = "", hidden_size: int = 64) -> None:
        super().__init__()
        self.mistake = mistake
        self.embeddings = nn.Embedding(len(vocabulary), hidden_size)
        self.register_buffer("positions", sinusoidal_positions(LENGTH, hidden_size))
        types = len(vocabulary) if mistake == "segment table of vocabulary size" else 2
        self.token_types = nn.Embedding(types, hidden_size)
        block = NoResidualBlock if mistake == "no residuals" else Block
        self.layer = nn.ModuleList(block(hidden_size, 4, norm_first=True) for _ in range(3))
        if mistake == "scores / sqrt(length)":
            for layer in self.layer:
                layer.attention = LengthScaledAttention(hidden_size, 4)
        self.norm = nn.LayerNorm(hidden_size)
        self.bias = nn.Parameter(torch.zeros(len(vocabulary)))
        self.pairs = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, 2))
        nn.init.normal_(self.embeddings.weight, std=hidden_size**-0.5)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Word scores (B, S, V) and pair scores (B, 2)."""
        mask = (input_ids != PAD)[:, None, None]  # (B, 1, 1, S)
        states = self.embeddings(input_ids) * 8 + self.positions + self.token_types(token_type_ids)
        for layer in self.layer:
            states = layer(states, mask)
        states = self.norm(states)
        mean = (states * mask[:, 0, 0, :, None]).sum(1) / mask.sum((1, 2, 3))[:, None]
        return states @ self.embeddings.weight.T + self.bias, self.pairs(mean)


# %%
TEXTS = list(range(len(documents)))
TRAIN, HELD_OUT = TEXTS[:-150], TEXTS[-150:]


def collate(rows: list[Row], rng: random.Random, mistake: str = "", masks: dict[int, tuple] | None = None) -> tuple[Tensor, ...]:
    """Inputs, token types, labels (B, S) and pair labels (B,); `masks` keeps each row's first masking."""
    inputs, labels = [], []
    for row in rows:
        made = masks.get(id(row)) if masks is not None else None
        made = made or mask_row(row, rng, mistake)
        if masks is not None:
            masks[id(row)] = made
        padding = LENGTH - len(row.ids)
        inputs.append(made[0] + [PAD] * padding)
        labels.append(made[1] + [-100] * padding)
    types = [token_types(row, mistake) for row in rows]
    return (*map(torch.tensor, (inputs, types, labels)), torch.tensor([row.is_random for row in rows]))


def pair_loss(scores: Tensor, labels: Tensor, mistake: str = "") -> Tensor:
    """Cross entropy of the pair's label."""
    return nn.functional.cross_entropy(scores, labels, ignore_index=0 if mistake == "class 0 ignored" else -100)


def accuracy(scores: Tensor, labels: Tensor, mistake: str = "") -> float:
    """The share of masked words that are guessed."""
    right = (scores.argmax(-1) == labels).sum().item()
    return right / (labels.numel() if mistake == "accuracy over all tokens" else (labels != -100).sum().item())


@dataclass
class Curves:
    """What a training logs: every step in training, now and then on held-out rows."""

    mlm: list[float] = field(default_factory=list)
    nsp: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    held_out_mlm: list[float] = field(default_factory=list)
    held_out_nsp: list[float] = field(default_factory=list)  # accuracy


def train(mistake: str = "", steps: int = 400, num_rows: int = 3000) -> tuple[SmallBert, Curves]:
    """Train for `steps` batches of 32 rows, drawn from `num_rows`."""
    rng, curves = random.Random(0), Curves()
    torch.manual_seed(0)
    model = SmallBert(mistake)
    rows = [make_row(rng, TRAIN, mistake) for _ in range(num_rows)]
    held_out = collate([make_row(rng, HELD_OUT, mistake) for _ in range(200)], random.Random(1), mistake)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    masks = {} if mistake == "static masks" else None
    for step in range(steps):
        inputs, types, labels, is_random = collate(rng.sample(rows, 32), rng, mistake, masks)
        words, pairs = model(inputs, types)
        mlm = nn.functional.cross_entropy(words.flatten(0, 1), labels.flatten())
        nsp = pair_loss(pairs, is_random, mistake)
        (mlm + nsp).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        curves.mlm.append(mlm.item())
        curves.nsp.append(nsp.item())
        curves.accuracy.append(accuracy(words, labels, mistake))
        if step % 25 == 24:
            with torch.no_grad():
                words, pairs = model(*held_out[:2])
            curves.held_out_mlm.append(nn.functional.cross_entropy(words.flatten(0, 1), held_out[2].flatten()).item())
            curves.held_out_nsp.append((pairs.argmax(-1) == held_out[3]).float().mean().item())
    return model, curves


# %% tags=["varies"]
begin = time.perf_counter()
trained = {"": train()}
print(f"the right one: {time.perf_counter() - begin:.0f} s, masked words {trained[''][1].held_out_mlm[-1]:.2f} nats, "
      f"pairs {trained[''][1].held_out_nsp[-1]:.2f} right")
for mistake in MISTAKES:
    if mistake != "accuracy over all tokens":  # it changes what is printed and nothing else
        trained[mistake] = train(mistake)
print(f"all: {time.perf_counter() - begin:.0f} s")


# %%
def show(mistake: str, *names: str) -> None:
    """The mistake's curves beside the right ones."""
    titles = {"mlm": "masked words, training", "held_out_mlm": "masked words, held out", "nsp": "pairs, training",
              "held_out_nsp": "pairs, held-out accuracy", "accuracy": "accuracy of masked words"}  # fmt: skip
    fig, axes = plt.subplots(1, len(names), figsize=(3.6 * len(names), 2.3), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        for key, colour, label in (("", BLUE, "right"), (mistake, ORANGE, mistake)):
            values = torch.tensor(getattr(trained[key][1], name))
            if len(values) > 100:
                ax.plot(torch.arange(10, len(values) - 9), values.unfold(0, 20, 1).mean(1), color=colour, label=label)
            else:
                ax.plot(torch.arange(1, len(values) + 1) * 25, values, color=colour, label=label)
        if name.endswith("mlm"):
            ax.axhline(ENTROPY, color=GREY, linestyle=":", label="word frequencies")
        ax.set_title(titles[name], fontsize=9, loc="left")
        ax.set_xlabel("step")
    axes[0, 0].legend(frameon=False, fontsize=7)
    plt.show()


# %% [markdown]
# ## 1. No residual connections
#
# `x = attention(norm(x)); x = feed_forward(norm(x))`. The curve stops at the entropy of the words: the model has learned how frequent words are and nothing else, because
# positions and words do not get through. With twelve layers not even that is reached soon.
#
# *Check:* a block whose last matrices are zero must return its input.

# %%
def returns_its_input(mistake: bool) -> bool:
    block = (NoResidualBlock if mistake else Block)(64, 4, norm_first=True)
    for layer in (block.attention.output, block.feed_forward[2]):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    states = torch.randn(2, 5, 64)
    return torch.equal(block(states), states)


check(MISTAKES[0], returns_its_input)
show(MISTAKES[0], "mlm", "held_out_nsp")

# %% [markdown]
# ## 2. Scores divided by the square root of the sequence length
#
# `scores / math.sqrt(x.size(1))`: the wrong dimension of the tensor. Rows of one length train nearly as well, because the projections grow to make up for it. Rows of another
# length then get other attention: the model breaks when it is used.
#
# *Check:* padding that is masked must not change a word's result.

# %%
def padding_changes_nothing(mistake: bool) -> bool:
    torch.manual_seed(0)
    attention = (LengthScaledAttention if mistake else MultiHeadAttention)(64, 4)
    states, mask = torch.randn(1, 9, 64), torch.arange(9) < 5
    return torch.allclose(attention(states, mask)[0][:, :5], attention(states[:, :5])[0], atol=1e-5)


check(MISTAKES[1], padding_changes_nothing)
show(MISTAKES[1], "mlm", "held_out_mlm")

# %% [markdown]
# ## 3. A segment table as large as the vocabulary
#
# `nn.Embedding(vocab_size, hidden_size)` copied from the line above. The curve shows nothing. The file does: for BERT-base 23 million parameters that no token ever reads, and a
# checkpoint that other libraries refuse.
#
# *Check:* the table has two rows.

# %%
check(MISTAKES[2], lambda mistake: SmallBert(MISTAKES[2] if mistake else "").token_types.num_embeddings == 2)
show(MISTAKES[2], "mlm", "held_out_nsp")

# %% [markdown]
# ## 4. The segment border at half the padded length
#
# `[0] * (length // 2) + [1] * (length // 2)`: the first segment ends where the tensor's middle is. The pair task has to find the border from `[SEP]`, and padding is called segment B.
# In this small model the curve hardly moves. What is lost is the meaning of a segment: fine-tuning passes true token types, which the model has never seen.
#
# *Check:* token types change right after the first `[SEP]`, for rows of any shape.

# %%
def border_is_at_the_separator(mistake: bool) -> bool:
    rng = random.Random(0)
    rows = [make_row(rng, TRAIN) for _ in range(50)]
    types = [token_types(row, MISTAKES[3] if mistake else "") for row in rows]
    return all(kind.index(1) == row.ids.index(SEP) + 1 for kind, row in zip(types, rows, strict=True))


check(MISTAKES[3], border_is_at_the_separator)
show(MISTAKES[3], "mlm", "held_out_nsp")

# %% [markdown]
# ## 5. Masks shifted by one against `[CLS]`
#
# Labels are made from the words, then `[CLS]` is put in front of the inputs alone. Each target now stands one place beside its mask. The curve: a plateau at the entropy of the
# words, or a little below, since the neighbour's word can be guessed a bit from the context.
#
# *Check:* wherever the input was not changed, label and input agree.

# %%
def labels_fit_their_places(mistake: bool) -> bool:
    rng = random.Random(0)
    for _ in range(50):
        row = make_row(rng, TRAIN)
        ids, labels = mask_row(row, rng, MISTAKES[4] if mistake else "")
        if any(label not in (-100, original) for label, original in zip(labels, row.ids, strict=True)):
            return False
    return True


check(MISTAKES[4], labels_fit_their_places)
show(MISTAKES[4], "mlm", "accuracy")

# %% [markdown]
# ## 6. Positions drawn with replacement
#
# `random.choices` instead of `random.sample`: some places are drawn twice. Fewer words are masked than the recipe says (of six draws from forty words, one in nine rows... count it below), and
# the loss is none the worse: easier rows. It shows only beside somebody else's numbers.
#
# *Check:* the number of targets is the number wanted.

# %%
def masks_as_many_as_wanted(mistake: bool) -> bool:
    rng = random.Random(0)
    rows = [make_row(rng, TRAIN) for _ in range(200)]
    for row in rows:
        _, labels = mask_row(row, rng, MISTAKES[5] if mistake else "")
        if sum(label != -100 for label in labels) != max(1, round(0.15 * (len(row.ids) - 3))):
            return False
    return True


check(MISTAKES[5], masks_as_many_as_wanted)
show(MISTAKES[5], "mlm", "held_out_mlm")

# %% [markdown]
# ## 7. No "keep" share
#
# Every chosen word becomes `[MASK]`. The loss is *lower*: a mask says where to guess. But the model learns that a word that stands there needs no attention: at unmasked places it need not know the word, and
# fine-tuning has no masks at all. Seen here: how often the model returns a word that it can read.
#
# *Check:* about a tenth of the targets are unchanged.

# %%
def a_tenth_is_kept(mistake: bool) -> bool:
    rng, kept, total = random.Random(0), 0, 0
    for _ in range(500):
        row = make_row(rng, TRAIN)
        ids, labels = mask_row(row, rng, MISTAKES[6] if mistake else "")
        targets = [place for place, label in enumerate(labels) if label != -100]
        kept += sum(ids[place] == row.ids[place] for place in targets)
        total += len(targets)
    return 0.07 < kept / total < 0.13


check(MISTAKES[6], a_tenth_is_kept)
show(MISTAKES[6], "mlm")

# %% tags=["varies"]
rng = random.Random(2)
rows = [make_row(rng, HELD_OUT) for _ in range(200)]
inputs, types = (torch.tensor([part + [PAD] * (LENGTH - len(part)) for part in parts]) for parts in
                 ([row.ids for row in rows], [token_types(row)[: len(row.ids)] for row in rows]))  # fmt: skip
is_word = inputs > UNKNOWN
for name in ("", MISTAKES[6]):
    with torch.no_grad():
        words, _ = trained[name][0](inputs, types)
    print(f"{name or 'right':14} returns {(words.argmax(-1) == inputs)[is_word].float().mean():.2f} of the words that it can read")

# %% [markdown]
# ## 8. A loss that ignores class 0 of NSP
#
# `CrossEntropyLoss(ignore_index=0)`: the padding id of the words, used for the pairs too, where 0 means "is the next sentence". Only random pairs count, so "always random" is a perfect answer: the pair loss falls to zero in a
# few steps, and the held-out accuracy stays at one half.
#
# *Check:* a batch of true pairs gives a gradient.

# %%
def true_pairs_give_a_gradient(mistake: bool) -> bool:
    scores = torch.zeros(4, 2, requires_grad=True)
    loss = pair_loss(scores, torch.tensor([0, 0, 0, 1]), MISTAKES[7] if mistake else "")
    loss.backward()
    return bool(scores.grad[0].abs().sum() > 0)


check(MISTAKES[7], true_pairs_give_a_gradient)
show(MISTAKES[7], "nsp", "held_out_nsp")

# %% [markdown]
# ## 9. Accuracy divided by all tokens
#
# `correct / labels.numel()`: the 85 % that are no targets are counted as wrong. The best model there is would show 0.15. (Its brother: counting them as right, which starts at 0.85.)
#
# *Check:* perfect predictions have an accuracy of one.

# %%
def perfect_is_one(mistake: bool) -> bool:
    labels = torch.full((2, 20), -100)
    labels[:, :3] = torch.tensor([7, 8, 9])
    scores = nn.functional.one_hot(labels.clamp(min=0), 12).float()
    return accuracy(scores, labels, MISTAKES[8] if mistake else "") == 1.0


check(MISTAKES[8], perfect_is_one)
right = torch.tensor(trained[""][1].accuracy).unfold(0, 20, 1).mean(1)
fig, ax = plt.subplots(figsize=(3.6, 2.3))
ax.plot(right, color=BLUE, label="right")
ax.plot(right * 0.13, color=ORANGE, label="the same training, divided by all tokens")
ax.set_ylim(0, 1)
ax.set_xlabel("step")
ax.set_title("accuracy of masked words", fontsize=9, loc="left")
ax.legend(frameon=False, fontsize=7)
plt.show()

# %% [markdown]
# ## 10. Static masks
#
# The corpus is masked once, in preprocessing, and every epoch sees the same masks. The training loss looks better and better, the held-out loss turns: the model learns the answers by heart. google's own files hold ten
# masked copies for that reason; RoBERTa (Liu et al. 2019, section 4.1) masks anew each time, and so does bertpre.
#
# *Check:* two epochs mask a row differently.

# %%
def epochs_differ(mistake: bool) -> bool:
    rng = random.Random(0)
    rows, masks = [make_row(rng, TRAIN) for _ in range(8)], {} if mistake else None
    first, second = (collate(rows, rng, masks=masks)[2] for _ in range(2))
    return not torch.equal(first, second)


check(MISTAKES[9], epochs_differ)
show(MISTAKES[9], "mlm", "held_out_mlm")

# %% [markdown]
# ## 11. Negatives from the same document
#
# A random sentence is drawn from the *same* article. Subject and names are then the same in true and random pairs, and a task that was "do these belong together" becomes "which order", which is much harder: the pair loss
# stays near $\ln 2 = 0.69$ and people add layers. (If order is what you want, swap the segments: ALBERT's `pairs.kind=sop`.)
#
# *Check:* the two halves of a negative pair come from two documents.

# %%
def negatives_are_foreign(mistake: bool) -> bool:
    rng = random.Random(0)
    rows = [make_row(rng, TRAIN, MISTAKES[10] if mistake else "") for _ in range(100)]
    return all((row.sources[0] != row.sources[1]) == bool(row.is_random) for row in rows)


check(MISTAKES[10], negatives_are_foreign)
show(MISTAKES[10], "nsp", "held_out_nsp")

# %% [markdown]
# ## Reading a curve
#
# | the curve | look for |
# |---|---|
# | stops at the entropy of the words | residuals (1), shifted labels (5), a learning rate that is too low or too high |
# | pair loss near 0 within steps, accuracy one half | a class without loss (8) |
# | pair loss stays at 0.69 | negatives (11), or too few steps: NSP starts to fall late |
# | accuracy never above 0.15 | the denominator (9) |
# | training falls, held-out turns | static masks (10), or too many epochs |
# | nothing to see | checks 2, 3, 4, 6 and 7: only tests find them |
#
# ## Exercises
#
# 1. Two mistakes at once may hide each other. Predict the curve of 5 with 10, then train it.
# 2. Write a check for "the special tokens are masked too".
# 3. bertpre logs the context-free loss beside every MLM loss. Why is it below the entropy of the words?

# %% jupyter={"source_hidden": true} tags=["solution"]
# 1. Shifted labels cannot be inferred from the context, but static ones can be learned by heart: the training loss falls below the entropy, and
#    the held-out loss rises. (Train it by combining both switches in `mask_row` and `train`.)


# 2.
def no_special_token_is_a_target() -> bool:
    rng = random.Random(0)
    rows = [make_row(rng, TRAIN) for _ in range(100)]
    return not any({CLS, SEP, PAD} & set(mask_row(row, rng)[1]) for row in rows)


assert no_special_token_is_a_target()

# 3. One target in ten keeps its word and one in ten shows another: the input at a place says something about its label, even without any context.
#    `bertpre/data/frequencies.py` computes it from the counts and the masking.
print("solved")

# %% [markdown]
# ## Where this lives in bertpre
#
# - Masks: `bertpre/data/masking.py`. Pairs, borders and negatives: `bertpre/data/pairs.py`. Losses: `bertpre/model/modeling_bertpre.py`. Accuracy: `bertpre/training/metrics.py`.
# - The checks, for the package itself: `tests/property/test_masking.py`, `tests/property/test_pairs.py`, `tests/parity/`; `tests/mutants/` plants mistakes of this kind and sees that a test fails.
#
# Next: [9. Pretrain on IMDB](09_imdb.ipynb).
