"""Notebook 13 runs Flower: without it, it is left out, and the head of the report says so."""

from importlib.util import find_spec

MISSING = find_spec("flwr") is None
collect_ignore = ["13_from_simulation_to_flower.ipynb"] if MISSING else []


def pytest_report_header(config):
    if MISSING:
        return "notebook 13 is left out: it needs Flower (pip install 'fedbook[flower]')"
    return None
