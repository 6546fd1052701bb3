"""A model as an ONNX graph, which onnxruntime and others execute without torch."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertpre.errors import UserError


class Logits(nn.Module):
    """A model that takes its inputs by position and returns only its logits."""

    def __init__(self, model: PreTrainedModel, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def write_onnx(model: PreTrainedModel, file: Path, inputs: dict[str, Tensor]) -> None:
    """Write a model as a graph from `inputs` to `logits`, for any batch size and any length up to its maximum.

    `inputs` are examples, (B, S), by name. Raises UserError where the packages are missing.
    """
    missing = [package for package in ("onnx", "onnxruntime", "onnxscript") if find_spec(package) is None]
    if missing:
        raise UserError(f"exporting to onnx needs {', '.join(missing)}: pip install 'bertpre[export]'")
    graph = Logits(model, list(inputs)).eval()
    longest = getattr(model.config, "max_position_embeddings", None)
    dimensions = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=longest)}
    with without_exporter_warnings():
        torch.onnx.export(
            graph,
            tuple(inputs.values()),
            file,
            input_names=list(graph.names),
            output_names=["logits"],
            dynamic_shapes=((dimensions,) * len(graph.names),),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
    clean_graph(file)


def clean_graph(file: Path) -> None:
    """Remove what a graph needs not: the exporter's notes, and the shapes that it inferred.

    The notes quote its code, with paths of this machine and its user's name. Some of the shapes contradict those that
    onnxruntime's quantization infers, which is then an error.
    """
    import onnx

    model = onnx.load(file)
    functions = list(model.functions)
    nodes = [node for part in (model.graph, *functions) for node in part.node]
    for part in (model, model.graph, *functions, *nodes):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for part in (model.graph, *functions):
        part.ClearField("value_info")
    onnx.save(model, file)


def run_onnx(file: Path, inputs: dict[str, Tensor]) -> Tensor:
    """The logits that onnxruntime computes on the CPU."""
    from onnxruntime import InferenceSession

    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    wanted = [entry.name for entry in session.get_inputs()]
    return torch.from_numpy(session.run(["logits"], {name: inputs[name].numpy() for name in wanted})[0])


@contextmanager
def without_exporter_warnings() -> Iterator[None]:
    """Silence the exporter's warnings, which are about its own internals."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
