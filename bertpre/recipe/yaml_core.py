"""YAML 1.2's core schema, where PyYAML follows YAML 1.1.

`no` and 2026-11-28 are texts, 010 is ten, and 1e-3 is a number.
"""

import math
import re
from typing import Any

import yaml

NUMBERS = {
    "int": (r"[-+]?[0-9]+(_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
OTHERS = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": ("~|null|Null|NULL|", ("~", "n", "N", "")),
    "merge": ("<<", "<"),  # of YAML 1.1, which recipes with anchors may use
}


class UniqueKeyLoader(yaml.SafeLoader):
    """Refuses duplicate keys, of which PyYAML silently keeps the last one; reads values as YAML 1.1."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.checked: list[yaml.MappingNode] = []

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put keys that are merged into the mapping; each mapping is checked before that, which may happen early."""
        if not any(node is each for each in self.checked):
            self.checked.append(node)
            self.refuse_duplicates(node)
        super().flatten_mapping(node)

    def refuse_duplicates(self, node: yaml.MappingNode) -> None:
        """Raise ConstructorError where a key is given twice."""
        keys: list[Any] = []
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # the keys that it brings may be given again
                continue
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {str(key)!r} is given twice", key_node.start_mark
                )
            keys.append(key)


class CoreLoader(UniqueKeyLoader):
    """Reads values by the core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """A whole number, decimal where YAML 1.1 reads 010 as eight."""
        text = self.construct_scalar(node)
        return int(text, 0) if text.startswith(("0x", "0o")) else int(text)


class CoreDumper(yaml.SafeDumper):
    """Writes values so that YAML 1.1 and the core schema both read them unchanged."""


for kind, (pattern, first) in (NUMBERS | OTHERS).items():
    CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), list(first))
for kind, (pattern, first) in NUMBERS.items():
    CoreDumper.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), list(first))
CoreLoader.add_constructor("tag:yaml.org,2002:int", CoreLoader.construct_integer)


def read_yaml_text(text: str) -> Any:
    """The value that a text is in YAML; raises yaml.YAMLError."""
    return yaml.load(text, Loader=CoreLoader)


def write_yaml(value: Any, **options: Any) -> str:
    """A value as YAML, its keys in their order, on lines of any length; `options` are PyYAML's."""
    options = {"sort_keys": False, "allow_unicode": True, "width": math.inf} | options
    return str(yaml.dump(value, Dumper=CoreDumper, **options))
