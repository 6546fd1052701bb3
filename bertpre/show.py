"""`bertpre show`: what a recipe means, before anything runs."""

from pathlib import Path

import yaml

from bertpre.recipe import Recipe, to_yaml
from bertpre.run_directory import read_results


def show(recipe: Recipe) -> None:
    """Print the resolved recipe, what follows from it, and the figures of its run so far."""
    print(to_yaml(recipe))
    if recipe.corpus is not None:
        print_model(recipe)
    results = read_results(Path(recipe.output_dir))
    if results:
        print(f"\n# figures in {recipe.output_dir}/results.json")
        print(yaml.safe_dump(results, sort_keys=False, allow_unicode=True))


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
