"""Cleaning: removes markup, wiki remnants, wrapped lines, control characters and superfluous white space."""

import html
import math
import re
import unicodedata
from collections.abc import Callable
from html.entities import html5
from itertools import pairwise

# What has another name in angle brackets is text: <URL>, <sighs>, <e1>Oslo</e1>, List<String>.
BLOCKS = (
    "address|article|aside|blockquote|body|br|caption|center|details|div|d[dlt]|fieldset|figcaption|figure|footer|form|"
    "h[1-6r]|header|li|main|nav|[ou]l|option|p|pre|section|summary|table|title|tr"
)
INLINE = (  # elements of HTML, and of wiki pages
    "a|abbr|acronym|area|audio|b|base|bdi|bdo|big|button|canvas|cite|code|col|colgroup|data|del|dfn|dialog|em|embed|"
    "font|frame|frameset|head|html|i|iframe|img|input|ins|kbd|label|legend|link|map|mark|menu|meta|meter|noscript|"
    "object|optgroup|output|param|picture|progress|q|rp|rt|ruby|s|samp|script|select|small|source|span|strike|strong|"
    "style|sub|sup|svg|tbody|td|template|textarea|tfoot|th|thead|time|tt|u|var|video|wbr|"
    "chem|gallery|hiero|imagemap|includeonly|indicator|mapframe|math|noinclude|nowiki|onlyinclude|poem|ref|references|"
    "score|syntaxhighlight|templatestyles|timeline"
)
# After the < of a tag: not one in `backticks`, which is a name. The first of these follows no word.
NO_NAME = r"(?!(?:(?<=^`<)|(?<=[^\w`]`<))[^`<>\n]*>`)"
HIDDEN = re.compile(  # from its beginning
    rf"<{NO_NAME}(?:(!--)|(?:(ref|script|style)(?=[\s/>])[^<>]{{0,500}}>))", re.IGNORECASE
)
HIDDEN_ENDS = {  # to its end, and the longest in characters: a stray end may follow much later
    "!--": (re.compile("-->"), 20_000),
    "ref": (re.compile("</ref>", re.IGNORECASE), 2000),
    "script": (
        re.compile("(?<!`)</script>|</script>(?!`)", re.IGNORECASE),
        10_000_000,
    ),  # pages have their data in some
    "style": (re.compile("(?<!`)</style>|</style>(?!`)", re.IGNORECASE), 10_000_000),
}
BARE = re.compile("<[a-z]+>", re.IGNORECASE)
PROSE_LINE = re.compile(r" \W{0,3}[^\W\d_][^\n;{}=()<>/]{0,600}+\n")  # the rest of a line, of no code
ATTRIBUTE = r"""[\w:@.-]++\s*+=\s*+(?:"[^"]{0,4000}+"|'[^']{0,4000}+'|[^\s"'<>]++)"""
FLAG = (
    r"(?:allowfullscreen|async|autofocus|autoplay|checked|compact|controls|default|defer|disabled|download|hidden|ismap|"
    r"itemscope|loop|multiple|muted|nomodule|noshade|novalidate|nowrap|open|playsinline|readonly|required|reversed|"
    r"selected|data-[\w-]+)(?=[\s/>])"
)
ATTRIBUTES = rf"(?:(?:\s++|(?<=[\"']))(?:{ATTRIBUTE}|{FLAG}))*+\s*+"  # "x<p and z>w" has none
# From its beginning to its end; with <pre> inside it is code. Its line ends are spaces to a browser.
PARAGRAPH = re.compile(rf"<p{ATTRIBUTES}>[^<]*+(?:<(?!/?p(?:re)?[\s>])[^<]*+)*+</p\s*>", re.IGNORECASE)
# Of tags with a space after the <, as tokenized texts have them, only < br / >: "a < p > b" has none.
LINE_BREAK = re.compile(rf"<{NO_NAME}(?:/?(?:{BLOCKS}){ATTRIBUTES}/?|\s+br(?:\s*/)?)\s*>", re.IGNORECASE)
# One such tag inside a word leaves it whole: H<sub>2</sub>O. A superscript may be a footnote, and a link another word.
INSIDE_WORD = re.compile(
    rf"<(?<=\w<)/?(?:abbr|bdi|bdo|big|b|em|font|i|mark|small|span|strike|strong|sub|s|u|wbr){ATTRIBUTES}/?>(?=\w)",
    re.IGNORECASE,
)
TAG = re.compile(rf"<{NO_NAME}/?(?:{INLINE}){ATTRIBUTES}/?>|<!DOCTYPE\s[^<>]{{0,500}}>", re.IGNORECASE)
# Without attributes and nowhere closed, a word is a placeholder: copy <source> <target>. So is what directly follows a
# name: List<Object>, fn f<S>. These need no end.
UNCLOSED = "br|hr|p|li|d[dlt]|t[dhr]|option|wbr|col|colgroup|thead|tbody|tfoot|html|head|body|nowiki"
PLACEHOLDER = re.compile(rf"<(?!(?:{UNCLOSED}|references)>)(?:(?<=\w<)[a-z]{{1,2}}|[a-z]{{3,}})>")  # in lower case
CLOSING = re.compile("</[a-z]+>")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff\ufffd\ud800-\udfff]")
DIRECTIONS = re.compile(r"[\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069]")  # of writing, and what joins words
WINDOWS = {  # characters of Windows-1252 that were read as Latin-1: browsers show them, too, and 0x85 is "…"
    chr(byte): bytes([byte]).decode("cp1252")
    for byte in range(0x80, 0xA0)
    if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}
BLANKS = re.compile(r"[^\S\n ][^\S\n]*| [^\S\n]+")  # white space other than a single space
NEWLINES = re.compile(r"\n[\n ]+")

# Remnants in wiki dumps. Braces and brackets followed by a space are kept: `[[ -f file ]]` is shell code.
TEMPLATE = re.compile(r"\{\{(?=\S)[^{}]{0,2000}\}\}")
# {{name}} may be a blank in a form, and \frac{{P(B|A)}}{{P(B)}} is LaTeX.
FILLED_TEMPLATE = re.compile(r"\{\{(?=\S)(?![^{}|]{0,200}\w\()[^{}|\\$]{0,200}\|[^{}]{0,2000}\}\}")
# Not `[[:space:]]` and `[['a', 'b']]`, which are code.
LINK = re.compile(
    r"\[\[(?=\S)(?![-+\d.]+\s*,|:[a-z]+:\]|\"[^\"\n]*\"\s*,|'[^'\n]*'\s*[,\]])"
    r"(?P<page>[^\[\]|\n]{1,300})(?:\|(?P<shown>[^\[\]\n]{0,500}))?\]\]"
)
OF_WIKI = re.compile(r"[\sA-Z]|[^\x00-\x7f]|\[\d{3,4}\]")  # in a link; others may be code: [[nodiscard]]
NAME = re.compile(r"[A-Za-z0-9_)\]]")  # before [[ in code: lst[[i]]
NAMES = re.compile(r"[A-Za-z_][\w.]*(?:\s*,\s*[A-Za-z_][\w.]*)+")
CALL, EQUALS = re.compile(r"\w\($"), re.compile(r"=\s?$")  # before names in [[ ]]: np.array([[x, y]]), a = [[b, c]]
HIDDEN_LINKS = ("file:", "image:", "category:")
# "ion () has": the dump lost the content. Other empty brackets are code or logs: "= ()", a line that ends in "main ()".
EMPTY_BRACKETS = re.compile(r" \((?:(?<=[^\W\d_] \()|(?<=[\"'”’»)] \())[\s;,:]*\)(?= (?!\n)|[,.)])")
# "Aruba ( ; , Papiamento: )", but not "(; bye :)"
BRACKET_START = re.compile(r"\((?<= \()\s*+[;,][\s;,]*+(?=[^()\n]{0,299}[^()\n:;=-]\))")
TABLE_LINE = re.compile(r"^(?:[!{}-]|[^\S\n])*+\|(?:[|!{}-]|[^\S\n])*+$", re.MULTILINE)

ENDS_SENTENCE = re.compile(  # last, the Greek question mark, and the colon that many write for the Armenian full stop
    r"(?:[.!?…。！？।॥۔؟։።။།។]|(?<=[\u0370-\u03ff\u1f00-\u1fff]);|(?<=[\u0531-\u0587]):)[\"'”’)\]*_]*$"
).search
BROKEN_COMPOUND = re.compile(r"\w-$").search
BROKEN_WORD = re.compile(r"\w[\u00ad¬]$").search  # a soft hyphen, or ¬, which scanned books have instead
UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]"  # Thai to Han: no spaces
STARTS_UNSPACED, ENDS_UNSPACED = re.compile(UNSPACED).match, re.compile(UNSPACED + "$").search
UNSPACED_CHARACTER = re.compile(UNSPACED)
# Without the semicolon "&copy=2" is part of a URL, though browsers would show its first five characters as one.
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
NARROWEST, WIDEST = 40, 120  # characters of a wrapped line
WIDE = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")  # kana and Han take two columns
NARROWEST_WIDE = 24  # characters; headlines and lines of verse often have some twenty
LEAST_WITHOUT_CAPITALS = 4  # pairs of lines: the ends of fewer may be anyone's line ends, as in posts


def clean_text(text: str) -> str:
    """Plain text with one space between words and one newline between paragraphs, in Unicode NFC."""
    if "\n" in text:
        text = unwrap(text)
    if "<" in text:
        text = PARAGRAPH.sub(lambda paragraph: paragraph[0].replace("\n", " "), without_hidden(text))
        text = without_tags(text)
    if "&" in text:
        text = ENTITY.sub(character, text)
    text = without_wiki_remnants(text)
    text = CONTROL.sub(visible, unicodedata.normalize("NFC", DIRECTIONS.sub("", text)))
    return NEWLINES.sub("\n", BLANKS.sub(" ", text)).replace(" \n", "\n").strip()


def character(entity: re.Match[str]) -> str:
    """What an entity stands for; unknown names stay: of &current; `html.unescape` would take the first five letters."""
    written = entity[0]
    return html.unescape(written) if written[1] == "#" else html5.get(written[1:], written)


def visible(control: re.Match[str]) -> str:
    """What stands in place of a control character."""
    return WINDOWS.get(control[0], " ")


def is_unspaced(text: str) -> bool:
    """Whether most of a text is in scripts that put no spaces between words."""
    return 2 * len(UNSPACED_CHARACTER.findall(text)) > len(text)


def without_tags(text: str) -> str:
    """Remove tags, and put line breaks in the place of those that begin or end a block."""
    small = text.lower()
    unclosed = set(PLACEHOLDER.findall(small)).difference(end.replace("/", "") for end in CLOSING.findall(small))

    def unless_text(by: str) -> Callable[[re.Match[str]], str] | str:
        if not unclosed:
            return by  # which needs no call for each tag
        return lambda tag: tag[0] if tag[0].lower() in unclosed and is_placeholder(tag) else by

    text = INSIDE_WORD.sub(unless_text(""), LINE_BREAK.sub(unless_text("\n"), text))
    return TAG.sub(unless_text(" "), text)


def is_placeholder(tag: re.Match[str]) -> bool:
    """Whether a tag that is nowhere closed is a word in angle brackets, or stands directly after a name."""
    return len(tag[0]) > len("<em>") or tag.string[tag.start() - 1 : tag.start()].isalnum()


def without_hidden(text: str) -> str:
    """Remove what no reader of a page sees, such as comments; what has no end, or one too far away, stays.

    So does a mark that a sentence names ("Put it in <script> and </script>"), with all that follows up to its end.
    """
    pieces, at = [], 0
    ends: dict[str, int] = {}  # where the next end of each kind is; beyond the text, if there is none
    starts = list(HIDDEN.finditer(text))
    again = next_of_kind(starts)
    for number, start in enumerate(starts):
        if start.start() < at:  # inside of what is removed
            continue
        kind, stop = (start[1] or start[2]).lower(), start.end()
        if not start[0].endswith("/>"):
            closing, longest = HIDDEN_ENDS[kind]
            if ends.get(kind, -1) < stop:
                end = closing.search(text, stop)
                ends[kind] = end.start() if end else 2 * len(text) + longest
            if ends[kind] - stop > longest or is_named(start, kind, again[number], ends[kind]):
                continue
            stop = text.index(">", ends[kind]) + 1
        pieces.append(text[at : start.start()])
        at = stop
    return "".join([*pieces, text[at:]])


def next_of_kind(starts: list[re.Match[str]]) -> list[int]:
    """Where the next of the same kind begins, for each; -1 for the last."""
    following: dict[str, int] = {}
    places = []
    for start in reversed(starts):
        kind = (start[1] or start[2]).lower()
        places.append(following.get(kind, -1))
        following[kind] = start.start()
    return places[::-1]


def is_named(start: re.Match[str], kind: str, again: int, end: int) -> bool:
    """Whether a mark is named in a text and hides nothing, judged by what follows up to `end`.

    Another one and a blank line come before it, or the rest of its line is prose. Pages give some attributes.
    """
    text, stop, is_code = start.string, start.end(), kind in ("script", "style")
    if is_code and not BARE.fullmatch(start[0]):
        return False
    if stop <= again < end and text.find("\n\n", stop, again) >= 0:
        return True
    return is_code and PROSE_LINE.match(text, stop, end) is not None


def without_wiki_remnants(text: str) -> str:
    """Remove templates, link syntax, lines of table marks, and brackets whose content is lost."""
    if "[[" in text or "{{" in text:
        is_wiki = any(map(is_wiki_link, LINK.finditer(text)))
        template, shown = (TEMPLATE, link_text) if is_wiki else (FILLED_TEMPLATE, link_text_unless_code)
        for _ in range(3):  # links and templates nest
            text = LINK.sub(shown, template.sub("", text))
    if "|" in text:
        text = TABLE_LINE.sub("", text)
    if " (" in text:
        text = BRACKET_START.sub("(", EMPTY_BRACKETS.sub("", text))
    return text


def follows_name(link: re.Match[str]) -> bool:
    """Whether a name stands directly before a link, as in code: lst[[i]]."""
    return NAME.match(link.string, max(0, link.start() - 1), link.start()) is not None


def is_code(link: re.Match[str]) -> bool:
    """Whether it is plainly no link, in any text: names in a call or after an equals sign, or a number after a name."""
    page, before = link["page"], link.string[max(0, link.start() - 2) : link.start()]
    if link["shown"] is not None:
        return False
    if NAMES.fullmatch(page):
        return bool(CALL.search(before)) or (page.islower() and bool(EQUALS.search(before)))
    return page.isdigit() and len(page) < 3 and follows_name(link)  # in[[1999]] is a year


def is_wiki_link(link: re.Match[str]) -> bool:
    """Whether a link shows that the text is of a wiki, and no code."""
    is_plain = OF_WIKI.search(link[0]) is not None and not follows_name(link) and not is_code(link)
    return link["shown"] is not None or is_plain


def link_text_unless_code(link: re.Match[str]) -> str:
    """The visible text of a link, or the link as it is directly after a name."""
    return link[0] if follows_name(link) else link_text(link)


def link_text(link: re.Match[str]) -> str:
    """The visible text of a wiki link; what is plainly code stays."""
    if is_code(link):
        return link[0]
    if link["page"].lower().startswith(HIDDEN_LINKS):
        return ""
    return (link["shown"] or link["page"]).split("|")[-1]


def unwrap(text: str) -> str:
    """Join the lines of a text that is wrapped at a fixed width, so that a line's end does not end a sentence."""
    if len(text) > WIDEST * (text.count("\n") + 1):
        return text
    blocks = blocks_of_lines(text)
    if not is_wrapped(blocks):
        return text
    width = wrap_width(blocks)
    return "".join(joined_lines(block, width) + "\n\n" for block in blocks)


def joined_lines(block: list[str], width: int) -> str:
    """The lines of a block that is wrapped at a width; where the next word would have fitted, the line's end stays."""
    joined = [block[0]]
    for line, following in pairwise(block):
        if BROKEN_WORD(line):
            joined[-1] = line[:-1]
            joined.append(following)
            continue
        if is_alone(line) and is_alone(following):  # of a list
            joined += ["\n", following]
            continue
        is_whole = BROKEN_COMPOUND(line) or (ENDS_UNSPACED(line) and STARTS_UNSPACED(following))
        space = "" if is_whole else " "
        # Some books have lines that end a word or two early.
        goes_on = following[0].islower() and len(line) > 0.8 * width and not ENDS_SENTENCE(line)
        joined += [space if goes_on or is_full(line, following, width, width // 4) else "\n", following]
    return "".join(joined)


def blocks_of_lines(text: str) -> list[list[str]]:
    """The runs of lines that no blank line interrupts, without white space around the lines."""
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line := line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def is_wrapped(blocks: list[list[str]], least_pairs: int = 1) -> bool:
    """Whether lines end where the next word would not have fitted, mostly within a sentence that the next continues.

    Lines that begin with a command or a comment of LaTeX say nothing about it, nor do those without a space. Where no
    capital shows which lines begin a sentence, more lines are needed, and in scripts without spaces fuller ones.
    """
    pairs = [
        pair
        for block in blocks
        for pair in pairwise(block)
        if not any(line[0] in "\\%" or is_alone(line) for line in pair)
    ]
    are_wide, are_unspaced = (
        2 * sum(script.search(line[-1]) is not None for line, _ in pairs) > len(pairs)
        for script in (WIDE, UNSPACED_CHARACTER)
    )
    cased = [following[0].islower() for _, following in pairs if following[0].lower() != following[0].upper()]
    has_capitals = 4 * len(cased) >= len(pairs) and any(line[0].isupper() for pair in pairs for line in pair)
    narrowest = NARROWEST_WIDE if are_wide else NARROWEST
    least_pairs = least_pairs if has_capitals else max(least_pairs, LEAST_WITHOUT_CAPITALS)
    if len(pairs) < least_pairs or not narrowest <= (width := wrap_width(blocks)) <= WIDEST:
        return False
    is_open = [not ENDS_SENTENCE(line) for line, _ in pairs]
    longest = 2 if are_wide else 6 if are_unspaced else width // 4  # Chinese breaks before a mark, Thai before a word
    return (
        sum(is_full(line, following, width, longest) for line, following in pairs) > 0.7 * len(pairs)
        and sum(is_open) > 0.6 * len(pairs)
        and 2 * sum(following[0].isalpha() for _, following in pairs) >= len(pairs)  # not the lines of a table
        and (sum(cased) >= 0.4 * len(cased) or 4 * len(cased) < len(pairs))  # where few are, they are foreign names
    )


def wrap_width(blocks: list[list[str]]) -> int:
    """The length of the longest lines, but for one in fifty. Those with a URL, which nothing wraps, do not count."""
    lines = [line for block in blocks for line in block]
    lengths = sorted(len(line) for line in lines if "://" not in line and not is_alone(line)) or sorted(map(len, lines))
    return lengths[math.ceil(0.98 * (len(lengths) - 1))]


def is_alone(line: str) -> bool:
    """Whether a line is one word, URL or path, so that nothing can wrap it."""
    return " " not in line and not UNSPACED_CHARACTER.search(line)


def is_full(line: str, following: str, width: int, longest: int) -> bool:
    """Whether the next line's first word, or the `longest` characters of it, would not have fitted into a line."""
    word = len(following.partition(" ")[0])
    return len(line) + 1 + min(word, longest) > width  # a sentence without spaces is not a word
