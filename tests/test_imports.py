"""Imports go one way, and the core imports only torch and numpy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise

ROOT = Path(equipoise.__file__).parent
# simplex, preference ← weighting, conversion ← solver, train, federated ← pareto ← flower, experiments ← cli.
# A part may import from the layers before its own, and from itself.
LAYERS = [
    {"errors", "host"},
    {"batch", "atomic", "identity"},
    {"simplex", "preference", "minnorm", "state", "transform", "units"},
    {"boxqp", "theory", "reference"},
    {"weighting", "conversion", "problems", "metrics"},
    {"registry", "datasets"},
    {"solver", "train", "federated", "plugins"},
    {"pareto"},
    {"flower", "experiments"},
    {"cli"},
    {"__main__"},
]
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
CORE = {part for parts in LAYERS[:8] for part in parts} | {"equipoise"}
# Modules for users of an extra, which nothing but modules for this extra imports.
FOR_AN_EXTRA = {
    "equipoise.train.lightning": {"lightning"},
    "equipoise.train.model_losses": {"transformers"},
    "equipoise.train.transformers": {"transformers"},
    "equipoise.federated.kernels": {"triton"},
}
EXTRAS = [
    "scipy",
    "matplotlib",
    "typer",
    "rich",
    "sklearn",
    "moocore",
    "plotly",
    "lightning",
    "flwr",
    "safetensors",
    "transformers",
]


def module_name(path: Path) -> str:
    parts = ("equipoise", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
PARTS = [name for name in MODULES if name != "equipoise"]


def imported(name: str, *, at_import_time: bool = False) -> set[str]:
    """The modules that a module names in import statements, wherever they stand in it."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    lazy: set[ast.AST] = set()
    if at_import_time:
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
        lazy = {inner for function in functions for inner in ast.walk(function)}
        lazy |= {inner for n in ast.walk(tree) if _only_for_types(n) for inner in ast.walk(n)}
    found = set()
    for node in ast.walk(tree):
        if node in lazy:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: imports are absolute"
            assert node.module is not None
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inside & MODULES.keys()) or {node.module}
    return found


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def part_of(name: str) -> str:
    return name.split(".")[1]


def test_there_is_something_to_check():
    assert {"equipoise.simplex", "equipoise.weighting.omd", "equipoise.conversion.ledger"} <= MODULES.keys()
    assert imported("equipoise.weighting.seen") >= {"torch", "equipoise.preference", "equipoise.errors"}


@pytest.mark.parametrize("name", PARTS)
def test_every_module_has_its_layer(name: str):
    assert part_of(name) in LAYER, f"give {part_of(name)} a place in LAYERS"


@pytest.mark.parametrize("name", PARTS)
def test_imports_go_one_way(name: str):
    for other in imported(name):
        if other == "equipoise" or other not in MODULES:
            assert other != "equipoise" or _may_ask_for_the_version(name), (
                f"{name} imports the package, which imports it"
            )
            continue
        same, earlier = part_of(other) == part_of(name), LAYER[part_of(other)] < LAYER[part_of(name)]
        assert same or earlier, f"{name} imports {other}"


def _may_ask_for_the_version(name: str) -> bool:
    """The command line, which the package does not import; the experiments where they run, not when imported."""
    return part_of(name) == "cli" or (
        part_of(name) == "experiments" and "equipoise" not in imported(name, at_import_time=True)
    )


def test_there_is_no_cycle_inside_a_part():
    graph = {name: {other for other in imported(name, at_import_time=True) if other in PARTS} for name in PARTS}
    while leaves := {name for name, others in graph.items() if not others - {name}}:
        graph = {name: others - leaves for name, others in graph.items() if name not in leaves}
    # A package's __init__ gathers its modules; they may name a sibling through it.
    assert not {name for name in graph if MODULES[name].name != "__init__.py"} or _through_packages_only(graph)


def _through_packages_only(graph: dict[str, set[str]]) -> bool:
    packages = {name for name in graph if MODULES[name].name == "__init__.py"}
    rest = {name: others - packages for name, others in graph.items() if name not in packages}
    while leaves := {name for name, others in rest.items() if not others}:
        rest = {name: others - leaves for name, others in rest.items() if name not in leaves}
    return not rest


@pytest.mark.parametrize("name", [name for name in MODULES if name == "equipoise" or part_of(name) in CORE])
def test_the_core_names_only_torch_and_numpy_at_import_time(name: str):
    outside = {other.split(".")[0] for other in imported(name, at_import_time=True)} - {"equipoise"}
    assert outside <= {"torch", "numpy", *FOR_AN_EXTRA.get(name, ()), *sys.stdlib_module_names}
    own = {other for other, extra in FOR_AN_EXTRA.items() if extra == FOR_AN_EXTRA.get(name)}
    assert imported(name, at_import_time=True) & FOR_AN_EXTRA.keys() <= own


def test_importing_the_package_brings_in_no_extra():
    code = f"import sys, torch, numpy.random; before = set(sys.modules); import equipoise; {CHECK}"
    command = [sys.executable, "-c", code, *EXTRAS]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


# Whatever torch itself brings in does not count, but none of the extras may be there at all.
CHECK = """
new = {name.split('.')[0] for name in set(sys.modules) - before} - {'equipoise', 'torch', 'numpy'}
new -= set(sys.stdlib_module_names)
print(*sorted(new), *[name for name in sys.argv[1:] if name in sys.modules])
""".strip().replace("\n", "; ")


CLASSES = [
    "Linear",
    "Tchebycheff",
    "SmoothTchebycheff",
    "Momentum",
    "Relative",
    "OMD",
    "Euclidean",
    "Entropic",
    "PNorm",
]
CONVERSIONS = ["Last", "Average", "Adaptive"]
MODULE_NAMES = ["methods", "theory", "simplex", "preference", "state"]


def test_the_names_that_must_exist():
    assert {*CLASSES, *CONVERSIONS, *MODULE_NAMES} <= set(equipoise.__all__)
    assert all(hasattr(equipoise, name) for name in equipoise.__all__)
    assert callable(equipoise.simplex.project)
    assert callable(equipoise.preference.grid)
