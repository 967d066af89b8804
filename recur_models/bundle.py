"""Writes the modules of a model beside its weights, so that transformers opens the folder where Throughline is not installed.

    write_model(folder, config)     # then AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

transformers copies such modules out of a folder one by one, and only those that one of them imports as a neighbour. So each of
ours becomes one file of one folder, `recur_models/layers.py` for example `recur_models_layers.py`, and imports the others as
`.recur_models_layers`. Nothing else of a module changes.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

from transformers.utils.logging import get_logger

from common.choices import MODEL_MODULE
from recur_models.protocol import ModelConfig

logger = get_logger(__name__)

PACKAGES = ("recur_models", "common")
"""Packages whose modules are written. A model of a plug-in adds the plug-in's package."""
COMMANDS = {"pipelines", "studies", "data_prep", "tune_spaces", "benchmarks"}
"""Packages of ours that are never written."""
TOKENIZER = "tokenization_throughline"
"""The module that tokenizer_config.json names; `MODEL_MODULE` is the one of config.json."""


def write_model(folder: Path, config: ModelConfig) -> None:
    """Write the modules that open a model of this config. Raises ValueError if the source of a module is not found."""
    if is_bundle():
        copy_own_modules(folder)
        return
    module = type(config).__module__
    packages = {*PACKAGES, module.partition(".")[0]}
    write_modules(folder, packages, [module, "recur_models.hf_model"])
    name = type(config).__name__
    entry = [
        '"""Opens this folder in transformers with trust_remote_code=True. Made of Throughline\'s modules."""\n',
        f"from .{flat(module)} import {name}",
        "from .recur_models_hf_config import ThroughlineConfig",
        "from .recur_models_hf_model import ThroughlineForCausalLM, ThroughlineModel",
        f"from .recur_models_registry import register\n\nregister({name})\n",
    ]
    (folder / f"{MODEL_MODULE}.py").write_text("\n".join(entry), "utf-8")


def write_tokenizer(folder: Path) -> None:
    """Write the modules that open a SentencePiece tokenizer."""
    if is_bundle():
        copy_own_modules(folder)
        return
    write_modules(folder, set(PACKAGES), ["recur_models.hf_tokenizer"])
    entry = [
        '"""Opens this tokenizer in transformers with trust_remote_code=True. Made of Throughline\'s modules."""\n',
        "from .recur_models_hf_tokenizer import ThroughlineTokenizer\n",
    ]
    (folder / f"{TOKENIZER}.py").write_text("\n".join(entry), "utf-8")


def is_bundle() -> bool:
    """Whether this module itself was loaded from an exported folder."""
    return Path(__file__).stem == flat("recur_models.bundle")


def copy_own_modules(folder: Path) -> None:
    """Copy the modules beside this one into the folder."""
    for path in Path(__file__).parent.glob("*.py"):
        if path.name != "__init__.py":  # transformers makes one in its cache
            shutil.copyfile(path, folder / path.name)


def write_modules(folder: Path, packages: set[str], modules: list[str]) -> None:
    """Write these modules, and those of the packages that they import. Warns of an import that the folder cannot have."""
    left = list(modules)
    written = set[str]()
    while left:
        module = left.pop()
        if module in written:
            continue
        written.add(module)
        source = source_of(module)
        tree = ast.parse(source)
        lacking = [ast.unparse(line) for line in lines_that_run(tree) if unavailable(line, packages)]
        if lacking:
            logger.warning(
                f"the exported folder opens only where Throughline and {module} are installed, since that module has "
                f"'{'; '.join(lacking)}': import names from recur_models, as in 'from recur_models.costs import Costs', and keep "
                "corpora, metrics, spaces and presets in another file than the model"
            )
        imports = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in packages
        ]
        lines = source.splitlines(keepends=True)
        for node in imports:
            name = str(node.module)
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {name} ", f"from .{flat(name)} ", 1)
            left.append(name)
        (folder / f"{flat(module)}.py").write_text("".join(lines), "utf-8")


def lines_that_run(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements, nested ones too, except those that only type checkers read."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.stmt):
            yield node
        waiting += ast.iter_child_nodes(node)


def unavailable(line: ast.stmt, packages: set[str]) -> bool:
    """Whether a line imports something that the folder lacks: a module of our commands, or a module of the packages as a whole."""
    if isinstance(line, ast.Import):
        return any(alias.name.partition(".")[0] in {*packages, *COMMANDS} for alias in line.names)
    if not isinstance(line, ast.ImportFrom):
        return False
    if line.level or not line.module:  # a neighbour, which is not written
        return True
    if line.module.partition(".")[0] in packages:
        return any(is_module(f"{line.module}.{alias.name}") for alias in line.names)
    return line.module.partition(".")[0] in COMMANDS


def is_module(name: str) -> bool:
    """Whether a dotted name is the name of a module, not of an object in one."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def source_of(module: str) -> str:
    """The source text of a module. Raises ValueError if there is none."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin:
        raise ValueError(f"the source of {module} is not there, and the exported folder needs it: install it as a file")
    return Path(spec.origin).read_text("utf-8")


def flat(module: str) -> str:
    """``recur_models_layers`` for ``recur_models.layers``."""
    return module.replace(".", "_")
