"""`bertpre show`: what a recipe means, before anything runs."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from bertpre.console import time_text
from bertpre.data.vocabulary import usable
from bertpre.recipe import Recipe, Section, fields, shipped_recipes, to_yaml, type_parts
from bertpre.recipe.yaml_core import write_yaml
from bertpre.reporting.report import closing_lines
from bertpre.run_directory import ARTEFACTS, read_results

# FLOP/s of the large products of an H100 or H200 in bf16, two thirds of the data sheet's, and the share of it that a
# training reaches: an estimate until it is measured, and too high for models narrower than base.
GPU, GPU_RATE, UTILIZATION = "H100 or H200", 660e12, 0.4


def show(recipe: Recipe | None) -> None:
    """Print the resolved recipe, the meaning of each key, the model's size, and the results of its run so far.

    Without a recipe, print the list of shipped recipes.
    """
    if recipe is None:
        print_shipped()
        return
    meanings = {key: meaning(field) for key, field in fields(Recipe)}
    print("\n".join(with_meanings(to_yaml(recipe).splitlines(), meanings)))
    print()
    if recipe.corpus is not None:
        print_model(recipe)
    results = read_results(Path(recipe.output_dir))
    if results.keys() & ARTEFACTS.keys():
        print("\n".join(closing_lines(Path(recipe.output_dir), recipe)))
    elif results:  # of a suite
        print(f"\n# results in {recipe.output_dir}/results.json")
        short = json.loads(json.dumps(results), parse_float=lambda text: float(f"{float(text):.6g}"))
        print(write_yaml(short, default_flow_style=None, width=120))


def print_shipped() -> None:
    """Print what each shipped recipe is for, and what to do with it."""
    shipped = shipped_recipes()
    width = max(map(len, shipped))
    print("Shipped recipes:")
    for name, file in shipped.items():
        print(f"  {name:<{width}}  {purpose(file)}")
    print()
    print("bertpre show NAME        every key of a recipe, its value and its meaning")
    print("bertpre init NAME FILE   a copy to edit")
    print("bertpre run NAME         run it")
    print()
    print(f"Configurations for accelerate launch --config_file: {file.parent / 'accelerate'}")


def purpose(file: Path) -> str:
    """The first comment of a shipped recipe, below the line for editors, without the command that may follow it."""
    comment = file.read_text(encoding="utf-8").splitlines()[1]
    return re.sub(r"[:.]? +bertpre .*|[:.]$", "", comment.removeprefix("# "))


def meaning(field: FieldInfo) -> str:
    """A key's description, or its section's, and its choices where there are few."""
    parts = list(type_parts(field.annotation))
    sections = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
    choices = [part for part in parts if isinstance(part, str)]
    text = " ".join((field.description or inspect.getdoc(sections[0]) or "").split())
    return f"{text} One of: {', '.join(choices)}." if 1 < len(choices) < 8 else text


def with_meanings(lines: list[str], meanings: dict[str, str]) -> Iterator[str]:
    """The lines of a recipe's YAML, each key followed by its meaning."""
    above: list[tuple[int, str]] = []  # the keys that enclose a line, with their columns
    for line in lines:
        key = re.match(r"( *(?:- )?)(\w+):", line)
        if key is None:
            yield line
            continue
        above = [each for each in above if each[0] < len(key[1])] + [(len(key[1]), key[2])]
        text = meanings.get(".".join(name for _, name in above))
        yield f"{line:<44}  # {text}" if text else line


def print_model(recipe: Recipe) -> None:
    """Print the size of the model that is pretrained, the tokens and FLOPs of each phase, and of the whole."""
    from bertpre.model.flops import Sizes, count_parameters, flops_per_token

    sizes = recipe.model.model_dump(include=set(Sizes.__annotations__))
    vocab_size, training = vocabulary_of(recipe), recipe.training
    config = Sizes(**sizes, vocab_size=vocab_size or recipe.tokenizer.vocab_size)
    of = "the vocabulary of tokenizer.path" if vocab_size and recipe.tokenizer.path else "the full vocabulary"
    if vocab_size is None:
        of = f"{recipe.tokenizer.vocab_size:,} tokens; tokenizer.path may have others"
    print(f"# parameters: {count_parameters(config):,} (with {of})")
    totals = {"max_steps": 0.0, "max_tokens": 0.0}
    for phase in training.phases:
        flops = flops_per_token(config, phase.max_length, training.predicted_share(phase))
        tokens = training.batch_size(phase) * phase.max_length
        length = phase.max_length if phase.objective == "masked" else f"{phase.max_length}, {phase.objective}"
        print(f"# at length {length}: at most {tokens:,} tokens per step, {flops / 1e6:.1f} MFLOPs per token")
        totals["max_steps"] += phase.share * (training.max_steps or 0) * tokens * flops
        totals["max_tokens"] += phase.share * (training.max_tokens or 0) * flops
    print_cost(totals)


def vocabulary_of(recipe: Recipe) -> int | None:
    """The size of the vocabulary: the recipe's, or that of `tokenizer.path`; None where that is not on this machine."""
    path = recipe.tokenizer.path
    if path is None:
        return usable(recipe.tokenizer.vocab_size)
    for file in (Path(path) / "tokenizer.json", Path(path) / "tokenizer" / "tokenizer.json"):
        if file.is_file():
            read = json.loads(file.read_text(encoding="utf-8"))
            # Unigram's words have scores beside them.
            words = (each if isinstance(each, str) else each[0] for each in read["model"]["vocab"])
            return len({*words, *(token["content"] for token in read["added_tokens"])})
    return None


def print_cost(totals: dict[str, float]) -> None:
    """Print the FLOPs that a limit in steps or tokens comes to, and the time that a GPU would take, as estimated."""
    if limits := {name: flops for name, flops in totals.items() if flops}:
        name, flops = min(limits.items(), key=lambda item: item[1])
        time = time_text(flops / UTILIZATION / GPU_RATE)
        share = f"{UTILIZATION:.0%} of {GPU_RATE / 1e12:.0f} TFLOP/s"
        print(f"# training.{name}: at most {flops:.1e} FLOPs; estimated: {time} on one {GPU} ({share})")
