"""Probe a pretrained encoder's features for sentiment, layer by layer, without tuning; prints one JSON line.

python benchmarks/imdb_features.py RUN_DIR [FOLDER OR HUB ID]        (default: stanfordnlp/imdb)

Uses reviews of the training split only. For the embeddings and for each layer: the mean norm of a token's vector, and
the accuracy of a logistic regression on the mean over tokens. For comparison: TF-IDF words on the same reviews.
"""

import json
import sys

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertpre.data.tokenizer import load_tokenizer
from bertpre.finetuning.encoding import collate, encode_examples
from bertpre.finetuning.examples import Examples, read_examples
from bertpre.model import load_model
from bertpre.recipe import Finetune

TRAINING, TESTED, MAX_LENGTH, BATCH_SIZE = 4800, 1200, 256, 32


@torch.no_grad()
def pooled(run_dir: str, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Mean-pooled features (layers + 1, texts, E) and the mean norm of a token's vector (layers + 1)."""
    tokenizer = load_tokenizer(f"{run_dir}/tokenizer")
    model = load_model(f"{run_dir}/model", "AutoModel", new_head=True)
    features, norms, tokens = [], 0.0, 0
    encoded = encode_examples(tokenizer, examples, MAX_LENGTH, "head_tail")
    for start in range(0, len(examples), BATCH_SIZE):
        indices = np.arange(start, min(start + BATCH_SIZE, len(examples)))
        batch = collate(encoded, indices, MAX_LENGTH, tokenizer.pad_token_id)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        states = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)  # (layers + 1, B, S, E)
        mask = batch["attention_mask"].float()
        features.append((torch.einsum("lbse,bs->lbe", states, mask) / mask.sum(1)[:, None]).numpy())
        norms = norms + (states.norm(dim=-1) * mask).sum((1, 2)).numpy()
        tokens += int(mask.sum())
    return np.concatenate(features, axis=1), norms / tokens


def measure(run_dir: str, path: str) -> dict[str, object]:
    """Accuracy of the probes and of TF-IDF words on the same reviews."""
    examples = read_examples(Finetune(path=path), "train", TRAINING + TESTED)  # drawn evenly, sorted by label
    examples = examples.subset(np.random.default_rng(0).permutation(len(examples)))
    labels = examples.labels
    layers, norms = pooled(run_dir, examples)
    probes = []
    for features in layers:
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
        probe.fit(features[:TRAINING], labels[:TRAINING])
        probes.append(float(probe.score(features[TRAINING:], labels[TRAINING:])))
    words = make_pipeline(TfidfVectorizer(sublinear_tf=True, min_df=2), LogisticRegression(C=10, max_iter=1000))
    words.fit(examples.texts[:TRAINING], labels[:TRAINING])
    return {
        "token_norm": [round(float(norm), 2) for norm in norms],
        "probe_accuracy": probes,
        "words_accuracy": float(words.score(examples.texts[TRAINING:], labels[TRAINING:])),
        "reviews": [TRAINING, TESTED],
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "stanfordnlp/imdb")))
