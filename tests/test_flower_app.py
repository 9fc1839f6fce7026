"""What `fedbook flower` writes: an app that Flower accepts, a table of engines, keys; and forks."""

import importlib
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import near

from fedbook import FedbookError, models, simulate
from fedbook.cli import main
from fedbook.experiment import Experiment

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbook[flower]'")

from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402

from fedbook import flower  # noqa: E402
from fedbook.flower import compare, loopback, warm  # noqa: E402
from fedbook.flower.app import PACKAGE, new  # noqa: E402


@pytest.fixture
def pack(tmp_path):
    """A dataset of 80 small images in two domains."""
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    x = rng.integers(0, 120, (80, 8, 8, 3)).astype(np.uint8)
    x[np.arange(80), y] += 100
    split = (np.arange(80) % 5 == 0).astype(np.int64)
    path = tmp_path / "made.npz"
    np.savez(path, x=x, y=y, split=split, domain=np.arange(80) // 40)
    return str(path)


def experiment(pack, method="fedavg", **options):
    return Experiment(
        dataset={"name": pack},
        partition={"name": "dirichlet", "clients": 3, "alpha": 5.0},
        model={"name": "cnn", "width": 4, "hidden": 8},
        method={"name": method, "lr": 0.05, **options},
        rounds=2,
    )


@pytest.fixture
def written(pack, tmp_path, monkeypatch):
    """An app, and its two modules as Flower would load them."""
    folder = new(tmp_path / "app", experiment(pack, "scaffold"))
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [n for n in sys.modules if n.startswith(PACKAGE)]:
        del sys.modules[name]


def test_flower_accepts_the_app(written):
    from flwr.cli.config_utils import load_and_validate

    config = load_and_validate(written / "pyproject.toml", check_module=False)
    config = config[0] if isinstance(config, tuple) else config
    assert config["project"]["dependencies"] == []
    assert config["tool"]["flwr"]["app"]["config"]["rounds"] == 2
    for name in ("client_app", "server_app"):
        assert len((written / PACKAGE / f"{name}.py").read_text().splitlines()) <= 6


def test_the_apps_code_ends_where_the_simulation_does(pack, written):
    client = importlib.import_module(f"{PACKAGE}.client_app").app
    server = importlib.import_module(f"{PACKAGE}.server_app").app
    task = importlib.import_module(f"{PACKAGE}.task")
    assert isinstance(client, ClientApp) and isinstance(server, ServerApp)
    e = experiment(pack, "scaffold")
    federation = e.build_federation()
    model = models.build("cnn", federation, width=4, hidden=8)
    expected = simulate(e.build_method(), federation, model, 2, device="cpu", quiet=True).run()
    grid = flower.LocalGrid(client, range(3), {"data": str(written / "data")})
    roster = flower.roster_of(grid._contexts[1000])
    settings = {"rounds": 2, "timeout": 0.0}
    strategy = flower.FedbookStrategy(task.method(), roster, task.model(roster), **settings)
    assert near(expected.params, strategy.run(grid).params, atol=1e-6)


def test_what_cannot_be_written_says_why(pack, tmp_path):
    with pytest.raises(FedbookError, match="GC-Net"):
        new(tmp_path / "one", experiment(pack, "fedgcr"))
    assert not (tmp_path / "one").exists()
    with pytest.raises(FedbookError, match="made before and apart"):
        new(tmp_path / "two", experiment(pack, "client2vec"))
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "mine.txt").write_text("x")
    with pytest.raises(FedbookError, match="is there already"):
        new(tmp_path / "three", experiment(pack))


def test_the_command_writes_an_app(pack, tmp_path, capsys):
    options = ["--method", "fedprox", "--dataset", pack, "--set", "lr=0.05", "--rounds", "4"]
    options += ["--partition", "dirichlet"]
    options += ["--set", "partition.clients=3", "--set", "partition.alpha=5"]
    assert main(["flower", "new", str(tmp_path / "app"), *options]) == 0
    assert "README.md says how to start it" in capsys.readouterr().out
    assert "methods.get('fedprox', lr=0.05)" in (tmp_path / "app/fedbook_app/task.py").read_text()
    assert "rounds = 4" in (tmp_path / "app/pyproject.toml").read_text()
    assert main(["flower", "new"]) == 1
    assert "new needs one folder" in capsys.readouterr().err
    assert main(["flower", "compare", "lokal"]) == 1
    assert "did you mean local?" in capsys.readouterr().err


# -- the table -------------------------------------------------------------------------------------
def outcome(w, seconds=0.5):
    from fedbook.rounds import Record

    facts = {"participants": [0], "weights": [1.0], "train_loss": {}, "train_acc": {}}
    records = []
    for t in (1, 2):
        records.append(Record(round=t, **facts, bytes_up=8, bytes_down=4, seconds=seconds))
    return compare.Outcome({"w": torch.tensor(w)}, records, 0.1)


def test_a_line_has_the_largest_difference():
    loop = outcome([1.0, 2.0])
    line = compare.line("fedavg", "local", outcome([1.0, 2.25]), loop)
    assert line.parameters == 0.25 and line.weights == 0 and line.round_seconds == 0.5
    assert compare.line("fedavg", "loop", loop, loop).parameters == 0
    other = compare.Outcome({"v": torch.zeros(1)}, loop.records, 0.1)
    assert compare.line("fedavg", "local", other, loop).parameters == float("inf")


def test_an_engine_replaces_its_own_lines_alone(tmp_path):
    loop = outcome([1.0])
    for engine, w in (("local", [2.0]), ("simulation", [3.0]), ("local", [1.0])):
        found = outcome(w)
        compare.store([compare.line("fedavg", engine, found, loop)], tmp_path)
    page = (tmp_path / "flower.md").read_text()
    assert "| fedavg | not run | 0 | 2e+00 | not run |" in page
    assert "| fedavg | 8 |" in page and "2 of 2 |" in page
    assert len((tmp_path / "flower.csv").read_text().splitlines()) == 3
    compare.store([compare.line("fedprox", "local", found, loop)], tmp_path)  # another method
    assert len((tmp_path / "flower.csv").read_text().splitlines()) == 4


# -- keys ------------------------------------------------------------------------------------------
def test_certificates_and_keys_are_what_flower_takes(tmp_path):
    import ssl

    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.cli.supernode.register import try_load_public_key

    ca, cert, key = loopback.certificates(tmp_path)
    ssl.create_default_context(cafile=ca)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    loopback.private_key(tmp_path / "node-0")
    private = load_ssh_private_key((tmp_path / "node-0").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert try_load_public_key(tmp_path / "node-0.pub")


# -- forks -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("code", [0, 3])
def test_a_message_is_answered_in_a_fork(code, tmp_path, monkeypatch):
    seen = tmp_path / "seen"

    def run_clientapp(**given):
        seen.write_text(f"{os.getpid()} {given['token']} {len(handlers)}")
        raise SystemExit(code)

    handlers = warm.exit_handler.registered_exit_handlers
    monkeypatch.setattr(warm, "run_clientapp", run_clientapp)
    monkeypatch.setattr(warm.exit_handler, "registered_exit_handlers", handlers)
    handlers.append("the parent's")
    spec = warm.ExecutionSpec(
        task_type=warm.TaskType.CLIENT_APP,
        runtime_api_address="127.0.0.1:1",
        token="t",
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=os.getpid(),
        suppress_output=False,
        task_id=1,
    )
    assert warm.Forks().launch(spec).status == warm.LaunchResult.accepted().status
    pid, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == code
    assert seen.read_text() == f"{pid} t 0" and pid != os.getpid()
    assert handlers.pop() == "the parent's"  # they are the fork's to forget, not ours


def test_other_tasks_are_flowers(monkeypatch):
    asked = []
    monkeypatch.setattr(warm.SubprocessExecutor, "launch", lambda self, spec: asked.append(spec))
    spec = SimpleNamespace(task_type=warm.TaskType.SERVER_APP)
    warm.Forks().launch(spec)
    assert asked == [spec]
    warm.Forks().reconcile()  # nothing has ended: nothing to do


def test_flower_takes_the_forks(monkeypatch):
    command = importlib.import_module("flwr.supercore.cli.flower_superexec")
    taken = []
    monkeypatch.setattr(warm.run_superexec, "get_executor", warm.run_superexec.get_executor)
    monkeypatch.setattr(
        command, "run_superexec", lambda **_: taken.append(warm.run_superexec.get_executor("any"))
    )
    monkeypatch.setattr("sys.argv", ["warm", "--insecure", "--runtime-api-address", "127.0.0.1:1"])
    warm.main()
    assert isinstance(taken[0], warm.Forks)
