"""A researcher's desk: own code and data from the shell, settings from a file, looking at stored
runs, and every command at 80 columns."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fedbook import load_model, own, papers
from fedbook.cli import main, parser
from fedbook.cli.chart import chart
from fedbook.cli.look import different, find, groups, paired
from fedbook.results import Store

MINE = textwrap.dedent("""
    from dataclasses import dataclass, field

    from torch import nn

    from fedbook import methods
    from fedbook.models.convnets import Classifier
    from fedbook.rounds import BySize, Weigh


    @dataclass(frozen=True)
    class ByLoss(Weigh):
        q: float = 1.0
        loss: str | None = field(default="received", kw_only=True)

        def __call__(self, state, reports):
            return self.q * self.losses(reports).log(), state


    def mine(q=0.0, **options):
        return methods.get("fedavg", **options).replace(name="mine", weigh=(BySize(), ByLoss(q)))


    ready = methods.get("fedavg", lr=0.05)


    def net(federation, width=8):
        size = federation.x[0].numel()
        body = nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU())
        return Classifier(body, width, federation.num_classes)


    number = 3


    def nothing():
        return None
""")


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    """A folder with code and data of one's own, and a way to call commands in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBOOK_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr("fedbook.results.SHIPPED", tmp_path / "nothing")
    monkeypatch.setenv("FEDBOOK_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDBOOK_DEBUG", raising=False)
    (tmp_path / "my.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 4
    x = rng.integers(0, 120, (160, 8, 8)).astype(np.uint8)
    x[np.arange(160), y * 2] += 120
    split = (np.arange(160) % 5 == 0).astype(np.uint8)
    domain = np.arange(160) // 80
    np.savez(tmp_path / "tiny.npz", x=x, y=y, split=split, domain=domain)

    def call(line, code=0):
        try:
            got = main(line if isinstance(line, list) else line.split())
        except SystemExit as stop:
            got = stop.code
        out, err = capsys.readouterr()
        assert got == code, err
        return out if code == 0 else err

    return call


RUN = "run fedavg tiny.npz --model linear --quiet --rounds 2"


# -- own code --------------------------------------------------------------------------------------
def test_a_method_and_a_network_of_ones_own(desk):
    told = desk("run --method my.py:mine --data tiny.npz --model my.py:net --rounds 2 --json")
    config = json.loads(told)["config"]
    assert config["method"] == {"name": "my.py:mine", "source": own.source("my.py:mine")}
    plain = json.loads(desk("run fedavg tiny.npz --model my.py:net --rounds 2 --json"))
    # q = 0 is FedAvg
    assert json.loads(told)["metrics"]["clients"] == plain["metrics"]["clients"]
    other = desk("run my.py:mine tiny.npz --model my.py:net --set q=3 --set model.width=4 --json")
    assert json.loads(other)["method"]["weigh.1"]["q"] == 3


def test_other_code_is_another_run(desk, tmp_path):
    line = "run my.py:mine tiny.npz --model linear --dump-config --json"
    before = json.loads(desk(line))["method"]["source"]
    (tmp_path / "my.py").write_text(MINE + "\n# changed\n")
    assert json.loads(desk(line))["method"]["source"] != before


def test_a_method_may_be_a_value(desk):
    told = json.loads(desk("run my.py:ready tiny.npz --model linear --rounds 1 --json"))
    assert told["method"]["solve"]["lr"] == 0.05


WRONG = {
    "run my.py:nine tiny.npz": "did you mean mine",
    "run my.py tiny.npz": "what to take from the file",
    "run none.py:mine tiny.npz": "no file none.py",
    "run my.py:number tiny.npz": "is a int",
    "run my.py:nothing tiny.npz": "returned a NoneType",
    "run broken.py:mine tiny.npz": "cannot be run: ModuleNotFoundError",
    "run my.py:mine tiny.npz --set r=1 --model linear": "option",
    "run fedavg": "a method and a dataset are needed",
    "run fedavg torchvision:MNITS": "did you mean MNIST",
    "run fedavg tiny.npz --model linear --save model.pt": "end the name in .safetensors",
    "run fedavg tiny.npz --model linear --log tensorbord": "did you mean tensorboard",
    "run --config none.yaml": "none.yaml",
    "show nothing_like_it": "no stored run fits",
    "methods fedagv": "did you mean fedavg",
    "models cnnn": "did you mean cnn",
    "partitions dirichelt": "did you mean dirichlet",
    "datasets mnits": "did you mean mnist",
    "data nothing_like_it": "no dataset fits",
    "list nothing_like_it": "no table or figure fits",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said_in_one_line(desk, line):
    err = desk(line, code=1)
    assert WRONG[line] in err and len(err.strip().splitlines()) == 1, err


# -- own data --------------------------------------------------------------------------------------
def test_a_dataset_of_torchvision(desk, tmp_path, monkeypatch):
    """MNIST's own class on four tiny files of its own format."""
    monkeypatch.setenv("FEDBOOK_DATA", str(tmp_path / "data"))
    raw = tmp_path / "data" / "torchvision" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count, dtype=np.uint8) % 10
        pixels = np.zeros((count, 28, 28), np.uint8)
        pixels[np.arange(count), labels] = 255
        head = (2051).to_bytes(4, "big") + count.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = (2049).to_bytes(4, "big") + count.to_bytes(4, "big")
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    line = "run fedavg torchvision:MNIST --model linear --rounds 1 --partition iid"
    told = json.loads(desk(f"{line} --set partition.clients=2 --json"))
    assert told["data"]["dataset"] == "MNIST" and sum(told["metrics"]["clients"]["train"]) == 40
    assert told["config"]["dataset"] == {"name": "torchvision:MNIST"}


def test_a_dataset_of_the_hub(desk, tmp_path, monkeypatch):
    """A folder as it could be uploaded, read by the library itself."""
    pytest.importorskip("datasets")
    from PIL import Image

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    for split, count in (("train", 6), ("test", 2)):
        for label, colour in (("dark", 10), ("light", 240)):
            folder = tmp_path / "pictures" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (9, 7), (colour, colour, i)).save(folder / f"{i}.png")
    from fedbook import data

    found = data.from_outside(f"hf:{tmp_path}/pictures", size=8)
    assert found.class_names == ("dark", "light") and tuple(found.x.shape) == (16, 3, 8, 8)
    assert len(found.train) == 12 and len(found.test) == 4
    assert found.x[found.y == 0][:, 0].max() < 20 < found.x[found.y == 1][:, 0].min()


def test_a_folder_of_pictures(desk, tmp_path):
    from PIL import Image

    for domain in ("a", "b"):
        for label, colour in (("dark", 10), ("light", 240)):
            folder = tmp_path / "pictures" / domain / label
            folder.mkdir(parents=True)
            for i in range(10):
                Image.new("L", (9, 7), colour + i).save(folder / f"{i}.png")
    line = "run fedavg --data ./pictures --model linear --rounds 1 --set partition.dif=1 --json"
    assert len(json.loads(desk(line))["metrics"]["clients"]["acc"]) == 4


# -- settings, seeds, models -----------------------------------------------------------------------
def test_a_file_of_settings_gives_the_same_run(desk, tmp_path):
    options = "--set lr=0.05 --set partition.dif=1 --seed 3"
    first = json.loads(desk(f"{RUN} {options} --json"))
    (tmp_path / "run.yaml").write_text(desk(f"{RUN} {options} --dump-config"))
    again = json.loads(desk("run --config run.yaml --json"))
    assert (
        again["key"] == first["key"] and again["metrics"]["clients"] == first["metrics"]["clients"]
    )
    changed = json.loads(desk("run --config run.yaml --set lr=0.1 --rounds 1 --json"))["config"]
    assert changed["method"]["lr"] == 0.1 and changed["rounds"] == 1 and changed["seed"] == 3


def test_a_file_may_name_parts_only(desk, tmp_path):
    (tmp_path / "short.yaml").write_text("method: fedavg\ndataset: tiny.npz\nrounds: 1\n")
    assert json.loads(desk("run --config short.yaml --dump-config --json"))["rounds"] == 1
    (tmp_path / "odd.yaml").write_text("methods: fedavg\n")
    assert "did you mean method?" in desk("run --config odd.yaml", code=1)
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    assert "no YAML" in desk("run --config bad.yaml", code=1)
    (tmp_path / "code.yaml").write_text("method: !!python/object/apply:os.system [ls]\n")
    assert "no YAML" in desk("run --config code.yaml", code=1)


def test_seeds_and_saved_models(desk, tmp_path):
    out = desk(f"{RUN} --seeds 3 --save model.safetensors --log csv=logs")
    assert "3 seeds" in out and "±" in out
    stored = Store(tmp_path / "results").load()
    assert sorted(r["seed"] for r in stored) == [0, 1, 2]
    assert len(list((tmp_path / "logs").glob("*.csv"))) == 3
    model = load_model(tmp_path / "model-seed2.safetensors")
    assert model.about["key"] in {r["key"] for r in stored}
    assert len(json.loads(desk(f"{RUN} --seeds 2 --json"))) == 2


# -- looking at runs -------------------------------------------------------------------------------
@pytest.fixture
def stored(desk):
    desk(f"{RUN} --seeds 3 --rounds 3")
    desk(f"{RUN} --seeds 2 --rounds 3 --set lr=0.01")
    return desk


def test_show_lists_and_tells(stored, tmp_path):
    out = stored("show fedavg")
    assert len(out.splitlines()) == 3 and "lr=0.01" in out
    results = Store(tmp_path / "results").load()
    key = results[0]["key"]
    out = stored(f"show {key[:10]} --figure run.png")
    for part in ("key ", "tiny.npz", "linear", "avg_client", "round 3", "worst first"):
        assert part in out
    assert (tmp_path / "run.png").stat().st_size > 5000
    assert "seeds     0, 1" in stored("show fedavg lr=0.01") and "±" in stored("show lr=0.01")
    assert len(json.loads(stored("show seed=2 --json"))) == 1
    assert len(json.loads(stored(["show", "*.npz", "--json"]))) == 5


def test_compare_pairs_seeds(stored, tmp_path):
    results = Store(tmp_path / "results").load()
    a = next(g for g in groups(results) if len(g.seeds) == 3)
    b = next(g for g in groups(results) if len(g.seeds) == 2)
    line = f"compare {a.results[0]['key']} {b.results[1]['key']}"
    out = stored(f"{line} --figure both.pdf")
    assert "method.lr: None -> 0.01" in out and "2 common seeds" in out
    assert (tmp_path / "both.pdf").stat().st_size > 3000
    found = json.loads(stored(f"{line} --json"))
    score = found["scores"]["avg_client"]
    mine, theirs = a.values("avg_client"), b.values("avg_client")
    d = [theirs[s] - mine[s] for s in (0, 1)]
    assert score["difference"] == pytest.approx(sum(d) / 2)
    # two seeds: t_(1, 0.975) = 12.706, the standard error is half the distance
    half = 12.7062047 * abs(d[0] - d[1]) / 2
    assert score["interval"] == pytest.approx([sum(d) / 2 - half, sum(d) / 2 + half], abs=1e-6)
    assert "fits 2 settings" in stored("compare fedavg fedavg", code=1)


def test_paired_by_hand():
    assert paired({0: 1.0}, {0: 3.0})["difference"] == 2.0
    assert paired({0: 1.0}, {0: 3.0})["interval"] is None
    assert paired({0: 1.0}, {1: 3.0})["difference"] is None
    found = paired({0: 1.0, 1: 1.0, 2: 1.0}, {0: 2.0, 1: 3.0, 2: 4.0})
    assert found["difference"] == 2.0
    assert found["interval"] == pytest.approx([2 - 4.3026527 / 3**0.5, 2 + 4.3026527 / 3**0.5])


def test_settings_that_differ():
    a = {"method": {"name": "x", "lr": 1}, "rounds": 3, "seed": 0}
    b = {"method": {"name": "x", "lr": 2, "q": None}, "rounds": 3, "seed": 1}
    assert different(a, b) == {"method.lr": [1, 2]}


def test_a_key_comes_before_a_pattern():
    results = [
        {"key": "abc1", "seed": 0, "scale": "s", "config": config("abc1x")},
        {"key": "def2", "seed": 0, "scale": "s", "config": config("abc1")},
    ]
    assert [r["key"] for g in find(results, ["abc1"]) for r in g.results] == ["abc1"]


def config(method):
    parts = {p: {"name": p} for p in ("dataset", "partition", "model")}
    return parts | {"method": {"name": method}, "seed": 0}


def test_a_chart_shows_where_the_values_are():
    lines = chart({"a": [0.0, 0.5, 1.0]}, [1, 2, 3], width=40, height=5).splitlines()
    assert lines[0].rstrip().endswith("o") and lines[0].strip().startswith("1.000")
    assert lines[4].strip().startswith("0.000 |o") and lines[-1].strip() == "o a"
    assert max(map(len, chart({"a": list(range(500))}, range(500)).splitlines())) <= 80
    assert chart({"a": [float("nan")]}, [1]) == "no numbers to draw"
    assert "0.700" in chart({"a": [0.7, 0.7]}, [1, 2]) or "1.200" in chart({"a": [0.7]}, [1])


# -- names -----------------------------------------------------------------------------------------
def test_names_with_options_equation_and_citation(desk):
    out = desk("methods q_ffl")
    assert "ICLR 2020" in out and "F_i(w)^{q+1}" in out and "  q = 1.0" in out and "lr = " in out
    assert json.loads(desk("methods q_ffl --json"))["options"]["q"] == 1.0
    assert "width = 32" in desk("models cnn") and "alpha" in desk("partitions dirichlet")
    assert "Li et al. 2017" in desk("datasets pacs")
    assert set(json.loads(desk("methods --json"))) >= {"fedavg", "fedgcr", "scaffold"}


def test_lists_take_a_filter(desk):
    assert [e["id"] for e in json.loads(desk("list fgpt ablation --json"))] == ["fgpt/table4"]
    names = [i["name"] for i in json.loads(desk("data emoji --json"))]
    assert "emoji7" in names and "mnist" not in names
    assert json.loads(desk("data list emoji --json")) == json.loads(desk("data emoji --json"))


# -- eighty columns --------------------------------------------------------------------------------
COMMANDS = [*parser()._subparsers._group_actions[0].choices]  # type: ignore[union-attr]
SAID = [
    "list",
    "list fgpt",
    "claims --scale published",
    "claims gcr1 --scale published",
    "data",
    "datasets",
    "datasets digit_five",
    "methods",
    "models",
    "partitions",
    "check",
    f"hours --results {Path(__file__).parents[1]}/results",
    "reproduce fgpt/table2",
    "run fedavg tiny.npz --model linear --rounds 2 --quiet --seeds 2",
    "run fedavg tiny.npz --model linear --dry-run",
    "run fedavgm digits5_offline --dry-run",
    "run fedavg tiny.npz --dump-config",
    "show fedavg",
    "show *",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits(desk, command):
    out = desk(f"{command} --help")
    assert max(map(len, out.splitlines())) <= 80 and "example:" in out


def test_the_main_help_fits(desk):
    out = desk("--help")
    assert max(map(len, out.splitlines())) <= 80 and all(c in out for c in COMMANDS)


@pytest.mark.parametrize("line", SAID)
def test_output_fits(desk, line, tmp_path):
    if line.startswith("show"):
        desk(f"{RUN} --seeds 2")
    shown = desk(line).replace(str(tmp_path), "FOLDER")
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", ["fedgcr", "client2vec", "grp_fed", "fgpt", "pfedhn"])
def test_every_method_fits(desk, name):
    assert max(map(len, desk(f"methods {name}").splitlines())) <= 80


def test_every_command_is_captured():
    """A new command gets a line here or its help alone."""
    without = {"tune", "bench", "lab", "pretrain", "figures", "compare"}  # they compute or draw
    without |= {"badges", "book", "course", "flower", "merge"}  # they write
    assert {line.split()[0] for line in SAID} | without >= set(COMMANDS)


def test_list_starts_quickly():
    code = "import resource, fedbook.cli as c; c.main(['list']); "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert float(done.stdout.splitlines()[-1]) < 2.0, done.stderr
    assert len(papers.specs()) > 60
