"""Write Korean film reviews as anyone's own text and labels; prints one JSON line of counts.

python benchmarks/korean_reviews.py NSMC OUT

NSMC is a clone of github.com/e9t/nsmc, public domain; its folder `raw` has the reviews of each film. As there, ratings
of 1 to 4 are negative, 9 and 10 positive. A tenth of the films, chosen by a hash of their number, is for testing alone.
OUT gets

- reviews.txt: every review of the other films, one a line
- train.jsonl: 20,000 of these of each class
- test.jsonl: 5,000 of each class from the films for testing, without texts that the other films have too

Then `bertpre run own-text corpus.path=OUT/reviews.txt finetune.path=OUT/train.jsonl finetune.test_fraction=0
evaluate.path=OUT/test.jsonl`, and `bertpre baseline` with the same keys.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

TRAINING_REVIEWS = 20_000
TEST_REVIEWS = 5_000


def is_test_film(number: str) -> bool:
    """Whether a film is for testing alone."""
    return hashlib.sha256(number.encode()).digest()[0] % 10 == 0


def read_reviews(raw: Path) -> Iterator[tuple[str, str, int]]:
    """Film, text and rating of each review, each review once."""
    seen = set()
    for file in sorted(raw.glob("*.json")):
        for review in json.loads(file.read_text(encoding="utf-8")):
            text = " ".join(review["review"].split())
            if text and review["review_id"] not in seen:
                seen.add(review["review_id"])
                yield review["movie_id"], text, int(review["rating"])


def draw(reviews: list[tuple[str, int]], count: int) -> list[dict[str, str]]:
    """`count` reviews of each class, in random order."""
    generator = random.Random(0)
    negative = generator.sample([text for text, rating in reviews if rating <= 4], count)
    positive = generator.sample([text for text, rating in reviews if rating >= 9], count)
    examples = [{"text": text, "label": "negative"} for text in negative]
    examples += [{"text": text, "label": "positive"} for text in positive]
    generator.shuffle(examples)
    return examples


def write_examples(file: Path, examples: list[dict[str, str]]) -> None:
    """One JSON object a line."""
    file.write_text("".join(json.dumps(example, ensure_ascii=False) + "\n" for example in examples), encoding="utf-8")


def main(nsmc: Path, out: Path) -> None:
    training: list[tuple[str, int]] = []
    testing: list[tuple[str, int]] = []
    for film, text, rating in read_reviews(nsmc / "raw"):
        (testing if is_test_film(film) else training).append((text, rating))
    known = {text for text, _ in training}
    unseen = [(text, rating) for text, rating in testing if text not in known]
    out.mkdir(parents=True, exist_ok=True)
    (out / "reviews.txt").write_text("".join(f"{text}\n" for text, _ in training), encoding="utf-8")
    write_examples(out / "train.jsonl", draw(training, TRAINING_REVIEWS))
    write_examples(out / "test.jsonl", draw(unseen, TEST_REVIEWS))
    print(json.dumps({"reviews": len(training), "of_test_films": len(testing), "unseen": len(unseen)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
