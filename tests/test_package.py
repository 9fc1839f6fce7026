"""What the package promises before anything is run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = [
    "timm",
    "transformers",
    "sklearn",
    "matplotlib",
    "pandas",
    "seaborn",
    "torchvision",
    "mlxtend",
    "scipy",
]


def test_import_is_light():
    """After torch, `import fedbook` adds at most 0.3 s and none of the heavy libraries."""
    code = (
        "import torch, sys, time, json; a = time.perf_counter(); import fedbook, fedbook.cli; b "
        "= time.perf_counter();"
        f"print(json.dumps([b - a, [m for m in {HEAVY} if m in sys.modules]]))"
    )
    for _ in range(3):  # a busy machine may be late once or twice
        said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)
        seconds, loaded = json.loads(said)
        assert loaded == []
        if seconds < 0.3:
            return
    raise AssertionError(f"{seconds} s")


def test_the_readme_has_the_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "pip install -e '.[all]' && fedbook reproduce" in readme
    assert "pip install -e '.[all,test]' && pytest" in readme
    assert "pip install -e '\\.\\[all,test\\]' && pytest" in (ROOT / ".ci" / "run").read_text()


def test_dependencies_have_floors_only():
    text = (ROOT / "pyproject.toml").read_text()
    wanted = re.findall(r'^\s*"([A-Za-z0-9_.-]+(?:\[[a-z,]+\])?)([<>=!~][^"]*)?",?$', text, re.M)
    assert {"torch", "timm", "ipywidgets"} <= {name for name, _ in wanted}
    assert not [spec for _, spec in wanted if "<" in spec or "==" in spec or "~" in spec]


def test_check_asks_for_what_pip_installs():
    from fedbook.check import OPTIONAL, WANTED

    text = (ROOT / "pyproject.toml").read_text()
    core, _, extras = text.partition("[project.optional-dependencies]")
    assert [name for name in WANTED if f'"{name}' not in core] == []
    assert [name for name in OPTIONAL if f'"{name}' not in extras or f'"{name}' in core] == []


@pytest.mark.parametrize(
    "tool", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]]
)
def test_linters(tool):
    result = subprocess.run([sys.executable, "-m", *tool], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_name_can_be_imported_from_fedbook():
    import fedbook

    for name in fedbook.__all__:
        assert getattr(fedbook, name).__name__.endswith(name)
    assert set(fedbook.__all__) <= set(dir(fedbook))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedbook.nothing  # noqa: B018
