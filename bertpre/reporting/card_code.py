"""The code of a model card: how to load and run the models of a repository."""

from typing import Any

from bertpre.recipe import Finetune, Recipe
from bertpre.reporting.card_facts import TASKS, Published, is_classifier

LOADING = """```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", model="{repo_id}")
print(fill_mask("It is a [MASK].", top_k=3))
```
"""
IN_SUBFOLDER = """
**The metrics of {task} are those of the model in `classifier/`.** Load it from there: a classifier that is loaded from
the root has a random head.

"""
LOADING_SUBFOLDER = """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

model = AutoModelForSequenceClassification.from_pretrained("{repo_id}", subfolder="classifier")
tokenizer = AutoTokenizer.from_pretrained("{repo_id}", subfolder="classifier")
classify = pipeline("text-classification", model=model, tokenizer=tokenizer{choice})
print(classify({text}, truncation=True))
```
"""
LOADING_CLASSIFIER = """```python
from transformers import pipeline

classify = pipeline("text-classification", model="{repo_id}"{choice})
print(classify({text}, truncation=True))
```
"""
LOADING_WORDS = """```python
import unicodedata

from transformers import AutoModelForTokenClassification, AutoTokenizer

model = AutoModelForTokenClassification.from_pretrained("{repo_id}"{subfolder})
tokenizer = AutoTokenizer.from_pretrained("{repo_id}"{subfolder})
words = unicodedata.normalize("NFC", "Anne-Marie saw Oslo .").split()
spaced = words[:1] + [" " + word for word in words[1:]]  # as in training
inputs = tokenizer(spaced, is_split_into_words=True, truncation=True, return_tensors="pt")
labels, numbers = model(**inputs).logits[0].argmax(-1).tolist(), inputs.word_ids()
for place, number in enumerate(numbers):
    if number not in (None, numbers[place - 1]):  # the first token of a word
        print(words[number], model.config.id2label[labels[place]])
```

A word has the label of its first token. Give the pipeline `token-classification` `aggregation_strategy="first"`: the
later tokens of a word were never trained. It labels the parts of a word with a hyphen, and each Chinese character, by
themselves: it finds other entities in them.
"""
LOADING_ONNX = """```python
{imports}import onnxruntime
from transformers import AutoTokenizer

folder = "{folder}"  # where its files lie on this machine{download}
tokenizer = AutoTokenizer.from_pretrained(folder)
session = onnxruntime.InferenceSession(f"{{folder}}/model.onnx")
inputs = tokenizer({arguments}, truncation=True, return_tensors="np")
logits = session.run(None, dict(inputs))[0]
{shown}
```
"""
READS_CONFIG = "import json\nfrom pathlib import Path\n\n"
GUESSES = """place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
print([tokenizer.decode(token) for token in logits[0, place].argsort()[:-4:-1]])"""
NAMES_OF_CLASSES = 'names = json.loads(Path(folder, "config.json").read_text())["id2label"]\n'
LOGITS = NAMES_OF_CLASSES + "print(dict(zip(names.values(), logits[0].tolist(), strict=True)))"
TAGS = NAMES_OF_CLASSES + "print([names[str(number)] for number in logits[0].argmax(-1)])  # of each token"
GRAPH_IN_SUBFOLDER = """
The classifier's graph is `classifier/model.onnx`; it reads
`tokenizer({arguments}, truncation=True, return_tensors="np")`.
"""
LONG_TEXTS = {
    "head": "",
    "tail": """
Texts that were too long lost their start in training: `tokenizer.truncation_side` should be "left".
""",
    "head_tail": """
A text that is too long loses one end here. The metrics were measured on both its ends, a quarter from the start and
the rest from the end, which `bertpre predict` reads; where long texts matter, do likewise:
""",
}
BOTH_ENDS = """
```python
import torch

model, tokenizer = classify.model, classify.tokenizer


def read(text: str, room: int = {room}) -> torch.Tensor:
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) > room:
        ids = ids[: room // 4] + ids[room // 4 - room :]
    row = [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]
    return model(torch.tensor([row], device=model.device)).logits[0]


print(model.config.id2label, read("I would see it again. " * 300).tolist())
```
"""


def how_to_load(recipe: Recipe, results: dict[str, Any], published: Published) -> str:
    """Code that loads and runs the repository's models; one with code of its own needs permission."""
    repo_id, options = published.repo_id, f', revision="{published.revision}"' if published.revision else ""
    options += ", trust_remote_code=True" if published.model_type == "bertpre" else ""
    place = "OWNER/NAME"  # no other words of the code, which the name of a folder may be
    code = loading_code(recipe, results, place).replace(f'"{place}"', f'"{repo_id}"{options}').replace(place, repo_id)
    return code if "/" in repo_id else f"`{repo_id}` stands for the path of this folder.\n\n{code}"


def loading_code(recipe: Recipe, results: dict[str, Any], repo_id: str) -> str:
    """Code for models that transformers knows."""
    encoder = LOADING.format(repo_id=repo_id)
    if "finetune" not in results:
        return encoder
    settings, is_alone = recipe.required_finetune, is_classifier(results)
    before = "" if is_alone else encoder + IN_SUBFOLDER.format(task=TASKS[settings.task])
    if settings.task == "tokens":
        return before + LOADING_WORDS.format(repo_id=repo_id, subfolder="" if is_alone else ', subfolder="classifier"')
    text = '"I would see it again."'
    if settings.text_pair_column is not None:
        text = '{"text": "I would see it again.", "text_pair": "Once was enough."}'
    choices = {"multi_label": ", top_k=None", "regression": ', function_to_apply="none"'}  # else 4.44 gives 1.0
    choice = choices.get(settings.task, "")
    code = (LOADING_CLASSIFIER if is_alone else LOADING_SUBFOLDER).format(repo_id=repo_id, choice=choice, text=text)
    return before + code + long_texts(settings)


def how_to_load_onnx(recipe: Recipe, results: dict[str, Any], published: Published) -> str:
    """Code that runs the graph of a folder, or of a repository, `owner/name`, once it is downloaded."""
    repo_id, branch = published.repo_id, f" --revision {published.revision}" if published.revision else ""
    download = f"; to get them: hf download {repo_id}{branch} --local-dir {repo_id}" if "/" in repo_id else ""
    place = {"folder": repo_id, "download": download}
    encoder = LOADING_ONNX.format(**place, imports="", arguments='"It is [MASK]."', shown=GUESSES)
    if "finetune" not in results:
        return encoder
    settings = recipe.required_finetune
    arguments = tokenizer_arguments(settings, '"It is good."')
    if is_classifier(results):
        shown = TAGS if settings.task == "tokens" else LOGITS
        code = LOADING_ONNX.format(**place, imports=READS_CONFIG, arguments=arguments, shown=shown)
    else:
        code = encoder + GRAPH_IN_SUBFOLDER.format(arguments=arguments)
    return code + long_texts(settings, is_onnx=True)


def tokenizer_arguments(settings: Finetune, text: str) -> str:
    """Code that gives the tokenizer an example of what a classifier reads: `text`, a pair, or words."""
    if settings.task == "tokens":
        return '["It", "is", "good", "."], is_split_into_words=True'
    return text if settings.text_pair_column is None else f'{text}, "I like it."'


def long_texts(settings: Finetune, is_onnx: bool = False) -> str:
    """What becomes of long texts, where that is not their start; and code that reads both ends, as in training."""
    if settings.task == "tokens":
        return ""
    is_one_text = settings.truncation == "head_tail" and settings.text_pair_column is None
    code = BOTH_ENDS.format(room=settings.max_length - 2) if is_one_text and not is_onnx else ""
    note = LONG_TEXTS[settings.truncation]
    return note + code if code else note.replace("; where long texts matter, do likewise:", ".")
