"""What a second round of pseudo-labels gains: those of the first round's classifier, averaged with NB-SVM's.

python benchmarks/second_round.py RUN OUT [SEED]

RUN is a pretrained run of imdb-mini-cpu. 15 % of its labelled texts are for validation. The first round is the recipe's
fine-tuning; its classifier then reads the unlabelled texts at `finetune.max_length`, and the second round trains the
pretrained model afresh on the mean of these probabilities and NB-SVM's. Prints one JSON line of accuracies and losses
on the validation part; OUT, a folder, gets the probabilities and the classifiers.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from training_step import hardware

from bertpre.finetuning.fit import FineTuning
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.splits import Labelled
from bertpre.recipe import load_recipe
from bertpre.runtime import keep_freed_memory, start_accelerator

KEYS = ["finetune.validation_fraction=0.15", "seed=0"]


def measured(classifier: Classifier, labelled: Labelled, file: Path) -> dict[str, float]:
    """Accuracy and loss on the validation part; keeps the probabilities."""
    labels, outputs = classifier.apply(labelled.parts.validation)
    np.save(file, outputs)
    right = np.clip(outputs[np.arange(len(labels)), labels], 1e-9, 1)
    return {"accuracy": float((outputs.argmax(-1) == labels).mean()), "loss": float(-np.log(right).mean())}


def main(run: str, out: Path, seed: int) -> None:
    """Two rounds."""
    recipe, accelerator = load_recipe(f"{run}/recipe.yaml", [*KEYS, f"output_dir={run}"]), start_accelerator()
    keep_freed_memory()
    labelled = Labelled(recipe)
    found: dict[str, Any] = {"benchmark": "second_round", "seed": seed}
    own = recipe.model_copy(update={"output_dir": str(out)})
    for number in (1, 2):
        start, folder = time.perf_counter(), out / f"round-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        parts = labelled.parts
        tuning = FineTuning(own, run, accelerator, parts.training, parts.validation, labelled.unlabelled, folder)
        classifier, _ = tuning.fit(seed, f"round {number}")
        found[f"round {number}"] = measured(classifier, labelled, out / f"validation-{number}.npy")
        found[f"round {number}"]["seconds"] = round(time.perf_counter() - start)
        print(json.dumps(found), flush=True)
        classifier.model.save_pretrained(folder / "classifier")
        if number == 1:
            start = time.perf_counter()
            _, outputs = classifier.apply(labelled.unlabelled)
            found["labelling seconds"] = round(time.perf_counter() - start)
            mean = (outputs + np.load(folder / "pseudo_labels.npy")) / 2
            (out / "round-2").mkdir(exist_ok=True)
            np.save(out / "round-2" / "pseudo_labels.npy", mean.astype(np.float32))
    print(json.dumps(found | {"hardware": hardware()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
