"""The printed numbers: a row is one of them, with the settings it was measured in."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

FACTOR = {
    "percent": 100.0,
    "percentage_points": 100.0,
    "million": 1e-6,
    "mflops_as_printed": 0.5e-9,  # printed as M; the numbers are billions of multiply-adds
}
POINT = {"percent": 1.0, "percentage_points": 1.0, "macro_f1": 0.01, "similarity": 0.01}
NO_SETTINGS = (
    "paper table symbol method metric value std unit spread_kind method_label note"
).split()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One printed number; in a figure, a quantity to measure, whose value is None."""

    settings: dict[str, Any]
    method: str
    metric: str = ""
    unit: str = ""
    value: float | None = None
    std: float | None = None
    spread: str = ""
    note: str = ""

    @cached_property
    def setting(self) -> str:
        """The settings in words: "digit_five dif=10"."""
        words = [str(v) if k == "dataset" else f"{k}={v}" for k, v in self.settings.items()]
        return " ".join(words)

    @property
    def factor(self) -> float:
        """What a stored metric is multiplied by to be in the printed unit."""
        return FACTOR.get(self.unit, 1.0)

    @property
    def printed_std(self) -> float | None:
        """The printed spread as a standard deviation (FGPT prints variances)."""
        if self.std is not None and self.spread.startswith("variance"):
            return math.sqrt(self.std)
        return self.std

    def fits(self, **where: Any) -> bool:
        """Whether the row has these settings, or this method, metric or unit."""
        for name, value in where.items():
            own = self[name] if name in self.settings else getattr(self, name, None)
            if own != value:
                return False
        return True

    def __getitem__(self, name: str) -> Any:
        """A setting, or None where the row has no such setting."""
        return self.settings.get(name)

    def __hash__(self) -> int:
        return hash((self.setting, self.method, self.metric))


def read_csv(path: Path) -> list[dict[str, str]]:
    """A file as one dict of strings per line."""
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


@cache
def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a published table."""
    return tuple(_row(line) for line in read_csv(path))


def _row(line: dict[str, str]) -> Row:
    settings = {k: _number(v) for k, v in line.items() if k not in NO_SETTINGS and v != ""}
    return Row(
        settings=settings,
        method=line["method"],
        metric=line["metric"],
        unit=line["unit"],
        value=float(line["value"]) if line["value"] else None,
        std=float(line["std"]) if line["std"] else None,
        spread=line["spread_kind"],
        note=line["note"],
    )


def _number(text: str) -> Any:
    """A printed cell as a number if it is one; whole numbers stay whole."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
