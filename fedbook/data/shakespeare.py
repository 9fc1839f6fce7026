"""Shakespeare by role, for predicting the next character; and roles_offline, whose words are drawn,
not written.

shakespeare. A client is a role of a play, as in LEAF (Caldas et al. 2018). A sample is 80
characters of what the role says and the one that follows; there is one sample per character. Of a
role's samples the first 80 % are for training, then come 80 that are left out, since they share
characters with both sides, and the rest is for testing; a role that would have no test sample is
left out. As Client2Vec asks for it (appendix D.2), roles with fewer than 40 samples are left out,
and roles are taken in random order until they hold a tenth of all samples. It is read from what
lies in the folder shakespeare/ of the data folder, the first of:

    leaf/train/*.json and leaf/test/*.json  as LEAF's preprocessing writes them, split already
    plays/*.txt                         one file per play: roles at the margin, their lines indented
    *.txt                     "Role:" and its lines, blank lines between (tinyshakespeare; no plays)

Lines that begin with Enter, Exit and the like are stage directions and dropped. Characters outside
LEAF's alphabet of 80 are dropped. Not the same as LEAF's own text, which is Project Gutenberg's,
with other abbreviations of roles.

roles_offline. Every role draws sentences from one small grammar, with favourite words, exclamations
and lengths of its own. It is synthetic, and for trying things out only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedbook.data import store
from fedbook.data.dataset import Columns
from fedbook.errors import FedbookError
from fedbook.files import UNREADABLE

VERSION = 1  # of the generator
ALPHABET = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's
)
CODE = np.full(256, -1, np.int16)
CODE[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
STAGE = re.compile(r"(Enter|Re-enter|Exit|Exeunt|Flourish|Alarum|Sennet)\b")
TINY = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

Roles = dict[str, str]


# --------------------------------------------------------------------------------------------------
# sources


def place() -> tuple[str, list[Path]] | None:
    """Which of the three sources is here, and its files."""
    folder = store.root() / "shakespeare"
    leaf = [sorted((folder / "leaf" / part).glob("*.json")) for part in ("train", "test")]
    if all(leaf):
        return "leaf", leaf[0] + leaf[1]
    for name, where in (("plays", folder / "plays"), ("text", folder)):
        if files := sorted(where.glob("*.txt")):
            return name, files
    return None


def fetch(name: str, folder: Path, quiet: bool) -> None:
    """tinyshakespeare: 1.1 MB, a quarter of the plays, roles of the same name in several plays
    thrown together.
    """
    store.download(
        TINY,
        store.root() / "shakespeare" / "tinyshakespeare_input.txt",
        sha256=TINY_SHA256,
        quiet=quiet,
    )


def read_play(text: str) -> Iterator[tuple[str, str]]:
    """(role, line): names stand at the margin, their lines are indented."""
    role = None
    for line in text.splitlines():
        if line[:1].strip():
            role = None if line.startswith("****") or "|" in line else line.strip()
        elif role and line.strip() and not STAGE.match(line.strip()):
            yield role, line.strip()


def read_script(text: str) -> Iterator[tuple[str, str]]:
    """(role, line) of speeches with a blank line between, headed "Role:"."""
    for block in re.split(r"\n\s*\n", text):
        head, *lines = block.strip().splitlines() or [""]
        if head.endswith(":"):
            yield from (
                (head[:-1], line.strip())
                for line in lines
                if line.strip() and not STAGE.match(line.strip())
            )


def gather(source: str, files: list[Path]) -> Roles:
    """What each role says, in one line; a role of a play is named "Play: ROLE"."""
    said: dict[str, list[str]] = {}
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        for role, line in (read_play if source == "plays" else read_script)(text):
            said.setdefault(f"{path.stem}: {role}" if source == "plays" else role, []).append(line)
    if not said:
        raise FedbookError(
            f"no role was found in {files[0].parent}", "the module's docstring shows how files look"
        )
    return {role: " ".join(lines) for role, lines in said.items()}


def encode(text: str) -> np.ndarray:
    """Characters as numbers; those outside the alphabet are dropped."""
    codes = CODE[np.frombuffer(text.encode("latin-1", "ignore"), np.uint8)]
    return codes[codes >= 0]


def decode(codes: Any) -> str:
    return "".join(ALPHABET[int(c)] for c in codes)


# --------------------------------------------------------------------------------------------------
# samples


def windows(codes: np.ndarray, length: int, test: float) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows) of length + 1 characters, the last of which is asked for; no
    character in both.
    """
    if len(codes) <= length:
        nothing = np.empty((0, length + 1), np.int16)
        return nothing, nothing
    rows = np.lib.stride_tricks.sliding_window_view(codes, length + 1)
    cut = int((1 - test) * len(rows))
    return rows[:cut], rows[cut + length :]


def thin(rows: np.ndarray, limit: float) -> np.ndarray:
    """At most so many rows, evenly spaced."""
    count = min(len(rows), max(1, round(limit)))
    return rows[np.linspace(0, len(rows) - 1, count).round().astype(int)] if len(rows) else rows


def choose(sizes: list[int], fraction: float, seed: int) -> list[int]:
    """Roles in random order until they hold that share of all samples; in their old order again."""
    order = np.random.default_rng(seed).permutation(len(sizes))
    before = np.cumsum([0, *(sizes[i] for i in order)])[:-1]
    return sorted(order[before < fraction * sum(sizes)].tolist())


def assemble(parts: list[tuple[str, np.ndarray, np.ndarray]]) -> Columns:
    """(role, training rows, test rows) as columns; a role is a domain."""
    rows = np.concatenate([r for _, *both in parts for r in both])
    sizes = [(len(a), len(b)) for _, a, b in parts]
    return Columns(
        x=rows[:, :-1].astype(np.int16),
        y=rows[:, -1].astype(np.int64),
        split=np.concatenate([np.repeat([0, 1], both) for both in sizes]).astype(np.uint8),
        class_names=list(ALPHABET),
        domain=np.repeat(np.arange(len(parts)), [sum(both) for both in sizes]),
        domain_names=[name for name, *_ in parts],
    )


def _check(length: int, test: float, fraction: float, limit: int | None) -> None:
    if not (isinstance(length, int) and length >= 1):
        raise FedbookError(
            f"length must be a whole number of at least 1, got {length!r}", "the paper has 80"
        )
    if not 0 < test < 1 or not 0 < fraction <= 1:
        raise FedbookError(
            f"test must lie in (0, 1), fraction in (0, 1], got {test!r} and {fraction!r}",
            "try 0.2, 0.1",
        )
    if limit is not None and not (isinstance(limit, int) and limit >= 1):
        raise FedbookError(
            f"limit must be None or a whole number of at least 1, got {limit!r}", "for example 500"
        )


def shakespeare(
    size: int,
    fraction: float = 0.1,
    min_samples: int = 40,
    test: float = 0.2,
    length: int = 80,
    limit: int | None = None,
    seed: int = 0,
) -> tuple[Columns, dict[str, Any]]:
    """Roles as domains. ``limit`` keeps at most so many training samples of a role, evenly spaced,
    and test samples in proportion. LEAF's files are taken as they are but for ``limit``.
    """
    _check(length, test, fraction, limit)
    found = place()
    if found is None:
        raise FedbookError(
            f"nothing in {store.root() / 'shakespeare'}", "`fedbook data fetch shakespeare`"
        )
    source, files = found
    note: dict[str, Any] = {"source": source, "files": len(files)}
    if source == "leaf":
        parts = read_leaf(files)
    else:
        parts = []
        for name, text in gather(source, files).items():
            train, held = windows(encode(text), length, test)
            if len(train) + len(held) + length >= min_samples and len(train) and len(held):
                parts.append((name, train, held))
        if not parts:
            raise FedbookError(f"no role says more than {2 * length} characters", "lower length")
        parts = [parts[i] for i in choose([len(a) + len(b) for _, a, b in parts], fraction, seed)]
        note |= {
            "fraction": fraction,
            "min_samples": min_samples,
            "test": test,
            "length": length,
            "seed": seed,
        }
    if limit is not None:
        note["limit"] = limit
        parts = [(n, thin(a, limit), thin(b, limit * test / (1 - test))) for n, a, b in parts]
    return assemble(parts), {**note, "roles": len(parts)}


def read_leaf(files: list[Path]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """LEAF's JSON: user_data[user] = {"x": [80 characters, ...], "y": [1 character, ...]}, in
    train/ and test/.
    """
    held: dict[str, dict[str, list[np.ndarray]]] = {}
    for path in files:
        try:
            for user, data in json.loads(path.read_text())["user_data"].items():
                if len({len(x) + len(y) for x, y in zip(data["x"], data["y"], strict=True)}) != 1:
                    raise ValueError(f"the samples of {user!r} are not of one length")
                text = "".join(x + y for x, y in zip(data["x"], data["y"], strict=True))
                codes = CODE[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
                codes[codes < 0] = ALPHABET.index(" ")
                held.setdefault(user, {}).setdefault(path.parent.name, []).append(
                    codes.reshape(len(data["y"]), -1)
                )
        except UNREADABLE as error:
            raise FedbookError(
                f"{path.name} is not a file of LEAF's Shakespeare: {error}", "make it again"
            ) from None
    both = {
        user: parts for user, parts in sorted(held.items()) if parts.keys() >= {"train", "test"}
    }
    if not both:
        raise FedbookError(
            "no user is in both leaf/train and leaf/test", "use LEAF's split by sample (-t sample)"
        )
    return [
        (user, np.concatenate(p["train"]), np.concatenate(p["test"])) for user, p in both.items()
    ]


# --------------------------------------------------------------------------------------------------
# generator

SUBJECTS = (
    "the king|my brother|this old house|a sailor|the night|your letter|her garden|the market|"
    "our captain"
)
VERBS = "hides|carries|forgets|praises|follows|wakes|sells|mends|fears"
OBJECTS = (
    "the silver bell|a loaf of bread|no stranger|the long road|his own shadow|seven horses|the "
    "winter|a small lie"
)
OPENINGS = "Ah|Listen|Indeed|No|Well then|Alas|Come now|By my hat"
ENDINGS = ".|!|?|;|..."


def roles_offline(
    size: int,
    roles: int = 8,
    sentences: int = 40,
    length: int = 20,
    test: float = 0.2,
    seed: int = 0,
) -> tuple[Columns, dict[str, Any]]:
    """Roles as domains, each with favourite words of its own; later roles speak less."""
    _check(length, test, 1.0, None)
    if roles < 1 or sentences < 8:
        raise FedbookError(
            f"at least 1 role and 8 sentences, got {roles} and {sentences}",
            "try roles=8, sentences=40",
        )
    parts = []
    for r in range(roles):
        rng = np.random.default_rng([VERSION, seed, r])
        words = [w.split("|") for w in (OPENINGS, SUBJECTS, VERBS, OBJECTS, ENDINGS)]
        taste = [rng.dirichlet(np.full(len(w), 0.4)) for w in words]
        lines = []
        for _ in range(max(8, round(sentences * 0.9**r))):
            opening, subject, verb, thing, end = (
                str(rng.choice(w, p=p)) for w, p in zip(words, taste)
            )
            lines.append(f"{opening}, {subject} {verb} {thing}{end}")
        parts.append((f"role {r}", *windows(encode(" ".join(lines)), length, test)))
    return assemble(parts), {
        "generator": f"fedbook.data.shakespeare v{VERSION}",
        "seed": seed,
        "roles": roles,
    }
