"""A SuperExec that imports torch and fedbook once, and not for every message.

    flower-supernode --isolation process --port 9100 ...
    python -m fedbook.flower.warm --insecure --runtime-api-address 127.0.0.1:9100

Flower answers every message in a process of its own, which imports torch, timm and Flower anew:
more than ten processor seconds. This one forks. A message still has a process of its own, and finds
everything imported. Options are those of `flower-superexec`. Start it again after an update.

`--stand-by` is for a rehearsal with many nodes in one machine. Every line of input, a JSON list of
a log's path and options, starts a SuperExec with the same imports; its process number is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import NoReturn

from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedbook.errors import FedbookError

BEFORE = ["fedbook.flower", "fedbook.methods", "fedbook.models", "timm"]


class Forks(SubprocessExecutor):
    """Answers a client's message in a fork of this process; all other tasks are Flower's."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type is not TaskType.CLIENT_APP:
            return super().launch(spec)
        if os.fork() == 0:
            answer(spec)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Flower calls this again and again: forks that have ended may go."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there are none
            pass


def answer(spec: ExecutionSpec) -> NoReturn:
    """The life of a fork: one message."""
    code = 1
    try:
        exit_handler.registered_exit_handlers.clear()  # those of the parent, which goes on
        safely = validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure)
        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=safely,
            parent_pid=spec.parent_pid,
            runtime_dependency_install=spec.runtime_dependency_install,
        )
    except SystemExit as end:  # so Flower ends a process
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """`flower-superexec` with forks."""
    if not hasattr(os, "fork"):
        raise FedbookError("this system cannot fork", "use flower-superexec, which needs no fork")
    for name in BEFORE:
        importlib.import_module(name)
    run_superexec.get_executor = lambda *_, **__: Forks()
    if sys.argv[1:] == ["--stand-by"]:
        for line in sys.stdin:
            if (pid := os.fork()) == 0:
                become(*json.loads(line))
            print(pid, flush=True)
    else:
        flower_superexec()


def become(log: str, *options: str) -> NoReturn:
    """A SuperExec that leads a group of its own and ends with its parent."""
    os.setpgid(0, 0)
    with open(log, "ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.stdin.close()
    sys.argv = ["flower-superexec", "--parent-pid", str(os.getppid()), *options]
    flower_superexec()
    os._exit(0)


if __name__ == "__main__":
    main()
