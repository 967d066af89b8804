"""Acts when somebody imports a module, and not before: training pays nothing for what it never uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` once the module ``name`` has been imported; at once where it has been."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(MetaPathFinder):
    """Finds the one module where the others find it. Who only asks whether it is there changes nothing."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act, self._asks = name, act, False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asks:
            return None
        self._asks = True
        try:
            spec = find_spec(fullname)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.loaded)
        return spec

    def loaded(self) -> None:
        sys.meta_path.remove(self)
        self._act()


class _Loader(Loader):
    """The module's own loader, and then ``loaded``."""

    def __init__(self, loader: Loader, loaded: Callable[[], None]) -> None:
        self._loader, self._loaded = loader, loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # what it will be asked for is the module's own
        self._loader.exec_module(module)
        self._loaded()
