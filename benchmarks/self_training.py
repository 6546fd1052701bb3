"""What rounds of pseudo-labels from the network itself gain, after NB-SVM's or without any other model.

python benchmarks/self_training.py RUN OUT nb-svm|labels [ROUNDS] [SEED] [KEY=VALUE ...]     (default: 2 rounds, seed 0)

RUN is a pretrained run of imdb-mini-cpu, KEY=VALUE a change of its recipe. 15 % of its labelled texts are for
validation. The first round is the recipe's fine-tuning (nb-svm), or that of the labelled texts alone (labels). Its
classifier then reads the unlabelled texts at `finetune.max_length`. Each further round trains the pretrained model
afresh on the mean of the probabilities of all rounds before it, and of NB-SVM where that came first. Prints JSON lines
of accuracies and losses on the validation part, the last one complete; OUT, a folder, gets the probabilities and the
classifiers.
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


def main(run: str, out: Path, teacher: str, rounds: int, seed: int, changes: list[str]) -> None:
    """All rounds."""
    recipe, accelerator = load_recipe(f"{run}/recipe.yaml", [*KEYS, f"output_dir={run}", *changes]), start_accelerator()
    keep_freed_memory()
    labelled, answers = Labelled(recipe), []
    found: dict[str, Any] = {"benchmark": "self_training", "teacher": teacher, "seed": seed, "changes": changes}
    own = recipe.model_copy(update={"output_dir": str(out)})
    for number in range(1, rounds + 1):
        start, folder = time.perf_counter(), out / f"round-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        if answers:
            np.save(folder / "pseudo_labels.npy", np.mean(answers, axis=0).astype(np.float32))
        parts, further = labelled.parts, labelled.unlabelled if answers or teacher == "nb-svm" else None
        tuning = FineTuning(own, run, accelerator, parts.training, parts.validation, further, folder)
        classifier, _ = tuning.fit(seed, f"round {number}")
        if number == 1 and teacher == "nb-svm":
            answers.append(np.load(folder / "pseudo_labels.npy"))
        found[f"round {number}"] = measured(classifier, labelled, out / f"validation-{number}.npy")
        found[f"round {number}"]["seconds"] = round(time.perf_counter() - start)
        print(json.dumps(found), flush=True)
        classifier.model.save_pretrained(folder / "classifier")
        if number < rounds:
            start = time.perf_counter()
            answers.append(classifier.apply(labelled.unlabelled)[1])
            found[f"round {number}"]["labelling seconds"] = round(time.perf_counter() - start)
    print(json.dumps(found | {"hardware": hardware()}))


if __name__ == "__main__":
    rounds, seed = [*sys.argv[4:6], *["2", "0"][len(sys.argv[4:6]) :]]
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(rounds), int(seed), sys.argv[6:])
