"""A classifier's outputs: in the order of the examples, one for each word, numbers in fp32."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification, PreTrainedModel

from bertpre.data.tokenizer import learn_tokenizer
from bertpre.finetuning.inference import Classifier
from bertpre.finetuning.task import Task
from tests.unit.test_examples import examples_of

TEXTS = ["one two three four", "two", "three one", "four four one two three"]


def classifier_for(kind: str, model_class: type[PreTrainedModel], count: int, **options: Any) -> Classifier:
    tokenizer = learn_tokenizer(iter(["one two three four"] * 9), 64, lowercase=True, max_length=32)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=count, hidden_dropout_prob=0.5,
    )  # fmt: skip
    classes = ("a", "b", "c")[:count]
    return Classifier(model_class(config).train(), tokenizer, Task(kind, classes), 32, "head", batch_size=3, **options)


def test_outputs_are_in_the_order_of_the_examples() -> None:
    classifier = classifier_for("classification", BertForSequenceClassification, 3, precision="fp32")
    labels, outputs = classifier.apply(examples_of(TEXTS, labels=np.array([0, 1, 0, 1])))
    assert labels.tolist() == [0, 1, 0, 1]
    alone = [classifier.predict(examples_of([text], labels=np.array([0])))[0] for text in TEXTS]
    np.testing.assert_allclose(outputs, alone, atol=1e-6)  # without dropout, too
    np.testing.assert_allclose(outputs.sum(1), 1, rtol=1e-6)
    assert classifier.model.training
    encoded = classifier.encode(examples_of(TEXTS, labels=outputs.argmax(1)))
    assert classifier.measure(encoded, Accelerator(cpu=True))["accuracy"] == 1


def test_a_regression_is_computed_in_fp32() -> None:
    numbers = np.zeros(4, dtype=np.float32)
    outputs = [
        classifier_for("regression", BertForSequenceClassification, 1, precision=precision).predict(
            examples_of(TEXTS, labels=numbers)
        )
        for precision in ("fp32", "bf16")
    ]
    assert outputs[0].tolist() == outputs[1].tolist()


@pytest.mark.parametrize("max_length", [32, 4])
def test_every_word_that_is_read_has_an_output(max_length: int) -> None:
    classifier = classifier_for("tokens", BertForTokenClassification, 2, precision="fp32")
    tags = [np.zeros(len(text.split()), dtype=np.int64) for text in TEXTS]
    examples = examples_of([text.split() for text in TEXTS], labels=tags)
    classifier = Classifier(**(vars(classifier) | {"max_length": max_length}))
    labels, outputs = classifier.apply(examples)
    read = [min(len(text.split()), max_length - 2) for text in TEXTS]
    assert [row.shape for row in outputs] == [(count, 2) for count in read]
    assert [len(row) for row in labels] == read


@pytest.mark.parametrize("works", [True, False])
def test_long_readings_are_compiled_and_give_the_same_outputs(
    works: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    classifier = classifier_for("classification", BertForSequenceClassification, 3, precision="fp32")
    examples, programs, original = examples_of(TEXTS, labels=np.zeros(4)), [], torch.nn.Module.compile
    expected = classifier.predict(examples)

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        programs.append(graph)
        if not works:
            raise RuntimeError("no such processor")
        return graph

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: original(self, backend=backend))
    monkeypatch.setattr("bertpre.finetuning.inference.can_compile", lambda _: True)
    monkeypatch.setattr("bertpre.finetuning.inference.is_worth_compiling", lambda flops, _: flops > 0)
    torch._dynamo.reset()
    try:
        np.testing.assert_allclose(classifier.predict(examples), expected, atol=1e-6)
        assert programs and ("reading continues without it" in caplog.text) == (not works)
        programs.clear()
        np.testing.assert_array_equal(replace(classifier, compile=False).predict(examples), expected)
        assert not programs
        assert classifier.model.bert.encoder.layer[0]._compiled_call_impl is None  # a copy was compiled
    finally:
        torch.compiler.set_stance("default")
