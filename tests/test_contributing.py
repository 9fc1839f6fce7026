"""The Python blocks of README.md and CONTRIBUTING.md run as they are printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = [
    pytest.param(page, block, id=f"{page}-{i}")
    for page in ("README.md", "CONTRIBUTING.md")
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S))
]


@pytest.mark.parametrize("page, block", BLOCKS)
def test_block(page, block, capsys):
    source = block.replace("rounds=10)", "rounds=1)").replace("dif=5)", "dif=5, scale=0.05)")
    exec(compile(source, page, "exec"), {"__name__": "block"})
