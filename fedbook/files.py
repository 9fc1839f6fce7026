"""Write a file whole or not at all, and keep two processes from doing it at once."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbook.errors import FedbookError

REASONS = {
    errno.ENOSPC: "no space left",
    getattr(errno, "EDQUOT", errno.ENOSPC): "no space left",
    errno.EFBIG: "no space left (limit of a file's size)",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "no permission (read-only)",
}
# what a broken file makes readers of JSON and arrays raise
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError),
    *(EOFError, RecursionError, MemoryError),
)
ELSEWHERE = "free some space or choose another folder"


@contextmanager
def write_atomically(path: str | Path, hint: str = ELSEWHERE) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it takes the place of `path` when all went well.

    The content reaches the disk before the name does. Whatever goes wrong, `path` stays as it was
    and nothing is left beside it; a disk that refuses is a FedbookError with `hint`.
    """
    path = Path(path)
    who = f"{os.getpid()}-{threading.get_ident()}"
    part = path.with_name(f".{path.stem}.{who}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except Exception as error:
        if (cause := _of_the_disk(error)) is None:
            raise
        raise refused(path, cause, hint) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def refused(path: Path, error: OSError, hint: str = ELSEWHERE) -> FedbookError:
    """What a disk's refusal means."""
    reason = REASONS.get(error.errno or 0, error.strerror or str(error))
    return FedbookError(f"cannot write {path}: {reason}", f"{hint}; nothing half-written was left")


def _of_the_disk(error: Exception) -> OSError | None:
    """What the system said; safetensors, written in Rust, tells its number in the text."""
    if isinstance(error, OSError):
        return error
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


@contextmanager
def locked(path: str | Path, shared: bool = False) -> Iterator[None]:
    """Alone among processes with a file (made if need be) or a folder, or among readers if
    `shared`.

    The system frees the lock when its process ends, however it ends. Where nothing can be locked
    (Windows, some network drives) nobody waits.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    plain = shared or Path(path).is_dir()
    flags = os.O_RDONLY if plain else os.O_RDWR | os.O_CREAT
    named = False
    while not named:  # who had the lock may have moved the file: take the one with its name now
        handle = os.open(path, flags, 0o644)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                named = os.path.samestat(os.fstat(handle), os.stat(path))
            if named:
                yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may have the handle too
            os.close(handle)
