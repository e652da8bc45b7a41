"""Invalid input: one sentence, status 2, and nothing is started."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perdure.cli import main
from perdure.data import DATASETS

MODULES = {
    "nets": """
from torch import nn
import perdure

def wrong_head(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
def wrong_input(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(5, classes))
def no_module(shape, classes): return "a network"
def no_arguments(): return nn.Linear(1, 1)
def no_parameters(shape, classes): return nn.Flatten()
def fails(shape, classes): raise RuntimeError("out of ideas")
def no_stream(): return None
def failing_stream(): raise KeyError("batches")
def needs(rows): return None
def refused(): return perdure.from_tensors([1.0], [-1])
class NoLearner: pass
class Greedy(perdure.SGD):
    def __init__(self, network, *, appetite: int = 1, **common):
        super().__init__(network, **common)
        if appetite > 9: raise ValueError(f"appetite is {appetite}; expected at most 9")
value = 3
""",
    "broken": "import there_is_no_such_module",
    "unfinished": "def network(shape,",
    "exploding": "1 / 0",
}

CASES = {
    # the command line itself
    "": "run, reproduce, demo",
    "runn": "did you mean run?",
    "analyse runs": "did you mean analyze?",
    "analyse --help": "did you mean analyze?",
    "compare --help": "run, reproduce, demo",
    "''": "run, reproduce, demo",
    "data fech mnist": "did you mean fetch?",
    "data upload --help": "fetch, verify",
    "data fetch": "cifar10",
    "data fetch --quite mnist": "'dataset'",
    "data fetch mnist --dta x": "did you mean --data?",
    "run --bufer 200": "did you mean --buffer",
    "run --sed 3": "did you mean --seeds?",
    "analyze --sed 3": "did you mean --seed?",
    "run s-mnist r-mnist": "r-mnist",
    "run --lr": "'--lr'; see",
    "report runs --format pdf": "('html', 'md', 'tex')",
    "run --lr fast": "--lr: 'fast' is not a number",
    "run --lr None": "--lr: 'None' is not a number",
    "run --batch 2.5": "--batch: '2.5' is not a whole number",
    "run --buffer 1e3": "'1e3' is not a whole number",
    "run --threads many": "--threads: 'many' is not a whole number",
    "run --device tpu": "'tpu'",
    "run --precision fp64": "'fp32', 'bf16'",
    "run --update sometimes": "'random', 'regular'",
    "run --method er --update regular": "--update regular applies to clser and mean-er",
    "run --engine steam": "'eager', 'captured', 'compiled'",
    "data": "fetch, verify",
    "data fetch svhn": "no dataset 'svhn'",
    "data verify svhn": "'svhn'",
    "list everything": "everything",
    "data verify --nonsense": "--nonsense",
    "reproduce table2 --lr 0.1": "--lr",
    "reproduce --max-steps x": "'x' is not a whole number",
    "tune --restart": "see `perdure tune --help`",
    "data verify --data nowhere": "nowhere",
    "analyze --sigmas 0,1e39": "sigmas are 0, 1e+39",
    # names
    "run s-mnits": "did you mean s-mnist",
    "run ''": "unknown stream ''; choose from s-mnist, r-mnist",
    "run pets": "did you mean images:pets?",
    "run pets,size=8": "did you mean images:pets,size=8?",
    "run wine.csv": "did you mean table:wine.csv,target=COLUMN?",
    "run --method clsre": "did you mean clser",
    "run --method magic": "'magic'; choose from clser, mean-er",
    "run --network lenet": "'lenet'; choose from mlp, cnn, resnet18, or module:function",
    "run --network ''": "unknown network ''",
    "run --dataset cifar11": "'cifar11'; known datasets: mnist, mnist5k",
    "run --dataset cifar10": "s-mnist requires mnist or mnist5k, not 'cifar10'",
    # seeds
    "run --seeds 5:2": "--seeds 5:2 is empty",
    "run --seeds 1,1": "--seeds 1,1 names a seed twice",
    "run --seeds 4611686018427387905": "names a seed above 4611686018427387904",
    "run --method er --buffer-size 1099511627777": "buffer_size is 1099511627777",
    "run --seeds -1": "--seeds is '-1'",
    "run --seeds ''": "--seeds is ''",
    "run --seeds a:b": "--seeds is 'a:b'",
    "run --seeds 0:999999999999": "at most 10000",
    "run --stream-seed 3": "s-mnist is deterministic",
    "run r-mnist --stream-seed each": "--stream-seed is 'each'",
    "run r-mnist --stream-seed -1": "--stream-seed is '-1'",
    "run r-mnist --stream-seed published": "GCIL streams only",
    "run gcil-cifar100-longtail --method der --stream-seed published": "no run of der",
    "reproduce table2 --stream-seed 3": "deterministic",
    # hyperparameters
    "run --lr nan": "lr is nan; expected a finite number",
    "run --lr inf": "lr is inf; expected a finite number",
    "run --lr -0.1": "lr is -0.1",
    "run --lr 0": "lr is 0.0",
    "run --batch 0": "batch is 0",
    "run --batch -1": "batch is -1",
    "run --batch 100000": "s-mnist is smaller than a batch of 100000",
    "run --memory-batch 0": "memory_batch is 0",
    "run --epochs 0": "epochs is 0",
    "run --consistency-weight nan": "consistency_weight is nan",
    "run --consistency-weight -1": "consistency_weight is -1.0",
    "run --stable-rate 0": "rate is 0.0",
    "run --stable-rate 1.01": "rate is 1.01",
    "run --stable-rate nan": "rate is nan",
    "run --plastic-rate inf": "rate is inf",
    "run --stable-decay 1": "decay is 1.0",
    "run --plastic-decay -0.1": "decay is -0.1",
    "run --plastic-decay nan": "decay is nan",
    "run --method mean-er --rate 0": "rate is 0.0",
    "run --method mean-er --decay 1": "decay is 1.0",
    "run --method er --stable-rate 1": "er has no hyperparameter 'stable_rate'; it has batch",
    "run --buffer 0": "--buffer-size is 0",
    "run --buffer -5": "--buffer-size is -5",
    "run --memory-folder missing": "--memory-folder is 'missing', which is not a folder",
    "run --memory-device cuda": "cuda",
    "run --set lr": "--set 'lr'",
    "run --set lr=": "--set 'lr='",
    "run --set lr=fast": "--set 'lr=fast'",
    "run --set =1": "--set '=1'",
    "run --set lr=nan": "lr is nan",
    "run --set speed=1": "clser has no hyperparameter 'speed'",
    "run --set seed=1": "clser has no hyperparameter 'seed'",
    "run --set buffer_size=1": "clser has no hyperparameter 'buffer_size'",
    "run --set epochs=1.5": "epochs is 1.5; expected a whole number",
    "run --method nets:Greedy --set appetite=1.5": "appetite is 1.5; expected a whole number",
    "run --method nets:Greedy --set appetite=10": "appetite is 10; expected at most 9",
    # execution
    "run --max-steps 0": "--max-steps is 0",
    "run --max-steps -1": "--max-steps is -1",
    "run --threads 0": "--threads is 0",
    "run --threads 100000": "at most 256",
    "run --workers 0": "--workers is 0",
    "run --workers -1": "--workers is -1",
    "run --side-by-side 0": "--side-by-side is 0",
    "run --checkpoint-every 0": "--checkpoint-every is 0",
    "run --checkpoint-every -1": "--checkpoint-every is -1",
    "run --checkpoint-every nan": "--checkpoint-every is nan",
    "run --checkpoint-every often": "'often' is not a number",
    "run --restart --resume": "--restart",
    "run --device cuda": "--device cuda",
    "run --precision bf16": "--precision bf16 requires a GPU",
    "run --engine captured": "--engine captured requires a GPU",
    "run --validation 2": "2.0",
    "run --validation 0": "0.0",
    "run --validation nan": "nan",
    "run --validation 0.0001": "--validation 0.0001 leaves no samples to test 'classes 0 to 1'",
    "run --validation 0.999": "s-mnist is smaller than a batch of 10",
    "run --validation 0.9999": "0.9999 leaves none",
    "run p-mnist --validation 0.9999": "0.9999 leaves none",
    "run images:": "path is missing",
    "run table:,target=kind": "path is missing",
    "run mnist-360 --method gem": "GEM needs task boundaries",
    # folders
    "run --data nowhere": "nowhere",
    "run --data a-file": "a-file",
    "run --data damaged": "damaged/MNIST/raw/train-images-idx3-ubyte.gz",
    "run --dataset mnist": "perdure data fetch mnist",
    "run s-cifar10": "perdure data fetch cifar10",
    "run --out a-file": "--out a-file cannot be written: File exists",
    "run --out a-file/runs": "--out a-file/runs cannot be written: Not a directory",
    "run --out /proc/runs": "--out /proc/runs cannot be written: No such file or directory",
    "demo --out a-file": "--out a-file cannot be written: File exists",
    # a user's own
    "run :": "stream ':'",
    "run --method nets:": "method 'nets:'",
    "run nowhere:stream": "stream 'nowhere:stream': No module named 'nowhere'",
    "run broken:stream": "stream 'broken:stream': No module named 'there_is_no_such_module'",
    "run nets:nothing": "stream 'nets:nothing': nets has no 'nothing'",
    "run nets:value": "stream 'nets:value' returned int",
    "run nets:no_stream": "stream 'nets:no_stream' returned NoneType",
    "run nets:failing_stream": "stream 'nets:failing_stream' failed: KeyError: 'batches' (nets.py",
    "run nets:needs": "stream 'nets:needs' must be callable without arguments",
    "run nets:refused": "(nets.py, line 14)",
    "run nets:value --data .": "nets:value supplies its own data",
    "run nets:value --validation 1": "--validation is 1.0",
    "run --method nets:NoLearner": "method 'nets:NoLearner' is not a subclass of perdure.Learner",
    "run --method nets:value": "method 'nets:value' is not a subclass of perdure.Learner",
    "run --method perdure:Learner": "method 'perdure:Learner' is abstract",
    "run --method unfinished:X": "method 'unfinished:X': '(' was never closed (unfinished.py, line",
    "run --method exploding:X": "ZeroDivisionError: division by zero (exploding.py, line 1)",
    "run --network nowhere:network": "network 'nowhere:network': No module named 'nowhere'",
    "run --network broken:network": "No module named 'there_is_no_such_module'",
    "run --network nets:nothing": "network 'nets:nothing': nets has no 'nothing'",
    "run --network nets:no_module": "returned a str, not an nn.Module",
    "run --network nets:no_arguments": "takes (input shape, classes)",
    "run --network nets:no_parameters": "no parameters",
    "run --network nets:fails": "RuntimeError: out of ideas (nets.py, line 10)",
    "run --network nets:value": "'nets:value' must be a function",
    "run --network nets:wrong_head": "the network has 3 outputs; s-mnist has 10 classes",
    "run --network nets:wrong_input": "uint8 [1, 28, 28]",
}
"""Commands, and a key term of the sentence that each prints."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with modules and files such as the cases name."""
    folder = tmp_path_factory.mktemp("bad")
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    for file in ("a-file", "wine.csv"):
        (folder / file).touch()
    (folder / "pets").mkdir()
    for part in DATASETS["mnist"].layouts[0].files:
        (folder / "damaged" / part.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "damaged" / part.path).write_bytes(b"not the digits")
    before, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    yield folder
    signal.signal(signal.SIGTERM, before)
    sys.path[:] = path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("line", CASES)
def test_bad_input_is_one_sentence(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status = main(shlex.split(line))
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("perdure: ")
    assert err.count("\n") == 1
    assert CASES[line] in err
    assert not (here / "runs").exists() or not [*(here / "runs").rglob("*")]


def test_a_narrow_terminal_does_not_change_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sentences = set()
    for width in ("40", "200"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["reproduce", "table2", "--buffer", "200"]) == 2
        sentences.add(capfd.readouterr().err)
    (sentence,) = sentences
    assert "did you mean --buffer-sizes?" in sentence


def test_the_command_itself_ends_with_status_2(here: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "perdure", "run", "--bufer", "3"],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("perdure: ")
    assert ended.stderr.count("\n") == 1


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *args: object, **kwargs: object) -> None:  # root may write anywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    assert main(["run", "--out", str(tmp_path)]) == 2
    expected = f"perdure: --out {tmp_path} cannot be written: Permission denied\n"
    assert capfd.readouterr().err == expected
