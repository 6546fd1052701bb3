"""Cleaning: plain text in NFC, without markup and wiki remnants."""

import random
import textwrap

import pytest

from bertpre.data.cleaning import ENDS_SENTENCE, clean_text


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain text", "plain text"),
        ("  two\t blanks  ", "two blanks"),
        ("one<br /><br />two<BR>three<p>four</p>", "one\ntwo\nthree\nfour"),
        ("<p class=a>one\ntwo<br>\nthree</p>\n<p>four\n<p>five\nsix</p>", "one two\nthree\nfour\nfive six"),
        ("<p>code\n<pre>a\nb</pre>\n</p> a<p\nb", "code\na\nb\na<p\nb"),
        ("an <i>italic</i> word", "an italic word"),
        (
            "H<sub>2</sub>O, un<b>believ</b>able, Donau<wbr>dampf, <span class='cap'>T</span>he",
            "H2O, unbelievable, Donaudampf, The",
        ),
        ("E=mc<sup>2</sup> as Einstein<sup>1</sup> wrote", "E=mc 2 as Einstein 1 wrote"),
        ("<a href='/'>Home</a><a href='/shop'>Shop</a> <b>one</b><i>two</i>", "Home Shop one two"),
        ('<h1 class="a">Title</h1>Text<ul><li>one<li>two</ul>', "Title\nText\none\ntwo"),
        ("shown <!-- not\nshown --> again", "shown again"),
        (f"shown<!--{'x' * 9000}--> again <!-- without an end", "shown again <!-- without an end"),
        ("<!DOCTYPE html><main>One</main><style>p {color: red}</style><aside>Two</aside>", "One\nTwo"),
        ('x<iframe src="https://a.b/c" allowfullscreen></iframe><p data-foo class=a>y', "x\ny"),
        ("see <ref-1> and <reference> until </ref> ends", "see <ref-1> and <reference> until ends"),
        ("<user_1> saw <URL> at <NUM>, <sighs>", "<user_1> saw <URL> at <NUM>, <sighs>"),
        ("<e1>Acme</e1> bought List<String> x; vector<int> v", "<e1>Acme</e1> bought List<String> x; vector<int> v"),
        ('<a href="x">link</a>', "link"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("I <3 it, a<b", "I <3 it, a<b"),
        ("if x<y and the others stay at z>w", "if x<y and the others stay at z>w"),
        ("for (i=0;i<n;i++) { a[i]>b }", "for (i=0;i<n;i++) { a[i]>b }"),
        ("see <https://x.org/a?b=c>", "see <https://x.org/a?b=c>"),
        (f"<a href=\"{'x' * 500}\" title='a > b'>this</a> page", "this page"),
        ('<td nowrap width=3>a</td><font color="red"size=2>b</font>', "a b"),
        ("fish &amp; chips &quot;today&quot;", 'fish & chips "today"'),
        ("&lt;b&gt; is a tag", "<b> is a tag"),
        ("dos\r\nlines\r\n\r\nhere", "dos\nlines\nhere"),
        ("zero\u200bwidth\ufeff and\x00null", "zero width and null"),
        ("cafe\u0301", "caf\u00e9"),
        ("non\u00a0breaking", "non breaking"),
        ("日本語 と emoji 🎬", "日本語 と emoji 🎬"),
        (" \n\t<br/> ", ""),
        ("one< br / >two < br > three", "one\ntwo\nthree"),  # as tokenized texts have it
        (
            "Use <script> to embed.\n\nA chapter.\n\nClose it with </script>.",
            "Use to embed.\nA chapter.\nClose it with .",
        ),
        (
            "Put CSS into <style>.\n\nA chapter.\n\n<style>\np {color:red}\n</style>\n\nLast.",
            "Put CSS into <style>.\nA chapter.\nLast.",
        ),
        ("Begin with <!-- and\n\ngo on. <!-- hidden --> Last", "Begin with <!-- and\ngo on. Last"),
        ("a <script> var x = 1;\n\nvar y;</script> b", "a b"),
        ("fit([[age, income]]), x[[1]] in [[Rome|it]]", "fit([[age, income]]), x[[1]] in it"),
        ("We need x < p > 0 and a < tr > b", "We need x < p > 0 and a < tr > b"),
        ("", ""),
        ("List<Object> xs; fn f<S>(s: S); std::list<map> m", "List<Object> xs; fn f<S>(s: S); std::list<map> m"),
        ("a<i>b</i> c<Center>d</Center> e<br>f<p>g", "ab c\nd\ne\nf\ng"),
        ("a <b>word", "a word"),
        ("at <address> since <Time>: copy <source> <target>", "at <address> since <Time>: copy <source> <target>"),
        ("<label> <input> <output> <data> <object>", "<label> <input> <output> <data> <object>"),
        ("user<i>99 if a<b>c (?P<S>6[0-1])", "user<i>99 if a<b>c (?P<S>6[0-1])"),
        ("<label>Name</label> <input type=text> <time>noon</time> <li>one<hr>two", "Name noon\none\ntwo"),
    ],
)
def test_markup_control_characters_and_white_space_are_removed(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


@pytest.mark.parametrize("tag", ["script", "style"])
def test_a_long_script_or_style_is_removed(tag: str) -> None:
    assert clean_text(f"shown <{tag}>{'x' * 2_000_000}</{tag}>again") == "shown again"


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("The ammonium ion () has", "The ammonium ion has"),
        ("Aruba ( ; , Papiamento: ) is", "Aruba (Papiamento: ) is"),
        ("Albedo (; from Latin albedo) is", "Albedo (from Latin albedo) is"),
        ("see [[Sudan|the Sudan]] and [[Egypt]]", "see the Sudan and Egypt"),
        ("text [[File:a.jpg|thumb|260px|[[Sabu-Jaddi]] Rock Art]] goes on", "text goes on"),
        ("end\n[[Category:Conflicts in 1916]]\n", "end"),
        ("War {{sfn (old)|Ek|2014}} ended", "War ended"),
        ("War {{cite web|title={{lang|en|X}}|date=2014}} ended<ref name=a>Source, p. 3</ref>.", "War ended."),
        ("a\n|||||\nb", "a\nb"),
        ("War [[1990]] {{citation needed}} {{lang|en|X}} ended", "War 1990 ended"),
        ('Micah (), "avel" (; ) and the Oder () met (ship ()).', 'Micah, "avel" and the Oder met (ship).'),
        ("a<ref name=x/> b", "a b"),
        # only looks like wiki markup
        ("call main() now (really)", "call main() now (really)"),
        ("if [[ -f file ]]; then {{ user.name }}", "if [[ -f file ]]; then {{ user.name }}"),
        ("either | or", "either | or"),
        ("connection from 222.33.90.199 () at Mon", "connection from 222.33.90.199 () at Mon"),
        ("__slots__ = ()", "__slots__ = ()"),
        ("get('subject', ()):", "get('subject', ()):"),
        ("int\nmain ()\n{", "int\nmain ()\n{"),
        ("where is {{Order Number}} now", "where is {{Order Number}} now"),
        (r"\textbf{{\em hello}}", r"\textbf{{\em hello}}"),
        (r"\frac{{P(B|A)}}{{P(B)}}", r"\frac{{P(B|A)}}{{P(B)}}"),
        ("grep '[[:space:]]' f and ${{matrix.os}}", "grep '[[:space:]]' f and ${{matrix.os}}"),
        (r"lst[[i]] and \frac{{a}}{{b}}", r"lst[[i]] and \frac{{a}}{{b}}"),
        ("df[['a','b']] with f'{{x}}'", "df[['a','b']] with f'{{x}}'"),
        ("[[nodiscard]] and {{name}}", "nodiscard and {{name}}"),
        ("[[Berlin]][[Germany]], 2nd[[File:x.jpg|thumb|a caption]]", "BerlinGermany, 2nd"),
        ("anti[[Semitism|semitism]]", "antisemitism"),
        ("北京是[[中国]]的{{lang|zh|首都}}首都。", "北京是中国的首都。"),
        ("x = [[1,2]] + [[-1.5, 2]]", "x = [[1,2]] + [[-1.5, 2]]"),
        ("lol (; see ya :)", "lol (; see ya :)"),
        ("loved it ;) (a lot; twice)", "loved it ;) (a lot; twice)"),
    ],
)
def test_wiki_remnants_are_removed(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


PARAGRAPHS = [
    "The lines of this paragraph are wrapped at the width of an old terminal, as in mail and in many books, and so the "
    "end of a line says nothing about the end of a sentence. It was written by hand, which shows. A well-known trap "
    "is a compound that is broken at its hyphen, and another is a short last line.",
    "Poems and lists are not wrapped.",
    "A second paragraph follows it, after a blank line, and it is long enough to be wrapped once or twice as well.",
]


@pytest.mark.parametrize("width", [50, 72, 79])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_wrapped_lines_are_joined(width: int, end: str) -> None:
    wrapped = "\n\n".join(textwrap.fill(paragraph, width) for paragraph in PARAGRAPHS)
    with_list = f"{wrapped}\n\n- flour\n- milk\n"
    assert clean_text(with_list.replace("\n", end)) == "\n".join([*PARAGRAPHS, "- flour", "- milk"])
    assert clean_text(textwrap.fill(PARAGRAPHS[0], width)) == PARAGRAPHS[0]


def test_wrapped_lines_are_joined_between_commands_of_latex() -> None:
    before, after = "\\section{One}\n% A comment\n", "\n\\begin{center}\n\\caption{Two}\n\\end{center}"
    assert clean_text(before + textwrap.fill(PARAGRAPHS[0], 72) + after) == before + PARAGRAPHS[0] + after


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(PARAGRAPHS),
        "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\nRough winds do shake",
        "- flour, two hundred grams of it, or a little more\n- milk\n- eggs, three of them, and a pinch of salt",
        "First name\nLast name\nstreet and number of the house\ntown",
        "def main():\n    return 0",
    ],
    ids=["paragraphs", "poem", "list", "short lines", "code"],
)
def test_other_lines_are_kept_apart(text: str) -> None:
    assert clean_text(text) == "\n".join(line.strip() for line in text.split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "今日は久しぶりに友達と渋谷でおいしいランチをしてきた\nまた来月も行こうねって約束して帰ってきた",
        "物流很快第二天就收到了包装也很完整无缺而且送货的人很客气\n电池续航一般用一天差不多就没电了不太好",
        "วันนี้ฝนตกหนักมากรถติดทั้งเมืองกลับบ้านไม่ได้เลย\nหิวข้าวมาก",
        "오늘 드디어 기다리던 새 노트북이 도착했어요 포장도 아주 꼼꼼하게 되어 있네요\n배송도 빠르고 좋아요",
        "اليوم ذهبت مع أصدقائي إلى الشاطئ وكان الجو جميلا جدا\nأتمنى أن نعود قريبا",
        "today i went to the beach with my friends and it was great fun\nwe will go again soon",
        "\n".join(
            f"{'上海迪士尼乐园门票价格将于下月起正式上调全文'[: 19 + number % 4]}" for number in range(9)
        ),  # headlines
    ],
    ids=["ja", "zh", "th", "ko", "ar", "small letters", "headlines"],
)
def test_the_lines_of_a_post_without_capitals_stay(text: str) -> None:
    assert clean_text(text) == text


def test_marks_of_the_direction_of_writing_vanish() -> None:
    assert clean_text("\u202bשלום\u200f.\u202c עוד \u2067abc\u2069\u2060def") == "שלום. עוד abcdef"


def test_lines_of_a_script_without_spaces_are_joined_without_one() -> None:
    text = "そのあとわたしたちはえきのちかくにあるおおきなほんやへいってあたらしいほんをさがしました" * 12
    for width in (30, 39, 60):  # on a terminal such characters are two columns wide
        wrapped = "\n".join(text[start : start + width] for start in range(0, len(text), width))
        assert clean_text(wrapped) == text
    parts = [
        "他说：“今天天气很好。”",
        "是的，2019年的天气也很好……",
        "于是他们去ABC公园散步，",
        "后来下雨了，大家都跑回家去了。",
    ]
    mixed = "".join(random.Random(0).choices(parts, k=80))
    for width in range(28, 46):  # lines that end in a quotation mark, a number or a Latin letter too
        wrapped = "\n".join(mixed[start : start + width] for start in range(0, len(mixed), width))
        assert clean_text(wrapped).replace(" ", "") == mixed
    korean = "우리는 그 뒤에 역 가까이에 있는 커다란 책방에 가서 새로 나온 책을 찾아 보았고 " * 12
    assert clean_text(textwrap.fill(korean, 60)) == korean.strip()


@pytest.mark.parametrize("hyphen", ["\u00ad", "¬"])
def test_a_word_that_is_broken_at_a_soft_hyphen_is_whole_again(hyphen: str) -> None:
    in_two = PARAGRAPHS[0].replace("terminal,", f"termi{hyphen} nal,")
    broken = [each for each in (textwrap.fill(in_two, width) for width in range(50, 80)) if f"termi{hyphen}\n" in each]
    assert broken and {clean_text(each) for each in broken} == {PARAGRAPHS[0]}


def test_only_whole_entities_are_decoded() -> None:
    assert clean_text("x.com/?a=1&region=us&copy=2") == "x.com/?a=1&region=us&copy=2"
    assert clean_text("AT&amp;T &lt;3 &#39;s &#x201c; &nosuch; &quot") == "AT&T <3 's \u201c &nosuch; &quot"


def test_what_a_backtick_only_touches_is_a_tag() -> None:
    payload = 'The payload `"><script>alert(1)</script>` is old. A sentence. <script src=x></script> End.'
    assert clean_text(payload) == 'The payload `">` is old. A sentence. End.'
    assert clean_text("Call `foo`<br>`bar` or `baz`<br/>`qux`.") == "Call `foo`\n`bar` or `baz`\n`qux`."
    assert clean_text("He called it `<i>Casablanca</i>'.") == "He called it ` Casablanca '."


@pytest.mark.parametrize("tag", ["script", "style", "b", "div"])
def test_a_tag_in_backticks_is_a_name(tag: str) -> None:
    text = f"Write `<{tag}>` before it.\nClose it with `</{tag}>` at the end."
    assert clean_text(text) == text


def test_unknown_entities_stay() -> None:
    text = "p = &current; q = &param; r = &section;"
    assert clean_text(text) == text


def test_windows_characters_that_were_read_as_latin_1_are_restored() -> None:
    assert clean_text("It\x92s \x93here\x94 \x96 or \x81\x85") == "It’s “here” – or …"


@pytest.mark.parametrize("link", ["https://example.org/" + "x" * 90, "see https://example.org/" + "x" * 90])
def test_a_long_url_does_not_hide_the_width(link: str) -> None:
    lines = textwrap.wrap("the quick brown fox jumps over the lazy dog and runs away from it. " * 12, 72)
    assert clean_text("\n".join(lines) + f"\n\n{link}\n\n" + "\n".join(lines)).count("\n") == 2


def test_the_lines_of_a_table_are_kept_apart() -> None:
    rows = [f"| {name:<20} | what it is and does, {name:<20} |" for name in ("apples", "pears", "plums", "cherries")]
    assert clean_text("\n".join(rows)).count("\n") == 3


def test_a_list_of_urls_or_paths_is_no_wrapped_text() -> None:
    urls = [f"https://example.org/{'page' * number}" for number in range(1, 10)]
    text = "Here are some pages on which more of it can be read\n" + "\n".join(urls)
    assert clean_text(text) == text
    lines = textwrap.wrap("the quick brown fox jumps over the lazy dog and runs away from it. " * 12, 72)
    assert clean_text("\n".join(lines) + "\n\n" + "\n".join(urls)).count("\n") == len(urls)


@pytest.mark.parametrize("end", ["Լավն է։", "Լավն է:", "ကောင်းသည်။", "ល្អ។", "Τι είναι;", "अच्छा॥"])
def test_marks_of_many_scripts_end_a_sentence(end: str) -> None:
    assert ENDS_SENTENCE(end)
    assert not ENDS_SENTENCE("such as:") and not ENDS_SENTENCE("one;")
