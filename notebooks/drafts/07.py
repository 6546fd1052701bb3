# %% [markdown]
# # 7. From word vectors to BERT
#
# *What you learn: one vector a word (skip-gram), a two-way recurrent model (ELMo's idea), a causal transformer (GPT's) and BERT, on the same text and the same ambiguous words; which words each may look at;
# then what BERT reads: token, segment and position, `[CLS]`, `[SEP]`, WordPiece, masks and pairs.* Four minutes to run, twenty-five to read.
#
# A *bank* lends money and lies by a river. One vector for both is a compromise. This notebook follows the way out of it.

# %%
import random
import re
import time
from collections import Counter

import matplotlib.pyplot as plt
import torch
from pictures import BLUE, GREY, ORANGE, heat_map
from torch import Tensor, nn

from bertpre.attention.dot_product import causal_mask
from bertpre.attention.transformer import LanguageModel

# %% [markdown]
# ## A text with ambiguous words
#
# Five words with two meanings each, in sentences from a small grammar: `[a|b]` is a choice. Some sentences give the clue before the word, some only after it.

# %%
GRAMMAR = {
    "bank": {
        "river": ["[we|they|the children] [sat|stood|slept] on the bank of the [river|stream|canal]", "the bank was [steep|muddy|green] after the [flood|rain]",
                  "[fish|ducks|reeds] [swim|live] near the bank of the [river|stream]", "the [boat|swimmer] reached the bank [before|after] the [storm|rain]",
                  "the bank of the [river|canal] was covered with [grass|reeds|mud]"],
        "money": ["[she|he|my uncle] [opened|closed] an account at the bank", "the bank [lent|paid] [her|him|them] money for the [house|car|shop]",
                  "[he|she] took [money|cash|coins] from the bank", "the bank raised the [interest|price] of the [loan|credit]",
                  "the bank was robbed of [cash|gold|money] by a [thief|clerk]"],
    },
    "bat": {
        "animal": ["a bat [flew|hung] in the [cave|attic] at [night|dusk]", "the bat [eats|catches] [insects|moths] in the dark", "the wings of the bat are [thin|black|soft]",
                   "an owl and a bat [sleep|hunt] in the [cave|barn]"],
        "sport": ["[he|she|the player] [swung|held|broke] the bat and hit the ball", "the bat of the [player|team] was made of [wood|ash]",
                  "[she|he] bought a bat and a [ball|glove] for the [game|match]", "the bat struck the ball in the last [game|match]"],
    },
    "bark": {
        "tree": ["the bark of the [oak|birch|pine] is [rough|white|thin]", "[beetles|moss|insects] [live|grow] on the bark of the [tree|oak]", "the bark [peels|falls] from the [birch|pine|tree] in [spring|autumn]"],
        "dog": ["the bark of the [dog|puppy|hound] [woke|scared] the [cat|children|thief]", "we heard a loud bark and a [howl|growl] from the [dog|hound]", "the bark was so loud that the [cat|thief] ran away"],
    },
    "seal": {
        "animal": ["a seal [swam|dived] in the cold [sea|water]", "the seal eats [fish|crabs] on the [ice|beach]", "the [bear|whale] hunted a seal under the [ice|sea]"],
        "letter": ["the seal on the [letter|envelope] was made of [wax|red wax]", "[he|she|the clerk] broke the seal and read the [letter|contract]", "the [king|queen] put a seal on the [contract|letter]"],
    },
    "crane": {
        "bird": ["a crane [stood|fished] in the [marsh|stream] on one leg", "the crane spread its wings and flew over the [marsh|sea]", "[ducks|geese] and a crane nest in the [reeds|marsh]"],
        "machine": ["the crane lifted the [steel|bricks|beam] onto the [roof|tower]", "the [driver|worker] of the crane moved the [bricks|steel]", "a crane builds the [tower|bridge] from steel"],
    },
}  # fmt: skip


def write(template: str, rng: random.Random) -> str:
    return re.sub(r"\[(.*?)\]", lambda found: rng.choice(found[1].split("|")), template)


def sentence(rng: random.Random) -> tuple[str, str, str]:
    """A sentence, its ambiguous word and the meaning."""
    word = rng.choice(list(GRAMMAR))
    sense = rng.choice(list(GRAMMAR[word]))
    return write(rng.choice(GRAMMAR[word][sense]), rng), word, sense


rng = random.Random(0)
corpus = [sentence(rng) for _ in range(6000)]
for text, word, sense in corpus[:6]:
    print(f"{word:5} ({sense:6}): {text}")
words = ["[PAD]", "[MASK]", "[CLS]", "[SEP]"] + sorted({token for text, _, _ in corpus for token in text.split()})
index = {token: number for number, token in enumerate(words)}
LENGTH = 16
ids = torch.zeros(len(corpus), LENGTH, dtype=torch.long)
for row, (text, _, _) in enumerate(corpus):
    tokens = torch.tensor([2, *(index[token] for token in text.split()), 3])
    ids[row, : len(tokens)] = tokens
print(len(words), "words;", tuple(ids.shape))

# %% [markdown]
# ## Who may look at whom
#
# A row is a word whose vector is made; a column is a word that it may use. A skip-gram vector is made from all sentences at once and uses none of *this* sentence: only the word itself. The two directions of a recurrent
# model never meet inside it. GPT sees the past. BERT sees everything, and pays for it: the words that it is to predict have to be hidden in the input.

# %%
short = "the bank was muddy after the rain".split()
size = len(short)
views = {
    "skip-gram": torch.eye(size), "forward + backward (ELMo)": torch.ones(size, size) * 0.6 + torch.eye(size) * 0.4,
    "causal (GPT)": causal_mask(size).float(), "bidirectional (BERT)": torch.ones(size, size),
}  # fmt: skip
fig, axes = plt.subplots(1, 4, figsize=(11, 2.7), layout="constrained")
for ax, (name, view) in zip(axes, views.items(), strict=True):
    heat_map(ax, view, short if ax is axes[0] else [""] * size, short, name, digits=None)
plt.show()

# %% [markdown]
# (Paler in the second picture: left and right are read by two networks that know nothing of each other; only their last states are put side by side.)
#
# ## One vector a word: skip-gram
#
# Predict the words within two places of a word from its vector (Mikolov et al. 2013). With a vocabulary this small the full softmax will do; word2vec samples negatives instead.

# %%
def train(model: nn.Module, loss_of, steps: int, learning_rate: float = 3e-3) -> float:
    """The mean loss of the last 20 of `steps` steps on batches of 64 sentences."""
    generator, losses = torch.Generator().manual_seed(0), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    for _ in range(steps):
        loss = loss_of(model, ids[torch.randint(len(ids), (64,), generator=generator)], generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20


class SkipGram(nn.Module):
    def __init__(self, hidden_size: int = 64) -> None:
        super().__init__()
        self.embeddings, self.context = nn.Embedding(len(words), hidden_size), nn.Linear(hidden_size, len(words))

    def encode(self, input_ids: Tensor) -> Tensor:
        return self.embeddings(input_ids)


def skip_gram_loss(model: SkipGram, rows: Tensor, _: torch.Generator) -> Tensor:
    scores, total = model.context(model.encode(rows)), 0.0
    for distance in (1, 2):
        for source, target in ((scores[:, :-distance], rows[:, distance:]), (scores[:, distance:], rows[:, :-distance])):
            total = total + nn.functional.cross_entropy(source.flatten(0, 1), target.flatten(), ignore_index=0)
    return total / 4


torch.manual_seed(0)
models, seconds = {"skip-gram": SkipGram()}, {}
begin = time.perf_counter()
train(models["skip-gram"], skip_gram_loss, 400)
seconds["skip-gram"] = time.perf_counter() - begin


# %% [markdown]
# ## Two readers: a bidirectional language model
#
# One LSTM reads forwards and predicts the next word, another reads backwards and predicts the word before (Peters et al. 2018). A word's vector is both states side by side: it depends on the sentence.

# %%
class TwoReaders(nn.Module):
    def __init__(self, hidden_size: int = 64) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(len(words), hidden_size, padding_idx=0)
        self.forwards, self.backwards = (nn.LSTM(hidden_size, hidden_size, batch_first=True) for _ in range(2))
        self.output = nn.Linear(hidden_size, len(words))

    def read(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        states = self.embeddings(input_ids)
        return self.forwards(states)[0], self.backwards(states.flip(1))[0].flip(1)

    def encode(self, input_ids: Tensor) -> Tensor:
        return torch.cat(self.read(input_ids), dim=-1)


def two_readers_loss(model: TwoReaders, rows: Tensor, _: torch.Generator) -> Tensor:
    forwards, backwards = (model.output(states) for states in model.read(rows))
    after = nn.functional.cross_entropy(forwards[:, :-1].flatten(0, 1), rows[:, 1:].flatten(), ignore_index=0)
    before = nn.functional.cross_entropy(backwards[:, 1:].flatten(0, 1), rows[:, :-1].flatten(), ignore_index=0)
    return (after + before) / 2


# %% [markdown]
# ## The past alone: a causal transformer; both sides: BERT
#
# The same class, `LanguageModel`, from notebook 6. GPT predicts each next word. BERT gets a sentence with holes: of 15 % of the words 80 % become `[MASK]`, 10 % a random word, 10 % stay.

# %%
def causal_loss(model: LanguageModel, rows: Tensor, _: torch.Generator) -> Tensor:
    scores = model(rows[:, :-1], (rows[:, :-1] > 0).unsqueeze(1))
    return nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=0)


def hide(rows: Tensor, generator: torch.Generator, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """Inputs and labels (-100: no target), 80/10/10 (Devlin et al. 2018, section 3.1)."""
    chosen = (torch.rand(rows.shape, generator=generator) < share) & (rows > 3)  # no special tokens
    point = torch.rand(rows.shape, generator=generator)
    inputs = torch.where(chosen & (point < 0.8), 1, rows)
    others = torch.randint(4, len(words), rows.shape, generator=generator)
    return torch.where(chosen & (point >= 0.9), others, inputs), rows.masked_fill(~chosen, -100)


def masked_loss(model: LanguageModel, rows: Tensor, generator: torch.Generator) -> Tensor:
    inputs, labels = hide(rows, generator)
    return nn.functional.cross_entropy(model(inputs, (rows > 0).unsqueeze(1)).flatten(0, 1), labels.flatten())


# %% tags=["varies"]
for name, build, loss_of, steps in (
    ("two LSTMs", TwoReaders, two_readers_loss, 300),
    ("GPT", lambda: LanguageModel(len(words), 64, 4, 2, LENGTH, is_causal=True), causal_loss, 400),
    ("BERT", lambda: LanguageModel(len(words), 64, 4, 2, LENGTH, is_causal=False), masked_loss, 1000),
):
    torch.manual_seed(0)
    begin, models[name] = time.perf_counter(), build()
    loss = train(models[name], loss_of, steps)
    seconds[name] = time.perf_counter() - begin
    print(f"{name}: loss {loss:.2f} nats, {seconds[name]:.0f} s")

# %% [markdown]
# ## The same word in two sentences
#
# The clue comes **after** the word, so a model of the past alone cannot know it yet: for GPT the two beginnings are the same, and so are its vectors for *bank*. How alike are the two vectors (cosine), and which words
# in other sentences are nearest?

# %%
@torch.no_grad()
def vectors(model: nn.Module, texts: list[str]) -> Tensor:
    """The vectors of all places (N, S, E)."""
    rows = torch.zeros(len(texts), LENGTH, dtype=torch.long)
    for row, text in enumerate(texts):
        tokens = torch.tensor([2, *(index[token] for token in text.split()), 3])
        rows[row, : len(tokens)] = tokens
    return model.eval().encode(rows, (rows > 0).unsqueeze(1)) if isinstance(model, LanguageModel) else model.eval().encode(rows)


SKIPPED = set("the a an of and in on at by for from with was is are to that so its her him them his she he we they my".split())


def neighbours(model: nn.Module, text: str, word: str, count: int = 5) -> list[str]:
    """The words of other sentences whose vectors, there, are nearest to the word's vector here."""
    others = [other for other, _, _ in corpus[:800]]
    place = text.split().index(word) + 1
    own, all_vectors = vectors(model, [text])[0, place], vectors(model, others)
    found = Counter()
    for row, other in enumerate(others):
        for position, token in enumerate(other.split(), start=1):
            if token != word and token not in SKIPPED:
                likeness = nn.functional.cosine_similarity(own, all_vectors[row, position], dim=0).item()
                found[token] = max(found[token], likeness) if token in found else likeness
    return [token for token, _ in found.most_common(count)]


# %% tags=["varies"]
pair = ("the bank was muddy after the rain", "the bank was robbed of cash by a thief")
for name, model in models.items():
    one, other = vectors(model, list(pair))[:, 2]
    print(f"{name:10} cosine {nn.functional.cosine_similarity(one, other, dim=0):.2f}")
    for text in pair:
        print(f"    {text:40} -> {', '.join(neighbours(model, text, 'bank'))}")

# %% [markdown]
# Measured over all five words: can a linear rule on the word's vector tell the meaning?

# %% tags=["varies"]
from sklearn.linear_model import LogisticRegression

rng = random.Random(9)
probe = [sentence(rng) for _ in range(900)]
places = torch.tensor([text.split().index(word) + 1 for text, word, _ in probe])
senses = [list(GRAMMAR[word]).index(sense) for _, word, sense in probe]
accuracy = {}
for name, model in models.items():
    features = vectors(model, [text for text, _, _ in probe])[torch.arange(len(probe)), places].numpy()
    scores = []
    for word in GRAMMAR:
        rows = [number for number, (_, other, _) in enumerate(probe) if other == word]
        half = len(rows) // 2
        rule = LogisticRegression(max_iter=1000).fit(features[rows[:half]], [senses[row] for row in rows[:half]])
        scores.append(rule.score(features[rows[half:]], [senses[row] for row in rows[half:]]))
    accuracy[name] = scores
    print(f"{name:10} {sum(scores) / len(scores):.3f}", dict(zip(GRAMMAR, [round(score, 2) for score in scores], strict=True)))
fig, ax = plt.subplots(figsize=(4.6, 2.4))
heat_map(ax, torch.tensor(list(accuracy.values())), list(accuracy), list(GRAMMAR), "share of meanings told right (chance 0.5)")
plt.show()

# %% [markdown]
# ## Two ways to learn from text, on one task
#
# **Autoencoding** (BERT) restores what was hidden, with both sides in view. **Autoregression** (GPT) goes on writing. One task for both: a word is missing; which is it? Once in the middle, with the clue behind it, and once at the end.

# %% tags=["varies"]
middle = [("the bank was [MASK] after the flood", ["steep", "muddy", "green"]), ("the bank was [MASK] of cash by a thief", ["robbed"]),
          ("a [MASK] hung in the cave at dusk", ["bat"]), ("the [MASK] eats moths in the dark", ["bat"]), ("the [MASK] lifted the bricks onto the roof", ["crane"])]  # fmt: skip
end = [("she took money from the [MASK]", ["bank"]), ("he broke the seal and read the [MASK]", ["letter", "contract"]),
       ("the crane lifted the bricks onto the [MASK]", ["roof", "tower"]), ("the bat eats moths in the [MASK]", ["dark"])]  # fmt: skip


@torch.no_grad()
def probability(name: str, text: str, answers: list[str]) -> float:
    """The probability that the model gives to the right words at the hole."""
    row = torch.tensor([[2, *(index[token] for token in text.split()), 3]])
    place = text.split().index("[MASK]") + 1
    if name == "GPT":  # it reads up to the hole, and predicts the next word
        scores = models[name](row[:, :place])[0, -1]
    else:
        scores = models[name](row)[0, place]
    return scores.softmax(-1)[[index[answer] for answer in answers]].sum().item()


for title, holes in (("hole in the middle", middle), ("hole at the end", end)):
    shares = {name: sum(probability(name, *hole) for hole in holes) / len(holes) for name in ("BERT", "GPT")}
    print(title, {name: round(share, 2) for name, share in shares.items()})

# %% [markdown]
# BERT fills holes and makes vectors for whole texts: classification, tagging, search. GPT writes, since every step of its training was a step of writing. BERT's `[MASK]` never occurs after training, which is what the 10 % kept and 10 %
# random words are for.
#
# ## What BERT reads
#
# Three vectors are summed at each place: the **token**, its **segment** (first or second text), its **position**. `[CLS]` stands first and is read for the whole row; `[SEP]` ends each segment.

# %%
from bertpre.model import BertPreConfig, BertPreModel

torch.manual_seed(0)
small = BertPreModel(BertPreConfig(architecture="bert", vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                   intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0))  # fmt: skip
tokens = "[CLS] the bank lent her money [SEP] she bought a house [SEP]".replace("[CLS]", "[CLS]").split()
tokens = [token if token in index else "[MASK]" for token in tokens]
input_ids = torch.tensor([[index[token] for token in tokens]])
token_type_ids = torch.tensor([[0] * 7 + [1] * (len(tokens) - 7)])
parts = small.embeddings
summed = (parts.word_embeddings(input_ids) + parts.token_type_embeddings(token_type_ids)
          + parts.position_embeddings(torch.arange(len(tokens))))  # fmt: skip
print("sum, then norm:", torch.allclose(parts.LayerNorm(summed), parts(parts.word_embeddings(input_ids), token_type_ids, torch.arange(len(tokens))[None])))
for name, row in (("token", tokens), ("segment", token_type_ids[0].tolist()), ("position", range(len(tokens)))):
    print(f"{name:9}", *(f"{str(cell):7}" for cell in row))

# %% [markdown]
# ## WordPiece
#
# A word list never ends: names, numbers, endings. WordPiece keeps frequent words whole and cuts rare ones into known pieces; `##` marks a piece that goes on. A vocabulary learned from this notebook's text and a few reviews of films:

# %%
import tempfile

import bertpre.data as data

texts = list(data.read_texts("sample", limit=400))
tokenizer = data.learn_tokenizer(texts, vocab_size=1500)
for text in ("The director is remarkable.", "An unwatchable cinematographer!"):
    print(text, "->", tokenizer.tokenize(text))

# %% [markdown]
# ## Pairs and masks, as bertpre makes them
#
# `SegmentPairDataset` draws next-sentence pairs from a store of token ids; `DataCollatorForPretraining` puts `[CLS]` and `[SEP]` in and masks. Of the chosen tokens 80 % become `[MASK]`, 10 % a random token, 10 % stay;
# the loss counts the chosen ones alone (`labels` is -100 elsewhere).

# %%
store = data.TokenStore.build(tempfile.mkdtemp() + "/store", texts, tokenizer=tokenizer)
pairs = data.SegmentPairDataset(store, max_length=40)
collate = data.DataCollatorForPretraining(tokenizer, max_length=40)
batch = collate([pairs[number] for number in range(200)])
print({name: tuple(value.shape) for name, value in batch.items()})
row = next(row for row in range(200) if batch["next_sentence_label"][row] == 1)
for name in ("input_ids", "labels"):
    tokens = ["." if number == -100 else tokenizer.convert_ids_to_tokens(number) for number in batch[name][row].tolist()]
    print(f"{name:9}", " ".join(tokens))
print("segments ", *batch["token_type_ids"][row].tolist(), "  random next:", batch["next_sentence_label"][row].item())

chosen = batch["labels"] != -100
inputs, labels = batch["input_ids"][chosen], batch["labels"][chosen]
is_mask, is_kept = inputs == tokenizer.mask_token_id, inputs == labels
print(f"{len(labels)} targets: masked {is_mask.float().mean():.2f}, kept {is_kept.float().mean():.2f}, random {(~is_mask & ~is_kept).float().mean():.2f}")

# %% [markdown]
# ## Exercises
#
# 1. In which of the four models is the vector of a word's *first* occurrence in a text always the same, whatever follows?
# 2. Train BERT without the 10 % random and 10 % kept words (`point < 1.0`). What happens to its loss, and to the probe?
# 3. GPT reads "the bank was muddy". Which later vector could be used instead of *bank*'s to tell the meaning?

# %% jupyter={"source_hidden": true} tags=["solution", "varies"]
# 1. Skip-gram's (always) and GPT's (it depends on the past alone).
one, other = vectors(models["GPT"], list(pair))[:, 2]
assert torch.allclose(one, other, atol=1e-5)

# 2. The loss gets lower, for [MASK] now says where to guess. The probe reads vectors of words that are not masked, which were never trained to say anything.

# 3. The last one: GPT's last state has read everything. That is why GPTs are used with the last token's vector.
last = vectors(models["GPT"], list(pair))
one, other = last[0, 7], last[1, 9]
print(f"cosine of the last words' vectors {nn.functional.cosine_similarity(one, other, dim=0):.2f}")

# %% [markdown]
# ## Where this lives in bertpre
#
# - `bertpre/model/layers_bertpre.py`: `BertEmbeddings` (the three vectors), `MaskedLMHead`; `bertpre/model/modeling_bertpre.py`: `BertPreForPreTraining`.
# - `bertpre/data/tokenizer.py` learns WordPiece; `bertpre/data/masking.py` masks; `bertpre/data/pairs.py` makes pairs.
#
# Next: [8. Eleven mistakes](08_mistakes.ipynb).
