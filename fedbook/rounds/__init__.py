"""The stages of a round, the loop that runs them, and what keeps a run safe."""

from fedbook.rounds.device import Device
from fedbook.rounds.evaluation import Scores, evaluate
from fedbook.rounds.loop import Simulation, simulate
from fedbook.rounds.record import Record
from fedbook.rounds.stages import (
    Batch,
    BySize,
    CrossEntropy,
    Equal,
    Grouping,
    Local,
    LocalSolver,
    Method,
    Objective,
    Personal,
    Replace,
    Report,
    Sample,
    Stage,
    Uniform,
    Update,
    Weigh,
)

__all__ = [
    "Batch",
    "BySize",
    "CrossEntropy",
    "Device",
    "Equal",
    "Grouping",
    "Local",
    "LocalSolver",
    "Method",
    "Objective",
    "Personal",
    "Record",
    "Replace",
    "Report",
    "Sample",
    "Scores",
    "Simulation",
    "Stage",
    "Uniform",
    "Update",
    "Weigh",
    "evaluate",
    "simulate",
]
