"""Sentence boundaries: where sentences end, and that no text is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data.cleaning import clean_text
from bertpre.data.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["One sentence only."],
        ["It was good.", "I liked it!", "Did you?", "Yes…", "Well."],
        ["He said, “Stop!”", "Then he ran.", '"Why?"', "Nobody knew."],
        ["(It ended badly.)", "We left."],
        ["Dr. Smith met Mr. Jones at St. Paul.", "They talked."],
        ["I left.", "Mr. Smith came.", "Dr. Who stayed."],
        ["J. R. R. Tolkien wrote it.", "I read it."],
        ["It cost 3.5 dollars, e.g. a lot.", "See No. 5 for more."],
        ["Roe v. Wade came first.", "J.K. Rowling lives in the U.K.", "The film was made in the U.S.", "It is long."],
        ["He has a Ph.D. in law from Washington, D.C.", "She has none.", "Dr. Li, Ph.D. Chair, left."],
        ["See p. 12, Fig. 3, eq. 4, Sec. 5 (s. 6) and 18 U.S.C. 12.", "It gets 5 stars.", "10 would do."],
        ["Wait... what happened?", "Nothing."],
        ["Smith et al. (2018) and Jones et al. 2018 said so.", "Li et al. have shown it."],
        ["On Jan. 5, 2020 and Sept. 11 it rained.", "A church, built c. 1850 by X (b. 1801, d. 1880), stands."],
        ["See vol. 2, ch. 3, Nos. 5 and Op. 27.", "It is modern art.", "20 artists came in.", "3 others followed."],
        ["He got option b.", "20 people came.", "He liked the Arts.", "30 years later he left."],
        [
            "It ends at 5 p.m.",
            "The train left at 6 p.m. Eastern time.",
            "Acme Inc. Chairs of Acme Inc.",
            "It grew.",
        ],
        ["It fails under Fed. R. Civ. P. 12(b).", "Id. at 140; Roe, 9 F. Supp. 2d 1 (9th Cir. 2003).", "See Ex. A."],
        ["She works for the Fed.", "The rate rose, said Acme Corp.", "He sold."],
        ["i went to the pub.", "my ex has my id.", "i saw her app."],
        ["It was 1990.[1]", "The next year came.[2][3]", "So it went."],
        ["What?!", "No way!!!", "It's over."],
        ["visit example.com for more.", "It is free."],
        ["2001 was the year.", "1984 was not."],
        ["这是一句。", "又一句！", "完了？"],
        ["यह एक वाक्य है।", "Second."],
        ["no capital or full stop"],
        ["i made it a point to see this.", "i was amazed!", "it ends there."],
        ["They asked, why?", "because it is unlike them."],
        ["No.", "How about Alien?", "It was rated No. 7."],
        ["Humour, action, etc. which all make up the film."],
        ["Red, Juvenile as Tupac, Suge, etc.", "Even faked death."],
        ["It came from within (a.k.a. Shivers), is."],
        ["A very fun movie.", "*** out of four."],
        ['"Stop!" he cried.', "A (very!) long film."],
        ["He spoiled it....and left."],
        ["他说：“好。”", "然后走了。"],
        ["これは映画です。", "とても良い！", "見ましたか？"],
        ["هل شاهدت الفيلم؟", "نعم، كان رائعا."],
        ["यह फिल्म है।", "क्या यह अच्छी है?", "हाँ।"],
        ["नमो नमः॥", "अथ कथा।"],
        ["ខ្ញុំបានឃើញ។", "វាល្អ។"],
        ["ကောင်းတယ်။", "ကြည့်ပါ။"],
        ["Ես տեսա։", "Լավն է։"],
        ["Մի պիոներական:", "Այդ հարցի պատասխանի:", "Բայց"],
        ["Note: He came.", "Το είδα: Καλό."],  # a colon of another language
        ["Hij won op de sprint.", ",,Hij zei het.", "Goed."],
        ["映画です｡", "良い｡"],
        ["（そうです。）", "彼は行った。"],
        ["¿Cómo estás?", "¿Bien?", "¡Sí!", "«Vamos», dijo."],
        ["— Кто там?", "— Это я.", "«Войдите!»", "Он вошёл."],
        ["А. С. Пушкин родился в 1799 г. в Москве.", "Он писал стихи, прозу и т. д. и т. п."],
        ["Ο Γ. Σεφέρης ήρθε.", "Έφυγε."],
        ["« Il est parti ! »", "Elle reste."],
        ["Er kam am 5. Mai 1877 im 19. Jahrhundert.", "``Das ist gut'', sagte er.", "$5 kostet es."],
        ["Love it! ❤️", "Will buy again. 😀🎉", "Great."],
        ["ሰላም ነው፡፡", "ደህና ሁን፡፡"],
        ['ארצות הברית, ארה"ב.', "כן."],
        ["Τι κάνεις;", "Καλά, είπε ο κ. Παπαδάκης.", "Τι θες; ρώτησε."],
        ["1. The acting was good.", "2. The music was not.", "In 1999 it ended."],
        ["Elokuvan ensi-ilta oli 30. marraskuuta 2009 mm. Ranskassa.", "Pidin siitä."],
        ["Løbet startede kl. 20 den 26. januar.", "“Så gå!” sagde han.", "Det kgl. Teater."],
        ["én írtam ezt a verset.", "ő nem olvasta."],  # no capitals
        ["Քարտը քաշել. դու որոշեիր։", "Լավ է։"],
        ["фильм хороший.", "мне понравился."],
        ["Это «iPhone»?", "Да."],
        ["Ես տեսա։", "լավն է։"],
        ["ในปี พ.ศ. 2475 ได้มีการเปลี่ยนแปลง โดย ดร. สมชาย"],
        ["डॉ. शर्मा और एम. के. गांधी ने रु. 500 दिए।", "वह गया।"],
        ["वह गया.", "हम आए."],  # without a danda
        ["মো. আব্দুর রহমান এলেন।", "তিনি গেলেন।"],
        ["عاش سنة ٣٠٠ ق.م. في روما.", "ثم مات."],
        ["தி.மு.க. அரசு வந்தது.", "கே. வரதராஜன் சொன்னார்.", "என். ராமன் வந்தார்."],
        ["Gemäß § 5 Abs. 1 Satz 2 Nr. 3 BGB, Rn. 12, grüßt Hr. Müller, Hauptstr. 5.", "Es tönt gut."],
        ["Señora Sra. López, pág. 3, núm. 5.", "Así es."],
        ["Ông ở TP. Hồ Chí Minh với GS. Nguyễn.", "Tôi biết."],
        ["Mieszka przy ul. Długiej ok. 2 lat, zob. art. 88 i prof. Nowak.", "Są tam."],
        [
            "It is ok.",
            "20 people came.",
            "Nobody knew him.",
            "He is a prof.",
            "Nobody cared.",
        ],  # English has words like these
        ["Så kom.", "Hun så på sin gen.", "Den er så rød."],  # Danish, likewise
        ["2023. 5. 12. 서울에서 만났다.", "좋았다."],
        ["It was 2023.", "5 people came.", "It is 1996.", "80.4 % did."],
        ["「行こう。」と彼は言った。", "「はい。」", "彼女も行った。"],
        ["Ο Δρ. Τέιλορ, αριθ. 3, ήρθε.", "Έφυγε."],
    ],
)
def test_joined_sentences_are_split_again(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize("marks", [".", "?!", "!…", ". "])
def test_a_long_run_of_marks_takes_linear_time(marks: str) -> None:
    run = (marks * 200_000).strip()  # in quadratic time this takes minutes
    assert "".join(split_sentences(f"He left{run} Then it ended.")).count(marks[0]) >= 200_000


def test_a_new_line_ends_a_sentence() -> None:
    assert split_sentences("A title\nThe text. More text") == ["A title", "The text.", "More text"]
    assert split_sentences("A film!\n\U0001f600 Good. It is.") == ["A film!", "\U0001f600 Good.", "It is."]


@pytest.mark.parametrize("line", ["It plays in the U.S.", "They met at 5 p.m.", "I give it an A.", "Wait...", "etc."])
def test_a_new_line_ends_a_sentence_after_an_abbreviation_too(line: str) -> None:
    for following in ("Another paragraph.", "another paragraph."):
        assert split_sentences(f"{line}\n{following}") == [line, following]


@pytest.mark.parametrize(
    "sentences",
    [
        ["That was the end.", "The actors bowed."],
        ["재밌네요..", "아직 안 보신분 꼭 보세요....", "최고!", "또 봐요."],
        ["これは良い。", "iPhoneで見た。"],
        ["A java.lang.NullPointerException came from fmt.Println(x)."],
        ["What a scene...", "Christ!", "Wow, Bob"],
        ["영화 디.워를 봤다."],  # a title: one syllable before the full stop
        ["ठीक है।", "वह गया।", "अच्छा॥"],
        ["すごい!", "楽しかった!", "また行きたい?", "はい"],
    ],
)
def test_a_missing_space_does_not_hide_the_end(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_no_text_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from(" \n.!?…。！।\"')(“”’aBcdeMr12Ünç好,;")) | st.text())
def test_only_white_space_is_removed(text: str) -> None:
    sentences = split_sentences(clean_text(text))
    assert "".join("".join(sentences).split()) == "".join(clean_text(text).split())
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)


@pytest.mark.parametrize(
    "sentence",
    [
        "Man kann z. B. Brot essen.",
        "Es ist z.B. Meier.",
        "Die Miete, d. h. Geld.",
        "Im Fall, i. d. R. Mieter.",
        "By, e. g. Smith.",
    ],
)
def test_abbreviations_of_single_letters_end_no_sentence(sentence: str) -> None:
    assert split_sentences(f"{sentence} Hier ist Schluss.") == [sentence, "Hier ist Schluss."]


def test_single_letters_end_sentences_still() -> None:
    for text in (
        ["I chose plan b.", "It was good."],
        ["It was at 5 p. m.", "The end came."],
        ["I got an a.", "Then I left."],
    ):
        assert split_sentences(" ".join(text)) == text
