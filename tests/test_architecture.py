"""The floors of ARCHITECTURE.md: no module imports one from a floor above its own."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fedbook"
ALLOWED = {("federation", "plots")}


def floors() -> dict[str, int]:
    """The height of every unit, as ARCHITECTURE.md lists them from bottom to top."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"From bottom to top:\n\n((?:    .*\n)+)", text)
    assert block is not None
    lines = block.group(1).splitlines()
    return {name.strip(): i for i, line in enumerate(lines) for name in line.split(",")}


def imports(path: Path) -> set[str]:
    """The units of fedbook that a file imports, anywhere in it but for type checking."""
    tree = ast.parse(path.read_text())
    ignored = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            ignored |= {id(n) for n in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in ignored:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedbook"):
            if node.module == "fedbook":
                found |= {a.name for a in node.names if not a.name.startswith("_")}
            else:
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("fedbook.")}
    return found


UNITS = sorted(
    p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
)


def test_every_unit_has_a_floor():
    assert set(UNITS) - {"__init__"} == set(floors())


@pytest.mark.parametrize("unit", [u for u in UNITS if u != "__init__"])
def test_nothing_imports_a_higher_floor(unit):
    height = floors()
    files = [PACKAGE / f"{unit}.py"]
    if (PACKAGE / unit).is_dir():
        files = sorted((PACKAGE / unit).rglob("*.py"))
    for path in files:
        for other in imports(path) & set(height):
            assert height[other] <= height[unit] or (unit, other) in ALLOWED, (path.name, other)


def test_the_round_is_as_short_as_the_page_says():
    source = (PACKAGE / "rounds" / "loop.py").read_text()
    tree = ast.parse(source)
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_round"]
    lines = source.splitlines()[found[0].lineno - 1 : found[0].end_lineno]
    assert len([line for line in lines if line.strip()]) == 11
    assert "`Simulation._round` is 11 lines" in (ROOT / "ARCHITECTURE.md").read_text()
