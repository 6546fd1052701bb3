"""Unknown tokens of a learned vocabulary, on the text it was learned from and on other text; prints one JSON line.

    python benchmarks/scripts_of_the_world.py VOCAB_SIZE CORPUS.jsonl HELD_OUT.jsonl [KEY=VALUE ...]

Runs `bertpre prepare` on CORPUS with recipe imdb-mini-cpu and the keys given, then encodes HELD_OUT (the field `text`
of each line) with the saved tokenizer, as it loads where bertpre is not installed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

from bertpre.data.cleaning import clean_text
from bertpre.data.sentences import split_sentences


def main(vocab_size: str, corpus: str, held_out: str, *overrides: str) -> None:
    """Prepare, measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        keys = [f"output_dir={folder}/run", f"corpus.path={corpus}", "corpus.split=train", "corpus.held_out=null"]
        keys += [f"tokenizer.vocab_size={vocab_size}", *overrides]
        command = [sys.executable, "-m", "bertpre", "prepare", "imdb-mini-cpu", *keys]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        stored = json.loads(Path(f"{folder}/run/results.json").read_text())["prepare"]
        tokenizer = AutoTokenizer.from_pretrained(f"{folder}/run/tokenizer")
    with Path(held_out).open(encoding="utf-8") as lines:
        texts = [clean_text(json.loads(line)["text"]) for line in lines]
    sentences = [sentence for text in texts for sentence in split_sentences(text)]
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
    ids = [token for encoding in encodings for token in encoding.ids]
    result = {
        "corpus": Path(corpus).stem,
        "vocab_size": len(tokenizer),
        "alphabet": sum(len(token) == 1 for token in tokenizer.get_vocab()),
        "unknown_percent": round(100 * stored["unknown_share"], 3),
        "held_out_unknown_percent": round(100 * ids.count(tokenizer.unk_token_id) / len(ids), 3),
        "tokens_per_character": round(len(ids) / sum(map(len, sentences)), 3),
        "sentence_tokens": stored["tokens_in_sentence"],
        "seconds": round(stored["seconds"], 1),
        "warnings": [line.strip() for line in done.stdout.splitlines() if "warning" in line],
    }
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
