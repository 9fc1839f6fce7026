"""Code of your own by the name of its file: `my.py:mine` is `mine` of `my.py`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from fedbook.errors import FedbookError, unknown

HINT = "name it FILE.py:NAME, for example my.py:mine"


def is_own(name: str) -> bool:
    """Whether a name is one of a file."""
    return name.endswith(".py") or ".py:" in name


def load(name: str) -> Any:
    """What `my.py:mine` names; the file is run as Python runs a script, its folder on the path."""
    path, _, attribute = name.rpartition(":")
    file = _file(path or name).resolve()
    if not path:
        raise FedbookError(f"{name} does not say what to take from the file", HINT)
    where = f"fedbook_own_{file.stem}"
    spec = importlib.util.spec_from_file_location(where, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[where] = module  # dataclasses look their module up
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise FedbookError(f"{path} cannot be run: {said}", "put it right and try again") from error
    if not hasattr(module, attribute):
        known = [n for n in vars(module) if not n.startswith("_")]
        raise unknown(f"name in {path}", attribute, known)
    return getattr(module, attribute)


def source(name: str) -> str:
    """The hash of the file, so that a run with other code has another key."""
    return hashlib.sha256(_file(name.rpartition(":")[0]).read_bytes()).hexdigest()[:16]


def _file(path: str) -> Path:
    if not Path(path).is_file():
        raise FedbookError(f"there is no file {path}", HINT)
    return Path(path)
