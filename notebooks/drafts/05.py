# %% [markdown]
# # 5. Before transformers: sequence to sequence with attention
#
# *What you learn: how a recurrent encoder and decoder translate; the bottleneck that attention removed; teacher forcing, masked loss, greedy
# and beam search, BLEU; what alignments look like.* Four minutes to run, twenty-five to read.
#
# Attention was invented for translation (Bahdanau, Cho and Bengio 2014). An encoder reads the source into states, one per word. A decoder writes the
# target word by word. The first such systems handed over a single vector, the encoder's last state, whatever the length of the sentence. Attention lets
# the decoder look at all states again, before each word.

# %%
import os
import random
import re
import time
import unicodedata
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import sacrebleu
import torch
from pictures import BLUE, ORANGE, heat_map
from torch import nn

from bertpre.attention.recurrent import Seq2Seq

torch.manual_seed(0)

# %% [markdown]
# ## Sentence pairs
#
# A small grammar writes English and Chinese side by side. The two languages differ where real ones do: Chinese puts time and place before the verb
# and a relative clause before its noun, counts with a measure word that depends on the noun (两**本**书, two books; 两**辆**车, two cars), marks
# the past with 了, and asks with 吗 at the end.

# %%
PEOPLE = {"i": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "mary": "玛丽", "tom": "汤姆", "the teacher": "老师",
          "the doctor": "医生", "my friend": "我的朋友", "your sister": "你的姐姐", "the children": "孩子们"}
PLURAL = {"i", "you", "we", "the children"}  # these take the verb without -s
NOUNS = {"book": "本书", "letter": "封信", "picture": "张画", "table": "张桌子", "cat": "只猫", "dog": "只狗", "bird": "只鸟",
         "car": "辆车", "house": "座房子", "cup": "个杯子", "apple": "个苹果", "watch": "块手表"}  # measure word and noun
ADJECTIVES = {"red": "红", "old": "旧", "new": "新", "big": "大", "small": "小", "white": "白", "expensive": "贵", "beautiful": "漂亮"}
VERBS = {"buy": ("bought", "买"), "sell": ("sold", "卖"), "see": ("saw", "看见"), "find": ("found", "找到"), "lose": ("lost", "丢"),
         "paint": ("painted", "画"), "read": ("read", "读"), "bring": ("brought", "带来"), "forget": ("forgot", "忘记")}
TIMES = {"past": {"yesterday": "昨天", "last week": "上周", "this morning": "今天早上"}, "present": {"every day": "每天", "often": "常常"},
         "future": {"tomorrow": "明天", "next week": "下周", "tonight": "今天晚上"}}
PLACES = {"in the garden": "在花园里", "at school": "在学校", "in the city": "在城里", "at home": "在家", "on the street": "在街上"}
JOINTS = (("because {a} , {b}", "因为{a}，所以{b}"), ("{a} , but {b}", "虽然{a}，但是{b}"), ("{a} , and {b}", "{a}，而且{b}"))


def thing(rng: random.Random, depth: int = 0) -> tuple[str, str]:
    """A noun phrase: "the old book that mary bought" and 玛丽买的那本旧书."""
    noun, chinese = rng.choice(list(NOUNS.items()))
    determiner, own = rng.choice([("the", "那"), ("a", "一"), ("two", "两"), ("this", "这")])
    adjective, colour = rng.choice([("", "")] * 5 + [(english + " ", word + "的") for english, word in ADJECTIVES.items()])
    plural = ("es" if noun == "watch" else "s") if determiner == "two" else ""
    english = f"{determiner} {adjective}{noun}{plural}"
    if determiner == "a" and (adjective + noun)[0] in "aeiou":
        english = "an" + english[1:]
    chinese = own + chinese[0] + colour + chinese[1:]
    if depth == 0 and rng.random() < 0.2:
        person, (past, verb) = rng.choice(list(PEOPLE)), rng.choice(list(VERBS.values()))
        return f"{english} that {person} {past}", f"{PEOPLE[person]}{verb}的{chinese}"
    return english, chinese


def clause(rng: random.Random) -> tuple[str, str]:
    """A sentence without its full stop."""
    person, verb, tense = rng.choice(list(PEOPLE)), rng.choice(list(VERBS)), rng.choice(list(TIMES))
    (past, word), (what, what_chinese) = VERBS[verb], thing(rng)
    when, when_chinese = rng.choice([("", ""), *TIMES[tense].items()])
    where, where_chinese = rng.choice([("", "")] * 3 + list(PLACES.items()))
    is_plain = person in PLURAL
    if rng.random() < 0.25:  # negated
        when, when_chinese = ("", "") if tense == "present" else (when, when_chinese)
        helper = {"past": "did not", "present": "do not" if is_plain else "does not", "future": "will not"}[tense]
        action, before, after = f"{helper} {verb}", {"past": "没", "present": "不", "future": "不会"}[tense], ""
    else:
        action = {"past": past, "present": verb if is_plain else verb + "s", "future": f"will {verb}"}[tense]
        before, after = "会" if tense == "future" else "", "了" if tense == "past" else ""
    english = " ".join(part for part in (person, action, what, where, when) if part)
    return english, PEOPLE[person] + when_chinese + before + where_chinese + word + after + what_chinese


def pair(rng: random.Random, clauses: int) -> tuple[str, str]:
    """A sentence of one to several clauses in English and in Chinese."""
    english, chinese = clause(rng)
    for number in range(clauses - 1):
        joint, further = rng.choice(JOINTS) if number == 0 else JOINTS[-1], clause(rng)
        english, chinese = (part.format(a=one, b=two) for part, one, two in zip(joint, (english, chinese), further, strict=True))
    return english.capitalize() + ".", chinese + "。"


rng = random.Random(0)
for clauses in (1, 1, 2, 3):
    print(*pair(rng, clauses), sep="\n", end="\n\n")

# %% [markdown]
# **Your own file.** Set the environment variable `PAIRS` to a file with one pair a line, English and Chinese separated by a tab (other languages work
# too: the target is cut into characters). Everything below then runs on it.

# %%
TRAIN, TEST = 16_000, 400
own = os.environ.get("PAIRS")
if own:
    lines = [line.split("\t") for line in Path(own).read_text(encoding="utf-8").splitlines()]
    pairs = [(line[0], line[1]) for line in lines if len(line) > 1]
    random.Random(0).shuffle(pairs)
    train_pairs, test_pairs = pairs[: -len(pairs) // 20], pairs[-len(pairs) // 20 :][:TEST]
else:
    rng = random.Random(1)
    train_pairs = [pair(rng, rng.choice((1, 1, 2))) for _ in range(TRAIN)]
    seen = set(train_pairs)
    test_pairs = [made for made in (pair(rng, rng.choice((1, 1, 2))) for _ in range(2 * TEST)) if made not in seen][:TEST]
print(f"{len(train_pairs):,} pairs to train, {len(test_pairs)} to test")

# %% [markdown]
# ## Preprocessing
#
# - **Case and form**: lower case, Unicode in one normal form (NFKC), so that "Ａ" and "A" are one letter.
# - **Punctuation** becomes a token of its own: "table." would otherwise be another word than "table".
# - **English in words, Chinese in characters**: Chinese has no spaces, and characters need no segmenter.
# - **Rare words**: what occurs once in training becomes `<unk>`. A word met once cannot be learned, and the model has to see `<unk>` to handle it later.
# - **Padding**: sentences of a batch are filled up to the longest with id 0. `<s>` starts a target, `</s>` ends it: a model that cannot stop is of no use.

# %%
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
PAD, START, END, UNKNOWN = range(4)


def source_tokens(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text).lower())


def target_tokens(text: str) -> list[str]:
    return [character for character in text.lower() if not character.isspace()]


class Vocabulary:
    """Words and their ids; words that occur less than twice are unknown."""

    def __init__(self, sentences: list[list[str]]) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        self.words = SPECIAL + sorted(word for word, count in counts.items() if count > 1)
        self.index = {word: number for number, word in enumerate(self.words)}

    def ids(self, tokens: list[str]) -> torch.Tensor:
        return torch.tensor([self.index.get(token, UNKNOWN) for token in tokens])

    def text(self, ids: list[int]) -> list[str]:
        kept = ids[: ids.index(END)] if END in ids else ids
        return [self.words[number] for number in kept if number != PAD]


sources, targets = [[read(text) for text in column] for read, column in
                    zip((source_tokens, target_tokens), zip(*train_pairs, strict=True), strict=True)]  # fmt: skip
english, chinese = Vocabulary(sources), Vocabulary(targets)
print(len(english.words), "English words,", len(chinese.words), "Chinese characters")


def batch(pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Source (B, T) padded, its lengths (B,), target (B, S) between <s> and </s>, padded."""
    source = [english.ids(source_tokens(text)) for text, _ in pairs]
    target = [chinese.ids(["<s>", *target_tokens(text), "</s>"]) for _, text in pairs]
    padded = [nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (source, target)]
    return padded[0], torch.tensor([len(part) for part in source]), padded[1]


source, lengths, target = batch(train_pairs[:3])
print(source, lengths, target, sep="\n")

# %% [markdown]
# ## The model
#
# - **Encoder**: a GRU that reads forwards and one that reads backwards; the two states of a word side by side are its annotation $h_j$.
# - **Attention**: $e_{ij} = v^\top \tanh(W h_j + U s_{i-1} + b)$, softmax over $j$, and the context $c_i = \sum_j \alpha_{ij} h_j$. The query is the
#   decoder's state before the word (notebook 3 has this score).
# - **Decoder**: a GRU over the last word and the context.
#
# **Teacher forcing**: in training the decoder reads the *true* previous word, not its own. Position $i$ of the input predicts position $i + 1$.
# **Masked loss**: padding is no target. A mean over all positions would be flattered by the many easy zeros, and would depend on how long the
# longest sentence in a batch is.

# %%
def loss_of(model: Seq2Seq, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits, _ = model(source, lengths, target[:, :-1])  # (B, S - 1, V)
    return nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


def train(attends: bool, epochs: int = 6, batch_size: int = 128) -> tuple[Seq2Seq, list[float]]:
    torch.manual_seed(2)
    model, losses = Seq2Seq(len(english.words), len(chinese.words), hidden_size=96, attends=attends), []
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = [batch(train_pairs[start : start + batch_size]) for start in range(0, len(train_pairs), batch_size)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * len(batches))
    for epoch in range(epochs):
        for number in random.Random(epoch).sample(range(len(batches)), len(batches)):
            loss = loss_of(model, *batches[number])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # recurrent gradients explode now and then
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return model.eval(), losses


# %% tags=["varies"]
models, curves = {}, {}
for name, attends in (("with attention", True), ("without", False)):
    begin = time.perf_counter()
    models[name], curves[name] = train(attends)
    print(f"{name}: {time.perf_counter() - begin:.0f} s, last losses {sum(curves[name][-50:]) / 50:.3f}")

fig, ax = plt.subplots(figsize=(5.4, 2.6))
for (name, curve), colour in zip(curves.items(), (BLUE, ORANGE), strict=True):
    smooth = torch.tensor(curve).unfold(0, 20, 5).mean(1)
    ax.plot(torch.arange(len(smooth)) * 5 + 10, smooth, color=colour, label=name)
ax.set_xlabel("step")
ax.set_ylabel("loss per character, nats")
ax.set_yscale("log")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Greedy and beam search
#
# Greedy decoding takes the best next character and never looks back. Beam search keeps the four best beginnings. Scores are **mean** log-probabilities:
# a sum would prefer short sentences, because every further character costs something.

# %% tags=["varies"]
model = models["with attention"]
text, reference = test_pairs[0]
source, lengths, _ = batch([(text, reference)])
print(text, reference, sep="\n")
tokens, _ = model.greedy(source, lengths, START, END, longest=80)
print("greedy:", "".join(chinese.text(tokens[0].tolist())))
for score, ids in model.beam_search(source[0], START, END, longest=80)[:3]:
    print(f"beam {score:7.3f}:", "".join(chinese.text(ids)))

# %% [markdown]
# ## BLEU
#
# BLEU counts which runs of one to four tokens of the translation occur in the reference (precision), takes the geometric mean, and punishes translations
# that are too short (Papineni et al. 2002). It is computed over the whole test set, not per sentence. `sacrebleu` does it in the way that papers can
# be compared; Chinese is counted by characters.

# %%
def translate(model: Seq2Seq, pairs: list[tuple[str, str]]) -> list[str]:
    out = []
    for start in range(0, len(pairs), 100):
        source, lengths, _ = batch(pairs[start : start + 100])
        tokens, _ = model.greedy(source, lengths, START, END, longest=120)
        out += ["".join(chinese.text(ids)) for ids in tokens.tolist()]
    return out


def bleu(model: Seq2Seq, pairs: list[tuple[str, str]]) -> float:
    return sacrebleu.corpus_bleu(translate(model, pairs), [[target for _, target in pairs]], tokenize="zh").score


# %% tags=["varies"]
for name, model in models.items():
    answers = translate(model, test_pairs)
    exact = sum(answer == target for answer, (_, target) in zip(answers, test_pairs, strict=True))
    print(f"{name}: BLEU {bleu(model, test_pairs):.1f}, exactly right {exact} of {len(test_pairs)}")

# %% [markdown]
# ## Longer sentences
#
# Training had one or two clauses. How do the two models do on three and four? This is the figure that made attention famous (Bahdanau et al.,
# figure 2): without it, quality falls with length, because a vector of fixed size has to hold ever more.

# %% tags=["varies"]
if not own:
    rng, by_length = random.Random(7), {}
    for clauses in (1, 2, 3, 4):
        longer = [pair(rng, clauses) for _ in range(100)]
        by_length[clauses] = [bleu(model, longer) for model in models.values()]
        print(f"{clauses} clauses: BLEU " + ", ".join(f"{name} {score:.1f}" for name, score in zip(models, by_length[clauses], strict=True)))
    fig, ax = plt.subplots(figsize=(4.6, 2.6))
    for number, (name, colour) in enumerate(zip(models, (BLUE, ORANGE), strict=True)):
        ax.plot(list(by_length), [scores[number] for scores in by_length.values()], "o-", color=colour, label=name)
    ax.axvspan(0.8, 2.2, color="#eeeeee", zorder=0)
    ax.text(1.5, 4, "lengths seen in training", ha="center", fontsize=7)
    ax.set_xticks(list(by_length))
    ax.set_xlabel("clauses in the sentence")
    ax.set_ylabel("BLEU")
    ax.set_ylim(0, 105)
    ax.legend(frameon=False)
    plt.show()

# %% [markdown]
# ## What the decoder looked at
#
# One row per character that was written, one column per source word. Rows that are out of order show where Chinese moves words: time and place
# come before the verb. The axis gives each character's number in the sentence and its source word in the picture is read off the column; the sentence
# itself is printed below (plots often lack Chinese letters).

# %% tags=["varies"]
example = ("Mary sold the old car in the city yesterday.", "玛丽昨天在城里卖了那辆旧的车。") if not own else test_pairs[0]
source, lengths, _ = batch([example])
tokens, weights = models["with attention"].greedy(source, lengths, START, END, longest=80)
written = chinese.text(tokens[0].tolist())
print(" ".join(f"{number}{character}" for number, character in enumerate(written, start=1)))
fig, ax = plt.subplots(figsize=(5, 4.4))
rows = [str(number) for number in range(1, len(written) + 1)]
heat_map(ax, weights[0, : len(written)], rows, source_tokens(example[0]), "attention of each character", digits=None)
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Attention weights at padded source words must be exactly zero. Check it for a batch of sentences of different length.
# 2. The two biggest parameter matrices are not in the attention. Which are they?
# 3. Compare greedy with a beam of 4 on 50 test sentences: how often do they differ, and is the beam's mean log-probability ever lower?

# %% jupyter={"source_hidden": true} tags=["solution", "varies"]
model = models["with attention"]
# 1.
source, lengths, target = batch(test_pairs[:5])
_, weights = model(source, lengths, target[:, :-1])
is_padding = torch.arange(source.shape[1]) >= lengths.unsqueeze(1)  # (B, T)
assert weights.masked_select(is_padding.unsqueeze(1)).eq(0).all()

# 2.
largest = sorted(model.named_parameters(), key=lambda item: -item[1].numel())[:2]
print([(name, tuple(weight.shape)) for name, weight in largest])

# 3. A beam of four holds the greedy path until something better pushes it out; it can lose that way, but rarely does.
differ = 0
for text, reference in test_pairs[:50]:
    source, lengths, _ = batch([(text, reference)])
    greedy = chinese.text(model.greedy(source, lengths, START, END, longest=80)[0][0].tolist())
    best = chinese.text(model.beam_search(source[0], START, END, longest=80)[0][1])
    differ += greedy != best
print(differ, "of 50 differ")

# %% [markdown]
# ## Where this lives in bertpre
#
# - `bertpre/attention/recurrent.py`: `RecurrentEncoder`, `RecurrentDecoder`, `Seq2Seq` with `greedy` and `beam_search`.
# - `bertpre/attention/scores.py`: `AdditiveScore`.
# - What BERT kept of this: attention and the masked loss (`ignore_index`; `IGNORE_INDEX` in `bertpre/model/modeling_bertpre.py`). What it dropped: recurrence.
#   A GRU must read word after word; attention sees all words at once, which is what a GPU wants. The price is that order has to be added again.
#
# Next: [6. The transformer block](06_transformer.ipynb).
