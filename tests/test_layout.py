"""The rules of the house: who may import whom, and that the packages are what an installed wheel holds."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_prep", "recur_models", "tune_spaces", "pipelines")
OURS = {*PACKAGES, "benchmarks", "tests"}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imported(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} uses a relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def entries() -> set[str]:
    """The modules that are run as scripts."""
    return {
        name for name, path in modules("pipelines") if re.search("^if __name__", path.read_text("utf-8"), re.MULTILINE)
    }


def top(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("package", ["data_prep", "recur_models", "tune_spaces"])
def test_the_three_lower_packages_import_nothing_of_ours(package: str) -> None:
    for name, path in modules(package):
        assert not top(imported(path)) & (OURS - {package}), name


def test_data_prep_needs_no_torch_and_models_no_ray() -> None:
    for name, path in modules("data_prep"):
        assert not top(imported(path)) & {"torch", "transformers", "mlflow"}, name
    for name, path in modules("recur_models"):
        assert not top(imported(path)) & {"ray", "mlflow"}, name


def test_only_sharding_and_entry_scripts_import_ray() -> None:
    allowed = entries() | {"data_prep.sharding", "pipelines.cluster.ray_session", "pipelines.cluster.ray_train"}
    for package in ("data_prep", "recur_models", "pipelines"):
        for name, path in modules(package):
            assert name in allowed or "ray" not in top(imported(path)), name


def test_only_tracking_imports_mlflow() -> None:
    for package in PACKAGES:
        for name, path in modules(package):
            assert name.startswith("pipelines.tracking.") or "mlflow" not in top(imported(path)), name


def test_nobody_imports_an_entry_script() -> None:
    scripts = entries()
    assert {"pipelines.prepare", "pipelines.train", "pipelines.evaluate"} <= scripts
    for package in PACKAGES:
        for name, path in modules(package):
            assert not (imported(path) & scripts) - {name}, name


def test_every_package_is_in_the_wheel_and_has_a_purpose() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in include} == set(PACKAGES)
    for package in PACKAGES:
        for name, path in modules(package):
            assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{name} does not say what it is for"


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    for requirement in wanted:
        name = requirement.split("[")[0].split(">")[0].split("<")[0].split("=")[0].strip().lower()
        assert name in pinned, f"{name} has no pin in constraints.txt"
