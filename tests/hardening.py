"""The tables of HARDENING.md: `python tests/hardening.py` runs every bad input, reads the first
line of every fault's docstring, and writes what came out. `tests/test_bad_input.py` notices tables
that have gone stale.
"""

import contextlib
import inspect
import io
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "HARDENING.md"
sys.path.insert(0, str(ROOT / "tests"))


def tidy(text, *folders):
    """A message without what differs from machine to machine."""
    for folder in folders:
        text = text.replace(str(folder), "...")
    text = re.sub(r"^fedbook( \w+)?: error: ", "", text.strip())
    return re.sub(r"(\.\.\./)?(here|packs)/", "", text).replace("|", "\\|")


def stem(text):
    """The part of a message that is fedbook's own: libraries have their say after a colon."""
    return re.split(r"[:('\"]", text)[0].strip()


def rows(title):
    """(what, told) of the table under that title, as HARDENING.md has it."""
    found = re.search(rf"<!-- {title} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.S)
    assert found, f"HARDENING.md has no table {title}"
    lines = found[1].strip().splitlines()[2:]
    cells = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines]
    return {cell[0]: cell[1] for cell in cells}


def described(module):
    """(what, outcome) of every test of a module that says so in its docstring."""
    found = {}
    for name, test in vars(module).items():
        if not name.startswith("test_") or " | " not in (test.__doc__ or ""):
            continue
        what, outcome = inspect.getdoc(test).splitlines()[0].split(" | ")
        marks = [m for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"]
        each = list(marks[0].args[1]) if "{what}" in what else [""]
        for value in each:
            found[what.replace("{what}", str(value))] = outcome
    return found


def put(text, title, table, head):
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    lines += [f"| {what} | {told} |" for what, told in table.items()]
    block = f"<!-- {title} -->\n" + "\n".join(lines) + "\n<!-- end -->"
    pattern = re.compile(rf"<!-- {title} -->\n.*?<!-- end -->", re.S)
    return pattern.sub(lambda _: block, text)


def messages(cases, prepare=lambda place: None):
    """What every case is told."""
    from fedbook import FedbookError

    told = {}
    for name, do in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "here"
            place.mkdir()
            (place / "file").write_text("in the way")
            with contextlib.redirect_stderr(io.StringIO()):
                try:
                    do(place)
                except FedbookError as error:
                    told[name] = tidy(str(error), place, folder)
    return told


def flower(text):
    """The page with the tables of Flower's messages, where Flower is installed."""
    try:
        import bad_messages as bad
    except ImportError:
        return text
    told = {}
    for name, (kind, method, spoil) in bad.ANSWERS.items():
        told[name] = bad.played(kind, method, spoil)[1]
    for name, spoil in bad.SCORES.items():
        told[name] = bad.played("evaluate", "scaffold", spoil)[1]
    for name, spoil in bad.MEETINGS.items():
        told[name] = bad.played("query.who", "scaffold", spoil, when=0)[1]
    said = {name: tidy(bad.reason(warnings[0])) for name, warnings in told.items()}
    text = put(text, "messages", messages(bad.TO_CLIENTS), ("to a client", "told"))
    text = put(text, "answers", said, ("to the server", "told in the log"))
    return put(text, "starts", messages(bad.STARTS), ("to a server", "told"))


def main():
    import bad_inputs
    import test_cli
    import test_faults
    import test_numbers

    from fedbook.cli import main as command

    class Factory:
        def mktemp(self, name):
            place = Path(self.folder) / name
            place.mkdir()
            return place

    told = {}
    with tempfile.TemporaryDirectory() as folder:
        Factory.folder = folder
        packs = test_cli.packs.__wrapped__(Factory())
        os.environ |= {"FEDBOOK_RESULTS": f"{folder}/results", "FEDBOOK_FIGURES": f"{folder}/f"}
        before = os.getcwd()
        os.chdir(folder)
        for name, line in bad_inputs.COMMANDS.items():
            said = io.StringIO()
            words = [part.replace("{packs}", str(packs)) for part in line.split()]
            with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
                command(words)
            told[name] = tidy(said.getvalue(), packs, folder)
        os.chdir(before)
    text = PAGE.read_text()
    text = put(text, "faults", described(test_faults), ("what happens", "outcome"))
    text = put(text, "numbers", described(test_numbers), ("what comes", "outcome"))
    text = put(text, "commands", told, ("on the command line", "told"))
    text = put(text, "python", messages(bad_inputs.PYTHON), ("in Python", "told"))
    text = put(text, "files", messages(bad_inputs.FILES), ("from files", "told"))
    PAGE.write_text(flower(text))


if __name__ == "__main__":
    main()
