"""A small grammar that writes English and Chinese side by side, and what a reader without Chinese needs."""

import random
import re

PEOPLE = {
    "I": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "Mary": "玛丽", "Tom": "汤姆", "the teacher": "老师",
    "the doctor": "医生", "my friend": "我的朋友", "your sister": "你的姐姐", "the children": "孩子们",
}  # fmt: skip
PLURAL = {"I", "you", "we", "the children"}  # these take the verb without -s
NOUNS = {
    "book": "本书", "letter": "封信", "picture": "幅画", "table": "张桌子", "chair": "把椅子", "cat": "只猫",
    "dog": "只狗", "bird": "只鸟", "car": "辆车", "cup": "个杯子", "apple": "个苹果", "watch": "块手表",
}  # fmt: skip
ADJECTIVES = {
    "red": "红", "old": "旧", "new": "新", "big": "大", "small": "小", "white": "白",
    "expensive": "贵", "beautiful": "漂亮",
}  # fmt: skip
VERBS = {
    "buy": ("bought", "买"), "sell": ("sold", "卖"), "see": ("saw", "看见"), "find": ("found", "找到"),
    "lose": ("lost", "丢"), "paint": ("painted", "画"), "bring": ("brought", "带来"), "forget": ("forgot", "忘记"),
}  # fmt: skip
TIMES = {
    "past": {"yesterday": "昨天", "last week": "上周", "this morning": "今天早上"},
    "present": {"every day": "每天", "often": "常常"},
    "future": {"tomorrow": "明天", "next week": "下周", "tonight": "今天晚上"},
}
PLACES = {
    "in the garden": "在花园里", "at school": "在学校", "in the city": "在城里", "at home": "在家",
    "on the street": "在街上",
}  # fmt: skip
JOINTS = (("because {}, {}", "因为{}，所以{}"), ("{}, but {}", "虽然{}，但是{}"), ("{}, and {}", "{}，而且{}"))
PINYIN = dict(
    re.findall(
        r"(\S) (\S+)",
        """
我 wǒ 你 nǐ 他 tā 她 tā 们 men 玛 mǎ 丽 lì 汤 tāng 姆 mǔ 老 lǎo 师 shī 医 yī 生 shēng 的 de 朋 péng 友 you
姐 jiě 孩 hái 子 zi 本 běn 书 shū 封 fēng 信 xìn 幅 fú 画 huà 张 zhāng 桌 zhuō 把 bǎ 椅 yǐ 只 zhī 猫 māo
狗 gǒu 鸟 niǎo 辆 liàng 车 chē 个 gè 杯 bēi 苹 píng 果 guǒ 块 kuài 手 shǒu 表 biǎo 红 hóng 旧 jiù 新 xīn
大 dà 小 xiǎo 白 bái 贵 guì 漂 piào 亮 liang 买 mǎi 卖 mài 看 kàn 见 jiàn 找 zhǎo 到 dào 丢 diū 带 dài 来 lái
忘 wàng 记 jì 昨 zuó 天 tiān 上 shàng 周 zhōu 今 jīn 早 zǎo 每 měi 常 cháng 明 míng 下 xià 晚 wǎn 在 zài
花 huā 园 yuán 里 lǐ 学 xué 校 xiào 城 chéng 家 jiā 街 jiē 因 yīn 为 wèi 所 suǒ 以 yǐ 虽 suī 然 rán 但 dàn
是 shì 而 ér 且 qiě 那 nà 一 yī 两 liǎng 这 zhè 没 méi 不 bù 会 huì 了 le 吗 ma ， , 。 . ？ ?
""",
    )
)
MEANINGS = {
    "那": "the", "一": "a", "两": "two", "这": "this", "的": "(link)", "没": "did not", "不": "not",
    "不会": "will not", "会": "will", "了": "(past)", "吗": "(question)", "因为": "because", "所以": "so",
    "虽然": "although", "但是": "but", "而且": "and", "，": ",", "。": ".", "？": "?",
}  # fmt: skip
for table in (PEOPLE, PLACES, ADJECTIVES, *TIMES.values()):
    MEANINGS |= {chinese: english for english, chinese in table.items()}
for english, chinese in NOUNS.items():
    MEANINGS |= {chinese[0]: "(measure)", chinese[1:]: english}
for english, (_, chinese) in VERBS.items():
    MEANINGS[chinese] = english
WORD = re.compile("|".join(sorted(MEANINGS, key=len, reverse=True)))  # the longest word that fits


def noun_phrase(rng: random.Random) -> tuple[str, str]:
    """A determiner, a noun, and sometimes an adjective or a relative clause, in English and in Chinese."""
    noun, (measure, *rest) = rng.choice(list(NOUNS.items()))
    determiner, chinese = rng.choice([("the", "那"), ("a", "一"), ("two", "两"), ("this", "这")])
    adjective, colour = rng.choice([("", "")] * 8 + [(f"{word} ", f"{other}的") for word, other in ADJECTIVES.items()])
    english, chinese = f"{adjective}{noun}", chinese + measure + colour + "".join(rest)
    if determiner == "two":
        english += "es" if noun == "watch" else "s"
    elif determiner == "a" and english[0] in "aeiou":
        determiner = "an"
    if rng.random() < 0.2:
        person, (past, verb) = rng.choice(list(PEOPLE)), rng.choice(list(VERBS.values()))
        return f"{determiner} {english} that {person} {past}", f"{PEOPLE[person]}{verb}的{chinese}"
    return f"{determiner} {english}", chinese


def clause(rng: random.Random, may_ask: bool) -> tuple[str, str]:
    """A person, a verb in one of three tenses, a noun phrase, and sometimes a place and a time."""
    person, verb, tense = rng.choice(list(PEOPLE)), rng.choice(list(VERBS)), rng.choice(list(TIMES))
    (past, word), (what, what_chinese) = VERBS[verb], noun_phrase(rng)
    when, when_chinese = rng.choice([("", ""), *TIMES[tense].items()])
    where, where_chinese = rng.choice([("", "")] * 3 + list(PLACES.items()))
    helper = {"past": "did", "present": "do" if person in PLURAL else "does", "future": "will"}[tense]
    kind = rng.choice(["plain"] * 4 + ["negated"] + ["question"] * may_ask)
    if kind == "negated":
        when, when_chinese = ("", "") if tense == "present" else (when, when_chinese)
        words = (person, f"{helper} not {verb}", what, where, when)
        before, after = {"past": "没", "present": "不", "future": "不会"}[tense], ""
    else:
        third = verb if person in PLURAL else f"{verb}s"
        action = {"past": past, "present": third, "future": f"will {verb}"}[tense]
        is_question = kind == "question"
        words = (f"{helper} {person} {verb}" if is_question else f"{person} {action}", what, where, when)
        before, after = "会" * (tense == "future"), "了" * (tense == "past")
    chinese = PEOPLE[person] + when_chinese + before + where_chinese + word + after + what_chinese
    english = " ".join(part for part in words if part)
    return (f"{english}?", f"{chinese}吗？") if kind == "question" else (english, chinese)


def write_pair(rng: random.Random, clauses: int) -> tuple[str, str]:
    """A sentence of one or several clauses in English and in Chinese."""
    english, chinese = clause(rng, may_ask=clauses == 1)
    for number in range(clauses - 1):
        joint = rng.choice(JOINTS) if number == 0 else JOINTS[-1]
        further = clause(rng, may_ask=False)
        english, chinese = joint[0].format(english, further[0]), joint[1].format(chinese, further[1])
    end, chinese_end = ("", "") if english.endswith("?") else (".", "。")
    return english[0].upper() + english[1:] + end, chinese + chinese_end


def meanings(chinese: str) -> list[tuple[int, str]]:
    """Where each word of the grammar begins, and its meaning. 画 is "paint", or "picture" after 幅 and 的."""
    found = [(word.start(), MEANINGS[word[0]]) for word in WORD.finditer(chinese)]
    return [(start, "picture" if re.search("[幅的]画$", chinese[: start + 1]) else english) for start, english in found]


def gloss(chinese: str) -> str:
    """The meaning of each word, in the order of the Chinese words."""
    return re.sub(r" (?=[,.?])", "", " ".join(english for _, english in meanings(chinese)))


def row_labels(tokens: list[str]) -> list[str]:
    """Labels for a font without Chinese: pinyin, and the meaning where a word begins.

    Tokens in other alphabets stay as they are. Characters that the grammar does not have are numbered.
    """
    labels = [PINYIN.get(token, token if token < "\u2e80" else str(number)) for number, token in enumerate(tokens, 1)]
    if set(tokens) <= set(PINYIN):  # a character each
        for place, english in meanings("".join(tokens)):
            labels[place] += f" {english}" if tokens[place] not in "，。？" else ""
    return labels
