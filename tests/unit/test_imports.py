"""Who imports whom: packages point one way, and the pure parts need nothing installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "edgedit"
MODULES = sorted(ROOT.rglob("*.py"))

# A part may import those left of it, and itself.
LAYERS = [
    "errors", "launcher", "dtypes", "topology", "cgroup", "host", "binding", "kernels", "degrees", "config",
    "parallel", "graph", "sequence", "models", "pipelines", "cli",
]  # fmt: skip
# What a part of the row may import besides, and the parts that stand beside the row.
BESIDES = {"models": {"weights"}, "pipelines": {"weights", "sampling", "embedded"}, "cli": {"commands"}}
ASIDE: dict[str, set[str]] = {
    "sampling": {"errors"},
    "weights": {"errors", "dtypes", "host", "graph"},
    "commands": {*LAYERS, "sampling", "tuning", "weights", "embedded", "presets"},
    "tuning": {*LAYERS[: LAYERS.index("models") + 1], "weights"},
    "embedded": {"errors"},
    "presets": {"errors"},
    "__init__": set(),
    "__main__": {"cli"},
    "_lazy": set(),
}
OWNERS = {"mpi4py": {"parallel"}, "cupy": {"parallel"}, "ggml": {"graph", "weights"}}


def part(path: Path) -> str:
    """The package or module directly under edgedit."""
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path: Path) -> set[str]:
    """Dotted names of everything that a module imports, wherever in it the import stands; not what only types need."""
    tree = ast.parse(path.read_text())
    names: set[str] = set()

    class Visitor(ast.NodeVisitor):
        def visit_If(self, node: ast.If) -> None:
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                self.generic_visit(node)

        def visit_Import(self, node: ast.Import) -> None:
            names.update(alias.name for alias in node.names)

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)

    Visitor().visit(tree)
    return names


def parts_imported(path: Path) -> set[str]:
    found = {name.split(".")[1] for name in imported(path) if name.startswith("edgedit.")}
    return {name for name in found if (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = part(path)
    if own in LAYERS:
        allowed = {*LAYERS[: LAYERS.index(own) + 1], *BESIDES.get(own, ())}
    else:
        allowed = {own, *ASIDE[own]}
    wrong = parts_imported(path) - allowed - {"_lazy", "_native"}
    assert not wrong, f"{own} imports {sorted(wrong)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_their_owners_import_mpi4py_cupy_and_ggml(path: Path) -> None:
    for library, owners in OWNERS.items():
        users = {name for name in imported(path) if name.split(".")[0] == library}
        assert not users or part(path) in owners, f"{path.relative_to(ROOT)} imports {library}"


def run_without(blocked: list[str], code: str) -> None:
    """Run code in a new interpreter in which the modules `blocked` cannot be imported."""
    program = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n{code}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_planner_and_mesh_need_neither_numpy_nor_ggml_nor_mpi() -> None:
    run_without(
        ["numpy", "ggml", "mpi4py", "cupy"],
        "import edgedit\n"
        "from edgedit.graph.planner import plan\n"
        "from edgedit.parallel.mesh import Mesh\n"
        "from edgedit import ParallelConfig\n"
        "assert Mesh(ParallelConfig.for_plan(cfg_degree=2, ulysses_degree=4)).world_size == 8",
    )


def test_the_cost_model_needs_neither_numpy_nor_ggml_nor_mpi() -> None:
    run_without(
        ["numpy", "ggml", "mpi4py", "cupy"],
        "import edgedit.tuning.search, edgedit.tuning.cost_model, edgedit.tuning.cache, edgedit.tuning.cluster",
    )


def test_one_rank_needs_no_mpi() -> None:
    run_without(["mpi4py"], "from edgedit import ParallelContext\nParallelContext().close()")


def test_a_missing_mpi4py_is_said_with_the_remedy() -> None:
    run_without(
        ["mpi4py"],
        "from edgedit import EdgeditError, ParallelConfig, ParallelContext\n"
        "try: ParallelContext(ParallelConfig(backend='mpi'))\n"
        "except EdgeditError as error: assert 'pip install' in str(error) and 'mpi4py' in str(error)\n"
        "else: raise SystemExit('no error')",
    )


def test_names_of_the_package_are_found_and_others_are_not() -> None:
    import edgedit

    assert {"ParallelConfig", "Pipeline", "plan"} <= set(dir(edgedit))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        edgedit.Nonsense  # noqa: B018
