"""Mutation testing by hand: change one operator, number or condition of a module at a time, and see
whether its tests notice.

    python tests/mutate.py fedbook/metrics.py tests/test_metrics.py [-k expression]

Tests are collected once; every mutant is a forked process in which the functions of the module get
new code, so that whoever imported them sees it too. Messages, annotations and docstrings stay as
they are. Prints the survivors and the share that was killed.
"""

import ast
import copy
import dataclasses
import importlib
import os
import signal
import sys
import types

import pytest

SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
SECONDS = 60


def told(node):
    """Nodes that only speak: messages, annotations, docstrings."""
    found = []
    for n in ast.walk(node):
        if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call):
            found += [*n.exc.args, *n.exc.keywords]
        found += [a for a in (getattr(n, "annotation", None), getattr(n, "returns", None)) if a]
        body = getattr(n, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant):
                found.append(body[0])
    return {id(inner) for n in found for inner in ast.walk(n)}


def changes(n):
    """(what is changed, how) for one node."""
    if isinstance(n, ast.Compare):
        for i, op in enumerate(n.ops):
            if type(op) in SWAPS:
                yield "compare", lambda m, i=i, op=op: m.ops.__setitem__(i, SWAPS[type(op)]())
    elif isinstance(n, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(n.op) in SWAPS:
        yield "operator", lambda m: setattr(m, "op", SWAPS[type(m.op)]())
    elif isinstance(n, ast.UnaryOp) and isinstance(n.op, (ast.Not, ast.USub)):
        yield "sign", lambda m: setattr(m, "op", ast.UAdd() if numeric(m) else ast.Not())
    elif isinstance(n, ast.Constant) and isinstance(n.value, bool):
        yield "bool", lambda m: setattr(m, "value", not m.value)
    elif isinstance(n, ast.Constant) and isinstance(n.value, (int, float)):
        yield "number", lambda m: setattr(m, "value", m.value + 1)
    elif isinstance(n, ast.Constant) and isinstance(n.value, str):
        yield "text", lambda m: setattr(m, "value", m.value + "XX")
    elif isinstance(n, (ast.If, ast.IfExp, ast.While)):
        yield "condition", lambda m: setattr(m, "test", ast.UnaryOp(ast.Not(), m.test))
    elif isinstance(n, ast.Raise):
        yield "no error", lambda m: (setattr(m, "exc", None), setattr(m, "gone", True))


def numeric(node):
    return isinstance(node.op, ast.USub)


class Without(ast.NodeTransformer):
    """Errors that are not raised, and `not not`, written out."""

    def visit_Raise(self, node):
        return ast.Pass() if getattr(node, "gone", False) else node


def mutants(source):
    """(line, kind, code) of every single change."""
    tree = ast.parse(source)
    silent = told(tree)
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in silent:
            continue
        for kind, change in changes(node):
            new = copy.deepcopy(tree)
            target = next(m for i, m in enumerate(ast.walk(new)) if i == number)
            if kind == "sign" and isinstance(target.op, ast.Not):
                target.op = ast.Not()
                target.operand = ast.UnaryOp(ast.Not(), target.operand)
            else:
                change(target)
            new = ast.fix_missing_locations(Without().visit(new))
            yield node.lineno, kind, new


def functions(space, prefix=""):
    """Every function of a module or class by its qualified name."""
    for name, value in list(vars(space).items()):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, types.FunctionType):
            yield prefix + name, value
        elif isinstance(value, type) and value.__module__ == getattr(space, "__name__", prefix):
            yield from functions(value, f"{prefix}{name}.")


def put(module, code):
    """Give the functions of a loaded module the code of a mutant."""
    other = types.ModuleType(module.__name__)
    other.__file__ = module.__file__
    before = sys.modules[module.__name__]
    sys.modules[module.__name__] = other
    exec(compile(code, module.__file__, "exec"), other.__dict__)
    sys.modules[module.__name__] = before
    new = dict(functions(other))
    for name, old in functions(module):
        fresh = new.get(name)
        if fresh is None or old.__module__ != module.__name__:
            continue
        old.__code__ = fresh.__code__
        old.__defaults__ = fresh.__defaults__
        old.__kwdefaults__ = fresh.__kwdefaults__
    for name, value in vars(other).items():
        old = vars(module).get(name)
        if isinstance(old, type) and dataclasses.is_dataclass(old):
            for f in dataclasses.fields(old):
                if f.name in vars(value):
                    setattr(old, f.name, vars(value)[f.name])
        elif isinstance(value, (int, float, str, tuple)) and not name.startswith("__"):
            setattr(module, name, value)


class Runner:
    """Instead of running the tests once: once per mutant."""

    def __init__(self, path):
        self.path = path
        self.killed = self.all = 0

    def pytest_runtestloop(self, session):
        name = self.path.removesuffix(".py").replace("/", ".")
        module = importlib.import_module(name)
        with open(self.path) as f:
            source = f.read()
        lines = source.splitlines()
        assert self.survives(session, module, ast.parse(source)), "the tests fail as it is"
        for line, kind, code in mutants(source):
            self.all += 1
            if self.survives(session, module, code):
                print(f"survived: line {line:4} {kind:10} {lines[line - 1].strip()}", flush=True)
            else:
                self.killed += 1
        share = 100 * self.killed / self.all
        print(f"{self.path}: {self.killed} of {self.all} mutants killed, {share:.1f} %", flush=True)
        return True

    def survives(self, session, module, code):
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS)  # a hang counts as noticed
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                try:
                    put(module, code)
                    for item, after in zip(session.items, [*session.items[1:], None]):
                        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                        if session.testsfailed:
                            os._exit(1)
                except BaseException:
                    os._exit(1)
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


if __name__ == "__main__":
    options = ["-o", "addopts=", "-q", "-p", "no:cacheprovider", "-s", "--no-header"]
    sys.exit(pytest.main([*options, *sys.argv[2:]], plugins=[Runner(sys.argv[1])]))
