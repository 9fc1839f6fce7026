"""What SECURITY.md promises: no code from files, no shell, pinned downloads, names stay text."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import torch

from fedbook import Federation, methods, models, papers, simulate
from fedbook.data.pinned import SHA256
from fedbook.papers.claims import Claim
from fedbook.papers.rows import Row

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "fedbook").rglob("*.py"))
EVIL = "<script>alert('x')</script>&\"$\\frac$"


def calls():
    """(file, dotted name, call) of every call in the package."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path.name, ast.unparse(node.func), node


def keyword(call, name):
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


# -- code from outside -----------------------------------------------------------------------------
def test_nothing_is_evaluated():
    forbidden = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
    forbidden |= {"tempfile.mktemp", "yaml.load", "yaml.unsafe_load", "joblib.load"}
    found = [(f, name) for f, name, _ in calls() if name in forbidden]
    own = {("assignments.py", "compile"), ("assignments.py", "exec")}  # the course's own cells
    assert [call for call in found if call not in own] == []


def test_no_pickle_is_imported():
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [a.name for a in node.names if a.name.split(".")[0] in modules]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in modules:
                found.append(node.module)
    assert found == []


def test_arrays_and_weights_are_read_without_objects():
    for file, name, call in calls():
        if name == "torch.load":
            assert keyword(call, "weights_only") == "True", file
        if name == "np.load":
            assert keyword(call, "allow_pickle") in (None, "False"), file


def test_no_shell_and_no_unpacking_to_the_disk():
    for file, name, call in calls():
        assert keyword(call, "shell") in (None, "False"), file
        assert name.split(".")[-1] not in ("extractall", "unpack_archive", "extract"), file
        if name.startswith("subprocess."):
            assert isinstance(call.args[0], (ast.List, ast.Name)), (file, "a list, not a line")


# -- downloads -------------------------------------------------------------------------------------
def test_downloads_are_pinned():
    assert all(re.fullmatch("[0-9a-f]{64}", s) for s in SHA256.values())
    assert len(set(SHA256.values())) == len(SHA256) == 15
    source = (ROOT / "fedbook" / "data" / "real.py").read_text()
    loose = {  # SECURITY.md names them
        "fetch_mnist_m": "MD5",
        "fetch_notmnist": "size",
        "fetch_chars74k": "first download",
        "fetch_domainnet": "first download",
    }
    said = (ROOT / "SECURITY.md").read_text()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            if ast.unparse(call.func) == "store.download":
                pinned = keyword(call, "sha256") or "**sums" in ast.unparse(call)
                assert pinned or node.name in loose, node.name
    for name in loose:
        assert name.removeprefix("fetch_") in said, name


def test_nothing_is_downloaded_without_being_asked():
    """Only `store.download` opens an address, and only `fetch` functions call it."""
    opened = [(f, n) for f, n, _ in calls() if n.endswith("urlopen") or n.endswith("urlretrieve")]
    own = ("loopback.py", "urllib.request.urlopen")  # a process of one's own on 127.0.0.1
    assert [call for call in opened if call != own] == [("store.py", "urllib.request.urlopen")]
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and "store.download(" in ast.unparse(node):
                assert node.name.startswith("fetch") or node.name == "_first", (path, node.name)


# -- names -----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def evil():
    """A federation and a run in which everything that has a name has a bad one."""
    x, y = torch.randn(6, 4), torch.arange(6) % 2
    clients = [{"train": (x, y), "test": (x, y), "name": EVIL, "type": k % 2} for k in range(2)]
    own = Federation.from_arrays(clients, class_names=[EVIL, "b"], type_names=["a", EVIL])
    method = methods.get("fedavg").replace(name=EVIL)
    run = simulate(method, own, models.build("linear", own), 1, quiet=True).run()
    row = Row(settings={"dataset": EVIL}, method=EVIL, metric="avg", value=1.0)
    spec = dataclasses.replace(papers.get("fedgcr/table1"), rows=(row,), title=EVIL)
    claim = Claim(id=EVIL, paper=EVIL, text=EVIL, checks=lambda t: ())
    shown = [own, own.clients[0], method, run, run.records[0], spec, claim]
    return shown, own, run


def test_no_name_becomes_html(evil):
    shown, own, run = evil
    tables = [thing._repr_html_() for thing in shown]
    tables += [own.summary()._repr_html_(), run.frame()._repr_html_()]
    for html in tables:
        assert "<script" not in html
    assert sum("&lt;script&gt;" in html for html in tables) >= 7


def test_every_class_that_shows_html_is_looked_at(evil):
    shown, _, _ = evil
    seen = {type(thing).__name__ for thing in shown}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                if "_repr_html_" in names and node.name not in seen:
                    body = ast.unparse(node)
                    assert "html_table(" in body or "table(" in body or "html(" in body, node.name


def test_html_is_made_in_one_place():
    """Tags are written in html.py, and in the two modules that write whole pages and tables; their
    own tests try names that are code.
    """
    for path in SOURCES:
        if path.name not in ("html.py", "page.py", "export.py"):
            tags = re.findall(r"<(?:script|table|td|div|span|img)\b", path.read_text())
            assert not tags, (path.name, tags)


def test_names_are_no_formulas_in_figures(evil):
    import matplotlib.pyplot as plt

    _, own, _ = evil
    figure = own.plot().figure
    figure.canvas.draw()  # an unescaped "$\frac$" is a formula that does not parse
    plt.close(figure)


# -- dependencies ----------------------------------------------------------------------------------
def test_every_dependency_is_in_the_list():
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"\ndependencies = \[\n(.*?)\n\]", text, re.S)[1]
    said = (ROOT / "SECURITY.md").read_text()
    for line in block.splitlines():
        name = re.match(r'\s*"([\w-]+)', line)[1]
        assert f"| {name} |" in said, name
