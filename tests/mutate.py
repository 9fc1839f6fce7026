"""Mutation testing by hand: change one operator, number or condition of a module at a time, and see
whether its tests notice.

    python tests/mutate.py fedbook/metrics.py tests/test_metrics.py [-k expression]
    python tests/mutate.py --sample 40 --seed 0 fedbook/rounds/loop.py tests/test_rounds.py
    python tests/mutate.py --seconds 300 fedbook/rounds/loop.py tests/test_rounds.py

Tests are collected once, and run once under a tracer that tells which lines each of them reaches.
Every mutant is a forked process in which the functions of the module get new code, so that whoever
imported them sees it too; the tests that reach the changed statement are run, the quickest first,
until one fails or BUDGET seconds of them have passed. Messages, annotations and docstrings stay as
they are. Mutants come in a random order, so that the first of them are a sample. Prints the
survivors and the share that was killed, of a sample with its interval.
"""

import argparse
import ast
import copy
import dataclasses
import functools
import importlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
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
BUDGET = 15.0  # seconds of tests, as they took without a change
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


# -- what is changed -------------------------------------------------------------------------------
def told(tree):
    """Nodes that only speak: messages, annotations, docstrings, imports for annotations."""
    found = []
    for n in ast.walk(tree):
        if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call):
            found += [*n.exc.args, *n.exc.keywords]
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "warnings.warn":
            found.append(n)
        if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING":
            found.append(n)
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
    elif isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub):
        yield "sign", lambda m: setattr(m, "op", ast.UAdd())
    elif isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not):
        yield "sign", lambda m: setattr(m, "operand", ast.UnaryOp(ast.Not(), m.operand))
    elif isinstance(n, ast.Constant) and isinstance(n.value, bool):
        yield "bool", lambda m: setattr(m, "value", not m.value)
    elif isinstance(n, ast.Constant) and isinstance(n.value, (int, float)):
        yield "number", lambda m: setattr(m, "value", m.value + 1)
    elif isinstance(n, ast.Constant) and isinstance(n.value, str):
        yield "text", lambda m: setattr(m, "value", m.value + "XX")
    elif isinstance(n, (ast.If, ast.IfExp, ast.While)):
        yield "condition", lambda m: setattr(m, "test", ast.UnaryOp(ast.Not(), m.test))
    elif isinstance(n, ast.Raise):
        yield "no error", lambda m: setattr(m, "gone", True)


class Without(ast.NodeTransformer):
    """Errors that are no longer raised."""

    def visit_Raise(self, node):
        return ast.Pass() if getattr(node, "gone", False) else node


@dataclasses.dataclass
class Mutant:
    number: int  # of the node
    which: int  # of its changes
    kind: str
    line: int
    reach: range | None  # the lines of which a test must reach one; None: any of the module

    def code(self, tree):
        new = copy.deepcopy(tree)
        target = next(n for i, n in enumerate(ast.walk(new)) if i == self.number)
        _, change = list(changes(target))[self.which]
        change(target)
        return ast.fix_missing_locations(Without().visit(new))


def mutants(tree):
    """Every single change."""
    silent = told(tree)
    reach = reaches(tree)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in silent:
            for which, (kind, _) in enumerate(changes(node)):
                found.append(Mutant(number, which, kind, node.lineno, reach.get(id(node))))
    return found


def reaches(tree):
    """The lines of the statement that each node of a function belongs to; of a default, those of
    the function's body."""
    found = {}

    def visit(node, inside, lines):
        if isinstance(node, ast.stmt) and inside:
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            lines = range(node.lineno, max(last, node.lineno) + 1)
        if lines is not None:
            found[id(node)] = lines
        for child in ast.iter_child_nodes(node):
            if isinstance(node, FUNCTIONS):
                own = child in node.body
                whole = range(node.body[0].lineno, node.end_lineno + 1)
                visit(child, own, None if own else whole)
            else:
                visit(child, inside, lines)

    visit(tree, False, None)
    return found


# -- how it is put in place ------------------------------------------------------------------------
def bare(value):
    """The function behind a method, a property or a decorator; None where there is none."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.cached_property):
        value = value.func
    value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, types.FunctionType) else None


def put(old, new, module):
    """Give the functions, settings and constants of a loaded module or class those of a mutant."""
    for name, value in list(vars(old).items()):
        fresh = vars(new).get(name)
        function = bare(value)
        if function is not None and function.__module__ == module:
            other = bare(fresh)
            if other is None:  # a mutant without it, as an unfrozen dataclass
                setattr(old, name, fresh) if name in vars(new) else delattr(old, name)
                continue
            function.__code__ = other.__code__
            function.__defaults__ = other.__defaults__
            function.__kwdefaults__ = other.__kwdefaults__
        elif isinstance(value, type) and value.__module__ == module:
            put(value, fresh, module)
        elif name.startswith("__"):
            continue
        elif isinstance(value, (dict, set)):
            value.clear()
            value.update(fresh)
        elif isinstance(value, (int, float, str, tuple)):
            setattr(old, name, fresh)


def load(module, code):
    """A mutant as a module of its own."""
    other = types.ModuleType(module.__name__)
    other.__file__ = module.__file__
    other.__package__ = module.__package__
    sys.modules[module.__name__] = other
    exec(compile(code, module.__file__, "exec"), other.__dict__)
    sys.modules[module.__name__] = module
    return other


# -- the tests -------------------------------------------------------------------------------------
class Runner:
    """Instead of running the tests once: once per mutant."""

    def __init__(self, path, sample, seed, seconds):
        self.path = path
        self.sample = sample
        self.seed = seed
        self.seconds = seconds

    def pytest_runtestloop(self, session):
        module = importlib.import_module(self.path.removesuffix(".py").replace("/", "."))
        with open(self.path) as f:
            source = f.read()
        tree = ast.parse(source)
        lines = source.splitlines()
        reached = self.watch(session, module.__file__)
        every = mutants(tree)
        order = random.Random(self.seed).sample(every, len(every))
        killed = hung = done = 0
        limit = time.monotonic() + self.seconds
        for mutant in order[: self.sample]:
            if time.monotonic() > limit:
                break
            done += 1
            items, seconds = quickest(session.items, reached, mutant.reach)
            end = self.outcome(session, items, seconds, module, mutant.code(tree))
            killed += end != 0
            hung += end in (-signal.SIGPROF, -signal.SIGALRM)
            if end == 0:
                where = f"line {mutant.line:4} {mutant.kind:10} {lines[mutant.line - 1].strip()}"
                print(f"survived: {where}  [{len(items)} tests]", flush=True)
        low, high = wilson(killed, done)
        share = f"{100 * killed / done:.1f} %"
        if done < len(every):
            share += f", the first of {len(every)} by seed {self.seed}, {low:.0f} to {high:.0f} %"
        print(f"{self.path}: {killed} of {done} killed ({hung} by time), {share}", flush=True)
        return True

    def watch(self, session, file):
        """By test: its seconds, and the lines of the file that it reaches."""
        with tempfile.NamedTemporaryFile("r+") as told:

            def note(found):
                with open(told.name, "w") as f:
                    json.dump(found, f)

            end = in_child(lambda: note(traced(session, file)), 3600)
            assert end == 0, "the tests cannot be run"
            reached = json.load(told)
        for item in session.items:
            if item.nodeid not in reached:
                print(f"fails as it is, and is left out: {item.nodeid}", flush=True)
        return reached

    def outcome(self, session, items, seconds, module, code):
        """0 if no test noticed."""

        def work():
            put(module, load(module, code), module.__name__)
            run(session, items)

        return in_child(work, 10 + 5 * seconds)


def run(session, items):
    """Run these tests; the first that fails ends it."""
    for item, after in zip(items, [*items[1:], None]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        assert not session.testsfailed


def traced(session, file):
    """Run all tests, and note what they reach of a file."""
    found = {}
    for item, after in zip(session.items, [*session.items[1:], None]):
        seen = set()
        began = time.perf_counter()
        threading.settrace(tracer(file, seen))
        sys.settrace(tracer(file, seen))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        sys.settrace(None)
        threading.settrace(None)
        if session.testsfailed:  # as it is: a test that tells nothing of mutants
            session.testsfailed = 0
            continue
        found[item.nodeid] = time.perf_counter() - began, sorted(seen)
    return found


def tracer(file, seen):
    """A trace function that collects the lines of one file."""

    def inner(frame, event, value):
        seen.add(frame.f_lineno)
        return inner

    def outer(frame, event, value):
        return inner if frame.f_code.co_filename == file else None

    return outer


def in_child(work, seconds):
    """The end of a forked process that does this: 0 if all went well. A hang is noticed."""
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(int(20 * seconds))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            try:
                work()
            except BaseException:
                os._exit(1)
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def quickest(items, reached, lines):
    """The tests that reach these lines, the quickest first, and their seconds."""
    found = []
    for item in items:
        seconds, seen = reached.get(item.nodeid, (0.0, ()))
        if seen and (lines is None or any(line in lines for line in seen)):
            found.append((seconds, item))
    found.sort(key=lambda pair: pair[0])
    total = 0.0
    chosen = []
    for seconds, item in found:
        total += seconds
        chosen.append(item)
        if total > BUDGET:
            break
    return chosen, total


def wilson(k, n, z=1.96):
    """A 95 % interval of a share, in per cent."""
    p = k / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return 100 * (middle - half), 100 * (middle + half)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("module")
    own, rest = parser.parse_known_args()
    options = ["-o", "addopts=", "-q", "-p", "no:cacheprovider", "-s", "--no-header"]
    runner = Runner(own.module, own.sample, own.seed, own.seconds)
    return pytest.main([*options, *rest], plugins=[runner])


if __name__ == "__main__":
    sys.exit(main())
