"""`bertpre show`: what a recipe means, before anything runs."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import yaml

from bertpre.recipe import Recipe, Section, to_yaml
from bertpre.run_directory import read_results


def show(recipe: Recipe) -> None:
    """Print the resolved recipe, what each key means, what follows from it, and the figures of its run so far."""
    print("\n".join(explained(to_yaml(recipe).splitlines(), meanings(Recipe))))
    print()
    if recipe.corpus is not None:
        print_model(recipe)
    results = read_results(Path(recipe.output_dir))
    if results:
        print(f"\n# figures in {recipe.output_dir}/results.json")
        print(yaml.safe_dump(results, sort_keys=False, allow_unicode=True))


def meanings(section: type[Section], prefix: str = "") -> dict[str, str]:
    """What each dotted key means: the comment behind it in the source of the recipe's schema."""
    source = inspect.getsource(section)
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    said: dict[str, str] = {}
    for node in ast.parse(source).body[0].body:
        if isinstance(node, ast.AnnAssign):
            behind = [comments[line] for line in range(node.lineno, node.end_lineno + 1) if line in comments]
            said |= {f"{prefix}{node.target.id}": " ".join(behind)}
    for base in section.__bases__:
        said = (meanings(base, prefix) if issubclass(base, Section) and base is not Section else {}) | said
    for name, field in section.model_fields.items():
        key, parts = f"{prefix}{name}", list(parts_of(field.annotation))
        choices = [part for part in parts if isinstance(part, str)]
        if 1 < len(choices) < 8:
            said[key] = "; ".join(filter(None, [", ".join(choices), said.get(key)]))
        for part in parts:
            if isinstance(part, type) and issubclass(part, Section):
                said |= {key: said.get(key) or part.__doc__.splitlines()[0], **meanings(part, f"{key}.")}
    return said


def parts_of(annotation: Any) -> Iterator[Any]:
    """What a field's type is made of, the values of a Literal too."""
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


def explained(lines: list[str], said: dict[str, str]) -> Iterator[str]:
    """The lines of a recipe's YAML, each key with what it means."""
    above: list[tuple[int, str]] = []  # the keys that a line stands below, with their columns
    for line in lines:
        key = re.match(r"( *(?:- )?)(\w+):", line)
        if key is None:
            yield line
            continue
        above = [each for each in above if each[0] < len(key[1])] + [(len(key[1]), key[2])]
        meaning = said.get(".".join(name for _, name in above))
        yield f"{line:<44}  # {meaning}" if meaning else line


def print_model(recipe: Recipe) -> None:
    """Print the size of the model that is pretrained, and what a step and a token take."""
    from bertpre.model.configuration_bertpre import BertPreConfig
    from bertpre.model.flops import count_parameters, flops_per_token

    config = BertPreConfig(**recipe.model.model_dump(), vocab_size=recipe.tokenizer.vocab_size)
    training = recipe.training
    print(f"# parameters: {count_parameters(config):,} (with the vocabulary at its full size)")
    for phase in training.phases:
        flops = flops_per_token(config, phase.max_length, training.masked_lm_prob)
        tokens = (phase.global_batch_size or training.global_batch_size) * phase.max_length
        print(f"# at length {phase.max_length}: {tokens:,} tokens a step at most, {flops / 1e6:.1f} MFLOP a token")
