"""Sentence boundaries, by rules that work for reviews and encyclopaedias alike."""

import re

# An end mark with closing quotes or emoji, then white space and a character that can begin a sentence. Chinese,
# Japanese, Khmer, Burmese, Tibetan and Ethiopic full stops need no space; Hindi, Arabic and Armenian ones are used like
# Latin ones. Thai has none: a line is a sentence. For speed, every alternative starts with the same set of marks and
# then looks behind, so that the engine skips from mark to mark; and a run of marks is matched from its first mark only,
# so that a thousand dots take linear time.
EMOJI = r"[\u2600-\u27bf\u2b50\u2b55\ufe0f\u200d\U0001f000-\U0001faff]"
CLOSERS = rf"""["'”’)\]»›“]*+(?:\[\d{{1,3}}\])*+(?:[^\S\n]++»)?+(?:[^\S\n]?{EMOJI}++)*+"""  # "1990.[1] The"
OPENERS = r"""(?:,,)?+["'`“‘„«‹¿¡(\[*–—-]*+\s?["'`“‘„«‹¿¡$£€]*"""  # a dash begins speech, and ,, a quote in Dutch
BOUNDARY = re.compile(
    r"""(?P<mark>[.!?…۔؟।॥։。！？｡។။።།፡;:\n])(?:"""
    rf"""(?<=[.!?…۔؟।॥։])(?<![.!?…۔؟।॥։]{{2}})(?P<more>[.!?…۔؟।॥։]*+){CLOSERS}\s++(?={OPENERS}[^\W_a-z])"""
    r"""|(?<=[.!?])(?P<small>)\s+(?=[a-z])"""  # no capitals: "the plan. i just wish"
    r"""|(?<=[.!?])(?<![.!?]{2})[.!?]*+\s++(?=\*)"""  # "a fun movie. *** out of"
    rf"""|(?<=[\u0370-\u03ff\u1f00-\u1fff];){CLOSERS}\s++(?={OPENERS}[^\W_a-z])"""  # the Greek question mark
    rf"""|(?<=[\u0531-\u0587]:){CLOSERS}\s++(?={OPENERS}[^\W_a-z])"""  # what many write for the Armenian full stop
    r"""|(?<=[।॥])(?<![।॥]{2})[।॥]*+(?=[\u0904-\u0939\u0985-\u09b9])"""  # Hindi, Bengali: "ठीक है।वह"
    # Not before a Japanese "said": 「行こう。」と
    r"""|(?<=[。！？｡។။።།])[。！？｡។။።།]*+[」』”’）〉》】〕]*+(?!(?<=[」』])(?:と|って))"""
    r"""|(?<=[\u3040-\u30ff\u3400-\u9fff][!?])[!?]*+(?=[\u3040-\u30ff\u3400-\u9fff])"""  # "すごい!楽しかった"
    r"""|(?<=፡)(?<!፡፡)፡++"""  # the Ethiopic full stop in two characters; one stands between words
    # No space: "the end.The actors", "scene...Christ!"; but java.lang.NullPointerException is one name.
    r"""|(?<=[a-z]{2}[.!?])[.!?]*(?=[A-Z][a-z])(?:(?<!\w\.)|(?=[A-Z][^\W\d_A-Z]+(?:[\s,;:'’!?]|$)))"""
    r"""|(?<=[가-힣]{2}[.!?])[.!?]*(?=[가-힣])"""  # likewise in Korean: "재밌네요..아직 안 보신분"
    r"""|(?<=\n))"""
)
TITLE = (  # abbreviations before a name or a number
    r"[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Lt|Col|Gen|Capt|Sgt|Rev|Hon|Gov|Sen|Rep|vs?|Vol|pp|cf|e\.g|i\.e"
    r"|approx|Mt|Ft|κκ?|κα|[Δδ]ρ|βλ|αρ(?:ιθ)?|(?:[a-z]\.)+[a-z]"
)
DOTTED = (  # "J.K. Rowling", or "in the U.S. The"; "z. B. Hunde", "u. a. Berlin" in German
    r"Ph\.D|(?:[A-Z]\.)+[A-Z]|[ap]\.m|Inc|Ltd|Co|(?:[a-z]\. )+[A-Za-z]|(?:[a-z]\.)+[A-Z]"
)
COURT = (  # "Fed. R. Civ. P. 12(b)", "9 F. Supp. 2d 1 (9th Cir. 2003)"; small, some are words: the pub
    r"Fed|Civ|Crim|Evid|App|Supp|Cir|Ct|Cl|Dist|Stat|Pub|Reg|Ed|Corp|Cal|Mass|Tex|Fla|Const"
)
NAME_FOLLOWS = re.compile(rf"(?:^|[\s(\"'])(?:(?P<dotted>{DOTTED}|{COURT})|{TITLE}|Dkt|Ex)$")
LOWER_FOLLOWS = re.compile(
    rf"(?:^|[\s(\"'])(?:{TITLE}|{DOTTED}|etc|no|feat|ft|dept|ca|min|max|al|lbs?|oz|pts|Ave|Rd|ibid|op|(?-i:Id|Br))$|\.$",
    re.IGNORECASE,
)
STARTER = re.compile(  # words that begin sentences, and hardly ever names
    r"(?:The|This|That|These|Those|There|It|He|She|They|We|I|You|His|Her|Its|Their|My|Our|In|On|At|A|An|And|But|As|By|For"
    r"|From|With|To|After|Before|During|Since|If|When|While|Although|However|Then|So|Soon|Also|Too|Another|Both|Some|Many"
    r"|Most|Following|Furthermore|Anyway|Now|What|Who|Why|How|Is|Was|Did|Do|Not|No)\b"
)
NUMBER = re.compile(
    r"(?:^|\W)[Nn]o$|(?:^|[\s(\[])(?:pp?|[Ff]igs?|[Ee]qs?|Secs?|s|[Vv]ols?|[Cc]h|Art|[Nn]os|[Oo]p|Rs|ver"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|\d+ (?:ft|in|oz|lbs?))$|\([bcdr]$"
)
BORN = re.compile(r"(?:^|[\s\[])[bcdr]$")  # "c. 1850", but "option c. 20 people"
YEAR = re.compile(r"\d{3,4}(?!\d)")
ET_AL = re.compile(r"\bet al$")
YEAR_OR_BRACKET = re.compile(r"\d{4}|\(")
# A letter by itself, in scripts that spell words; none of Hebrew, where it may follow a quote: ארה"ב.
INITIAL = re.compile(r"(?:^|[\s(\"'«„])([^\W\d_A-Za-z\u0590-\u05ff가-힣\u3040-\u30ff\u3400-\u9fff])$")
SHORT_OR_NUMBER = re.compile(r"(?:^|\W)(?:[^\W\d_]{1,3}|\d+)$")
SMALL_LETTER, CAPITAL_LETTER = re.compile(r"(?:^|[\s(\"'])[a-z]$"), re.compile(r"[A-Z]\.\s")  # "z. B. "
ORDINAL = re.compile(r"(?:^|[^\w.,])\d\d?$")  # "am 5. Mai" in German, whose nouns are capital
DATED = re.compile(
    r"(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert)"
)
GEORGIAN = re.compile(r"[\u10d0-\u10ff]")  # has no capitals
FAR = 1000  # characters without a letter at the beginning of a sentence; more would be read again at each mark
FIRST_LETTER = re.compile(r"[\W\d_]*([^\W\d_])")
ENUMERATOR = re.compile(r"\s*[(\[]?\d{1,3}$")  # "2. The music" is one sentence
ACCENTED = re.compile(r"[À-ÖØ-öø-ɏḀ-ỿ]")
ACCENTED_SHARE = 0.005  # of a text's characters, above which it is not English
CONSONANTS = "b-df-hj-np-tv-xzßçćčďđğķļľłńņňñřśşšșţťțźżžðþ"
WITHOUT_VOWEL = re.compile(rf"(?:^|[^\w.])(?:[{CONSONANTS}]|[B-DF-HJ-NP-TV-XZ](?!$))[{CONSONANTS}]{{0,3}}$")  # "Nr. 5"
# Abbreviations in languages whose Latin letters have accents: before a name, and before a number.
BEFORE_NAME = re.compile(
    r"(?:^|[\s(\"'„«])(?:[Tt][Pp]|P?GS|ThS|TS|BS|Sra|Srta|Dra|Ing|Lic|Av|ul|im|prof|ks|św|inż|m\.in|nadkom"
    r"|podkom|paraf|proj|Doç|Cad|Sok|Mah|Mio)$"
)
BEFORE_NUMBER = re.compile(
    r"(?:^|[\s(\"'„«])(?:Abs|[Aa]rt|ust|pkt|ok|ca|godz|rys|tel|ur|pocz|págs?|núm|séc|Conf|čl)$|[a-zß]str$"
)
DATE = re.compile(r"(?:^|[\s(])\d{4}(?:\. \d{1,2}(\. \d{1,2})?)?$")  # "2023. 5. 12. 서울에서"
NUMBER_AND_STOP = re.compile(r"\d{1,2}\.\s")
# Scripts without capitals; one letter of them may be several characters: தி.
FIRST_UNCASED = "\u0590"
UNCASED = r"[\u0590-\u0fff\u10d0-\u10ff]"
DOTTED_UNCASED = re.compile(rf"(?:^|[^\w.])(?:{UNCASED}{{1,4}}\.)+{UNCASED}{{1,4}}$")  # "ق.م. 300", "தி.மு.க. அரசு"
TAMIL_INITIAL = re.compile(r"(?:^|[\s(\"'])(?:[க-ஹ][\u0bbe-\u0bcc]|[எஆ][க-ஹ]\u0bcd)$")  # "கே. வரதராஜன்"
OF_DANDA = re.compile(r"[\u0900-\u09ff]$")  # Devanagari and Bengali, which end sentences with ।
THAI = re.compile(r"[\u0e00-\u0e7f]$")


def split_sentences(text: str) -> list[str]:
    """The sentences of a cleaned text, in order; only white space between them is removed."""
    sentences, start, is_accented, has_danda = [], 0, has_accents(text), "।" in text
    for match in BOUNDARY.finditer(text):
        if continues(text, start, match, is_accented, has_danda):
            continue
        sentence = text[start : match.end()].strip()
        if sentence:
            sentences.append(sentence)
        start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def has_accents(text: str) -> bool:
    """Whether a text is in a language whose Latin letters have accents."""
    most = len(text) * ACCENTED_SHARE
    return len(text.encode(errors="replace")) - len(text) > most and len(ACCENTED.findall(text)) > most


def continues(text: str, start: int, match: re.Match[str], is_accented: bool, has_danda: bool) -> bool:
    """Whether the sentence that begins at `start` continues after the mark of a match, such as that of an abbreviation.

    Before a small letter it continues, unless it began with one: then the text has no capitals. In English texts, which
    often lack some, it continues after abbreviations alone.
    """
    if "\n" in match[0]:  # a line ends a sentence whatever its last word is
        return False
    before = max(0, start - 1, match.start() - 12), match.start()
    precedes_a_to_z = match["small"] is not None
    following = text[match.end() : match.end() + 1]
    has_capitals = is_accented if precedes_a_to_z else match["mark"] in ".!?…;:" and is_small(following)
    if has_capitals:  # the language has, and a small letter follows
        first = FIRST_LETTER.match(text, start, start + FAR)
        if first is None or not is_small(first[1]):
            return True
        if match["mark"] == "." and SHORT_OR_NUMBER.search(text, *before):
            return True  # "т. е. в", "18. şahıs"
    if match["mark"] != ".":
        return False
    if precedes_a_to_z:
        return LOWER_FOLLOWS.search(text, *before) is not None
    if match["more"] != "":
        return False
    if text[match.start() - 1] >= FIRST_UNCASED and is_uncased_abbreviation(text, before, has_danda):
        return True
    if CAPITAL_LETTER.match(text, match.end()) and SMALL_LETTER.search(text, *before):
        return True
    if match.start() - start < 6 and ENUMERATOR.match(text, start, match.start()):
        return True
    if is_accented and (WITHOUT_VOWEL.search(text, *before) or BEFORE_NAME.search(text, *before)):
        return True
    if (initial := INITIAL.search(text, *before)) and not is_small(initial[1]):
        return True
    if DATED.match(text, match.end()) and ORDINAL.search(text, *before):
        return True
    if name := NAME_FOLLOWS.search(text, *before):
        return name["dotted"] is None or not STARTER.match(text, match.end())
    if date := DATE.search(text, max(0, match.start() - 14), match.start()):
        return date[1] is not None or NUMBER_AND_STOP.match(text, match.end()) is not None
    if following != "(" and not following.isdigit():
        return False
    if is_accented and BEFORE_NUMBER.search(text, *before):
        return True
    if ET_AL.search(text, *before):
        return YEAR_OR_BRACKET.match(text, match.end()) is not None
    if BORN.search(text, *before) and YEAR.match(text, match.end()):
        return True
    return following != "(" and NUMBER.search(text, *before) is not None


def is_uncased_abbreviation(text: str, before: tuple[int, int], has_danda: bool) -> bool:
    """Whether a full stop after a letter of a script without capitals is that of an abbreviation."""
    if THAI.search(text, *before) or (has_danda and OF_DANDA.search(text, *before)):
        return True
    return (DOTTED_UNCASED.search(text, *before) or TAMIL_INITIAL.search(text, *before)) is not None


def is_small(letter: str) -> bool:
    """Whether a letter is a small one of a script that has capitals; Georgian ones count as small in Unicode."""
    return letter.islower() and not GEORGIAN.match(letter)
