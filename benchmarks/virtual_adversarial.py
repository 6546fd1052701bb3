"""What virtual adversarial training on unlabelled texts gains over labelled texts alone, without pseudo-labels.

python benchmarks/virtual_adversarial.py RUN OUT.npz [MOVED] [EPOCHS] [SEED]     (default: 0.015 2 0; labels alone: 0 1)

RUN is a pretrained run of imdb-mini-cpu. Its labelled texts are cut to 128 tokens; 15 % of them are for validation, and
are read at 256 and at 512 tokens, with the last weights and with their running mean. From step 101 on each step has as
many unlabelled texts: the network is to give the same answer when their embeddings are moved by MOVED of their length
in the direction that makes the likelier class less likely (Miyato et al. 2017; theirs is that of the divergence).
SEED draws the head and the order of the texts; the validation part is the same for all.
Prints one JSON line of accuracies and losses; OUT.npz gets the probabilities, so that two calls can be compared text
by text.
"""

import json
import sys
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from training_step import hardware

from bertpre.data.sampler import Position
from bertpre.finetuning.batches import TrainingBatches
from bertpre.finetuning.encoding import encode_examples
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.loading import load_start
from bertpre.finetuning.splits import Labelled
from bertpre.finetuning.task import TaskModel, build_task
from bertpre.recipe import load_recipe
from bertpre.runtime import choose_dtype, keep_freed_memory, start_accelerator
from bertpre.training.metrics import Batch
from bertpre.training.optimizer import build_optimizers, set_learning_rate
from bertpre.training.precision import WorkingCopy
from bertpre.training.schedule import lr_at

LENGTH, LABELS_ALONE = 128, 100
KEYS = ["finetune.validation_fraction=0.15", "training.compile=false", "seed=0"]


def adversarial_loss(network: torch.nn.Module, batch: Batch, moved: float) -> Tensor:
    """The mean divergence of the answers before and after the embeddings are moved, in nats."""
    network.eval()
    words, (ids, mask) = network.get_input_embeddings(), (batch["input_ids"], batch["attention_mask"])
    embeddings = words(ids).detach().requires_grad_()
    answers = network(inputs_embeds=embeddings, attention_mask=mask).logits.float().log_softmax(-1)
    (direction,) = torch.autograd.grad(-answers.max(-1).values.sum(), embeddings)
    direction, is_token = direction.float() * mask.unsqueeze(-1), mask.unsqueeze(-1).float()
    length = (embeddings.detach().float() * is_token).flatten(1).norm(dim=1)
    scale = moved * length / (direction.flatten(1).norm(dim=1) + 1e-12)
    step = (direction * scale[:, None, None]).to(embeddings.dtype)
    after = network(inputs_embeds=words(ids) + step, attention_mask=mask).logits.float().log_softmax(-1)
    network.train()
    answers = answers.detach()
    return (answers.exp() * (answers - after)).sum(-1).mean()


class Mean:
    """The running mean of a model's weights (0.99), from step 50 on."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.state = model, {}

    def update(self, step: int) -> None:
        """Take a step's weights in."""
        now = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        share = min(0.99, step / (step + 10)) if step >= 50 else 0.0
        self.state = {name: self.state.get(name, value).lerp(value, 1 - share) for name, value in now.items()}


def main(run: str, out: str, moved: float, epochs: int, seed: int) -> None:
    """Train, measure and print."""
    recipe, accelerator = load_recipe(f"{run}/recipe.yaml", [*KEYS, f"output_dir={run}"]), start_accelerator()
    keep_freed_memory()
    settings, labelled = recipe.required_finetune, Labelled(recipe)
    parts, task = labelled.parts, build_task(recipe.required_finetune, labelled.parts.training)
    model, tokenizer = load_start(recipe, run, task, seed)

    def batches(examples: object, draw: int) -> TrainingBatches:
        encoded = encode_examples(tokenizer, examples, LENGTH, settings.truncation)
        short = settings.model_copy(update={"max_length": LENGTH})
        return TrainingBatches(encoded, tokenizer.pad_token_id, short, accelerator, draw)

    source, more = batches(parts.training, seed), batches(labelled.unlabelled, seed + 1) if moved else None
    working, mean = WorkingCopy(TaskModel(model, task), choose_dtype("auto", accelerator.device)), Mean(model)
    rates = settings.learning_rate, settings.weight_decay, settings.muon_learning_rate
    training, steps = recipe.training, epochs * source.steps_per_epoch
    optimizers = build_optimizers(model, settings.optimizer, *rates, training.adam_beta2, training.muon_weight_decay)
    working.model.train()
    place, place_of_more, start = Position(), Position(), time.perf_counter()
    for step in range(steps):
        torch.manual_seed(seed * 100003 + step)
        taken = source(place, 0)
        (batch,), place = taken.micro_batches, taken.after
        working.model(**batch, num_items_in_batch=torch.tensor(float(len(batch["labels"])))).loss.backward()
        if more is not None and step >= LABELS_ALONE:
            taken = more(place_of_more, 0)
            adversarial_loss(working.model.model, taken.micro_batches[0], moved).backward()
            place_of_more = taken.after
        working.collect_gradients()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        set_learning_rate(optimizers, lr_at(step / steps, "linear", settings.warmup))
        for optimizer in optimizers:
            optimizer.step()
        working.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        mean.update(step)
    found: dict[str, object] = {"moved": moved, "epochs": epochs, "seed": seed}
    found["seconds"] = round(time.perf_counter() - start)
    classifier, saved = Classifier.of(recipe, model.eval(), tokenizer, task), {}
    last = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name, state in (("last", last), ("mean", mean.state)):
        model.load_state_dict(state)
        for length in (256, 512):
            labels, outputs = replace(classifier, max_length=length).apply(parts.validation)
            right = outputs[np.arange(len(labels)), labels]
            saved |= {"labels": labels, f"{name}_{length}": outputs}
            accuracy, loss = (outputs.argmax(-1) == labels).mean(), -np.log(np.clip(right, 1e-9, 1)).mean()
            found[f"{name}_{length}"] = [round(float(accuracy), 4), round(float(loss), 4)]
    np.savez(out, **saved)
    print(json.dumps({"benchmark": "virtual_adversarial"} | found | {"hardware": hardware()}))


if __name__ == "__main__":
    moved, epochs, seed = [*sys.argv[3:], *["0.015", "2", "0"][len(sys.argv) - 3 :]]
    main(sys.argv[1], sys.argv[2], float(moved), int(epochs), int(seed))
