"""Registers bertpre's classes with transformers' Auto classes, without importing transformers."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REGISTERED_BY = {  # modules of Auto classes, and ours that register with them when they are imported
    "transformers.models.auto.configuration_auto": "bertpre.model.configuration_bertpre",
    "transformers.models.auto.modeling_auto": "bertpre.model.modeling_bertpre",
}
# Registration waits while one of these is being imported: transformers' imports the Auto classes itself before it is
# complete, and ours imports transformers', while what registers needs both.
LAYERS = ("transformers.modeling_layers", "bertpre.model.layers_bertpre")


def register_classes() -> None:
    """Register now where transformers has loaded its Auto classes, and otherwise as soon as it does."""
    for auto_module, module in REGISTERED_BY.items():
        if auto_module in sys.modules:
            import_module(module)
    sys.meta_path.insert(0, RegistersAfterImport())


class RegistersAfterImport(MetaPathFinder):
    """Lets the other finders find the modules of the Auto classes; once these are imported, imports ours."""

    def __init__(self) -> None:
        self.running: set[str] = set()  # of these modules, those that are being imported

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in (*REGISTERED_BY, *LAYERS):
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                self.running.add(name)
                try:
                    run(module)
                finally:
                    self.running.discard(name)
                self.register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]  # of this loader alone
        return spec

    def register(self) -> None:
        """Import our modules whose Auto classes are complete, unless they have to wait for LAYERS."""
        for auto_module, module in REGISTERED_BY.items():
            if auto_module in sys.modules and not self.running & {auto_module, *LAYERS}:
                import_module(module)
