"""The rules of the house: who may import whom, and that the packages are what an installed wheel holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from pipelines import PACKAGES

ROOT = Path(__file__).parents[1]
MAX_LINES = {"pipelines": 330}
"""Lines of a module, at most; 400 in the other packages."""
HIDDEN = re.compile(r"\._|\.(_internal|impl|execution)(\.|$)")
"""What Ray's modules keep to themselves."""
OURS = {*PACKAGES, "benchmarks", "examples", "tests"}


@cache
def modules(package: str) -> list[tuple[str, Path]]:
    paths = sorted((ROOT / package).rglob("*.py"))
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in paths]


@cache
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


@cache
def entries() -> set[str]:
    """The modules that are run as scripts."""
    return {
        name for name, path in modules("pipelines") if re.search("^if __name__", path.read_text("utf-8"), re.MULTILINE)
    }


def top(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("package", ["common", "data_prep", "recur_models", "tune_spaces"])
def test_the_lower_packages_import_nothing_of_ours_but_common(package: str) -> None:
    for name, path in modules(package):
        assert not top(imported(path)) & (OURS - {package, "common"}), name


@pytest.mark.parametrize("package", ["pipelines.sweeps", "tune_spaces"])
def test_sweeps_use_rays_public_interface_alone(package: str) -> None:
    """Neither a name that begins with an underscore nor a module that Ray keeps to itself, and no method of Ray's is replaced."""
    for name, path in modules(package.replace(".", "/")):
        hidden = [each for each in imported(path) if each.startswith("ray") and HIDDEN.search(each)]
        assert hidden == [], name
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Assign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    owner = ast.unparse(target.value) if isinstance(target, ast.Attribute) else ""
                    assert not re.match(r"(ray|tune|search)\b|Tune[A-Z]|.*(Controller|Scheduler|Tuner)$", owner), name
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "getattr"):
                assert not re.match(r"(ray|tune)\b", ast.unparse(node.args[0])), name


def test_common_needs_no_engine() -> None:
    for name, path in modules("common"):
        assert not top(imported(path)) & {"torch", "transformers", "ray", "mlflow"}, name


def test_data_prep_needs_no_torch_and_models_no_ray() -> None:
    for name, path in modules("data_prep"):
        assert not top(imported(path)) & {"torch", "transformers", "mlflow"}, name
    for name, path in modules("recur_models"):
        assert not top(imported(path)) & {"ray", "mlflow"}, name


ROOMS = {
    "config": set(),
    "terminal": set(),
    "presets": {"config", "terminal"},
    "checkpoints": {"config"},
    "tracking": {"config"},
    "training": {"checkpoints", "tracking", "config", "terminal"},
    "inference": {"checkpoints", "tracking", "config", "terminal"},
    "reports": {"checkpoints", "tracking", "config", "terminal"},
    "cluster": {"training", "checkpoints", "tracking", "config", "terminal"},
}
"""The rooms of pipelines/, and which others each may import; sweeps/ all of them, and a script whatever it needs."""
ROOMS["sweeps"] = {"presets", "inference", "reports", "cluster", *ROOMS["cluster"]}


def room_of(name: str) -> str:
    """The room that a dotted name lies in; empty for a script and for what is outside pipelines/."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "pipelines" and parts[1] in ROOMS else ""


def test_rooms_import_one_way() -> None:
    assert {path.parent.name for _, path in modules("pipelines")} == {"pipelines", *ROOMS}
    for name, path in modules("pipelines"):
        if room := room_of(name):
            others = {room_of(other) for other in imported(path)} - {room, ""}
            assert others <= ROOMS[room], f"{name} imports {', '.join(sorted(others - ROOMS[room]))}"


DOORS = {f"pipelines.{name}" for name in ("paper", "tokens", "continuations", "vocabulary")}
"""The scripts that start a study."""


def test_only_doors_import_studies_and_hold_nothing_else() -> None:
    for package in ("data_prep", "recur_models", "tune_spaces", "pipelines"):
        for name, path in modules(package):
            assert name in DOORS or "studies" not in top(imported(path)), name
    for name, path in modules("pipelines"):
        if name in DOORS:
            assert imported(path) >= {"pipelines.terminal", f"studies.{name.partition('.')[2]}"}, name
            assert len(path.read_text("utf-8").splitlines()) < 10, name


def test_no_module_is_longer_than_a_newcomer_reads_at_once() -> None:
    lengths = {
        name: len(path.read_text("utf-8").splitlines()) for package in PACKAGES for name, path in modules(package)
    }
    too_long = {name: n for name, n in lengths.items() if n > MAX_LINES.get(name.partition(".")[0], 400)}
    assert too_long == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {
        name.removesuffix(".__init__"): {other for other in imported(path) if other.partition(".")[0] in PACKAGES}
        for package in PACKAGES
        for name, path in modules(package)
    }
    packages = {name for name in imports if any(other.startswith(f"{name}.") for other in imports)}
    left = {name: {n for n in names if n in imports and n not in packages} for name, names in imports.items()}
    while free := {name for name, names in left.items() if not names}:
        left = {name: names - free for name, names in left.items() if name not in free}
    assert not left, f"in a circle: {', '.join(sorted(left))}"


def test_no_room_bears_a_scripts_name() -> None:
    assert not {f"pipelines.{room}" for room in ROOMS} & entries()


def test_only_sharding_the_cluster_and_sweeps_import_ray() -> None:
    for package in ("data_prep", "recur_models", "pipelines", "studies"):
        for name, path in modules(package):
            allowed = name == "data_prep.sharding" or name in entries() or room_of(name) in ("cluster", "sweeps")
            assert allowed or "ray" not in top(imported(path)), name


def test_only_tracking_imports_mlflow() -> None:
    for package in PACKAGES:
        for name, path in modules(package):
            assert room_of(name) == "tracking" or "mlflow" not in top(imported(path)), name


def test_a_config_imports_nothing_that_it_configures_and_reports_no_torch() -> None:
    for name, path in modules("pipelines"):
        if room_of(name) in ("config", "reports", "terminal"):
            assert not top(imported(path)) & {"torch", "transformers", "ray", "mlflow"}, name
            assert room_of(name) != "config" or "recur_models" not in top(imported(path)), name


@pytest.mark.parametrize(
    ("modules", "not_needed"),
    [
        ("config.run, pipelines.config.dotted", "torch ray mlflow transformers"),
        ("presets", "ray mlflow transformers"),
        (
            "train, pipelines.preflight, pipelines.sweeps.checks",
            "ray mlflow transformers matplotlib",
        ),
        (
            "prepare, pipelines.verify, pipelines.vocabulary, pipelines.doctor, pipelines.evaluate, pipelines.compare, "
            "pipelines.generate, pipelines.continuations, pipelines.embed, pipelines.run, "
            "pipelines.tokens, pipelines.export, pipelines.inspect, pipelines.ui",
            "torch ray mlflow transformers",
        ),
    ],
)
def test_a_fresh_interpreter_imports_no_more_than_help_and_refusals_need(modules: str, not_needed: str) -> None:
    code = f"import sys, pipelines.{modules}; print([name for name in {not_needed.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_nobody_imports_an_entry_script() -> None:
    scripts = entries()
    assert {"pipelines.prepare", "pipelines.train", "pipelines.evaluate"} <= scripts
    for package in PACKAGES:
        for name, path in modules(package):
            assert not (imported(path) & scripts) - {name}, name
    for package in (*PACKAGES, "benchmarks"):
        for name, path in modules(package):
            assert "examples" not in top(imported(path)), name


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
        name = requirement.split(";")[0].split("[")[0].split(">")[0].split("<")[0].split("=")[0].strip().lower()
        assert name in pinned, f"{name} has no pin in constraints.txt"


@pytest.mark.xdist_group("alone")
def test_tests_that_share_something_dear_stay_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist marks them by their names; with pytest 9.2 its release 3.8 did not, without a word."""
    grouped = request.config.getoption("loadgroup", default=False)  # of xdist's own processes
    assert request.node.nodeid.endswith("@alone") or not grouped
    marked = [(item.nodeid, item.get_closest_marker("xdist_group")) for item in request.session.items]
    assert not grouped or all(name.endswith(f"@{mark.args[0]}") for name, mark in marked if mark)
