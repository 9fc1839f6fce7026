"""Write a file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it takes the place of `path` when all went well."""
    path = Path(path)
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
