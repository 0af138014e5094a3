"""The command line as a user runs it: its output and its exit code, and what becomes of its process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import torch

from tests.command_line import COMMAND, tkc, tkc_process
from tests.frontend.onnx_execution import parsed
from tkc.runtime.artifact.manifest import FORMAT


class Classifier(torch.nn.Module):
    """Two layers with a symbolic batch."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 5))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``features [batch, 12]`` to class probabilities."""
        return self.layers(features).softmax(-1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier as a .pt2 file."""
    torch.manual_seed(0)
    shapes = {"features": {0: torch.export.Dim("batch", max=128)}}
    program = torch.export.export(Classifier().eval(), (torch.randn(4, 12),), dynamic_shapes=shapes)
    path = tmp_path_factory.mktemp("cli") / "classifier.pt2"
    torch.export.save(program, path)
    return path


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    """The compiled classifier."""
    path = model.with_suffix(".tkc")
    output = tkc_process("compile", model, "-o", path, "--dump", model.with_name("dump")).stdout
    assert "wrote" in output and "Stages" in output
    return path


def test_batch_invariance_is_in_the_report(model: Path) -> None:
    """And is off unless it is asked for."""
    for options, expected in (((), False), (("--batch-invariant",), True)):
        assert json.loads(tkc("explain", model, *options, "--json").stdout)["batch_invariant"] is expected


@pytest.mark.daily(2)
def test_run_compares_with_the_source(artifact: Path, model: Path) -> None:
    """At a size the model was not exported with; a tolerance nothing meets is exit code 1."""
    result = json.loads(tkc("run", artifact, "--size", "features_0=9", "--compare", model, "--json").stdout)
    assert result["agrees"] and result["outputs"][0]["shape"] == [9, 5]
    assert "ok" in tkc("run", artifact, "--compare", model).stdout
    tkc_process("run", artifact, "--compare", model, "--tolerance", "-1", code=1)


def test_a_models_file_is_compiled_and_run(model: Path, tmp_path: Path) -> None:
    """Without an artifact: an ONNX file on inputs of files, and a program that was saved on random ones."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N, 2] x) => (float[N, 2] y) { y = Neg(x) }'
    )
    path, x = tmp_path / "negative.onnx", np.arange(6, dtype="float32").reshape(3, 2)
    onnx.save(proto, path)
    np.save(tmp_path / "x.npy", x)
    tkc("run", path, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "y.npz", "--compare", path)
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_array_equal(found["y"], -x)
    result = json.loads(tkc("run", model, "--size", "features_0=4", "--compare", model, "--json").stdout)
    assert result["agrees"] and result["outputs"][0]["shape"] == [4, 5]
    assert "Neg" in tkc("profile", path, "--size", "N=5", "--repeat", "1").stdout
    for name in ("missing.onnx", "missing.tkc"):
        assert "no such file" in tkc("run", tmp_path / name, code=2).stderr.replace("\n", " ")


def test_a_size_out_of_its_range_is_refused(artifact: Path, tmp_path: Path) -> None:
    """By its name and its bounds; so are sizes that nothing is done with."""
    for size in (129, 10**30):
        errors = tkc("run", artifact, "--size", f"features_0={size}", code=2).stderr
        assert f"features_0={size}" in errors and "to 128" in errors.replace("\n", " ")
    errors = tkc("run", artifact, "--size", "batch=3", code=2).stderr.replace("\n", " ")
    assert "features_0" in errors and "--size-name" in errors
    assert "twice" in tkc("run", artifact, "--size", "features_0=3", "--size", "features_0=4", code=2).stderr
    np.save(tmp_path / "features.npy", np.zeros((3, 12), np.float32))
    given = f"features={tmp_path / 'features.npy'}"
    assert "--size" in tkc("run", artifact, "-i", given, "--size", "features_0=3", code=2).stderr
    assert "already" in tkc("run", artifact, "-i", given, "-i", given, code=2).stderr
    (tmp_path / "features.npy").write_bytes(b"no array")
    assert "features.npy" in tkc("run", artifact, "-i", given, code=2).stderr.replace("\n", "")


def test_the_size_of_a_saved_program_gets_its_name_back(model: Path, tmp_path: Path) -> None:
    """The file has lost it; ``explain`` and ``run`` know it by the one that is given."""
    named = tmp_path / "named.tkc"
    tkc("compile", model, "-o", named, "--size-name", "features_0=batch", "--kernels", "none", "--checks")
    result = json.loads(tkc("run", named, "--size", "batch=7", "--compare", model, "--json").stdout)
    assert result["agrees"] and result["outputs"][0]["shape"] == [7, 5]
    assert "batch from 0 to 128" in tkc("run", named, "--size", "batches=7", code=2).stderr.replace("\n", " ")
    for option, culprit in (("x_0=batch", "x_0"), ("features_0", "features_0"), ("features_0=2x", "2x")):
        assert culprit in tkc("explain", model, "--size-name", option, code=2).stderr


def test_an_artifact_is_replaced_only_by_force(artifact: Path, model: Path, tmp_path: Path) -> None:
    """Before anything is compiled; what is no artifact never is."""
    copy = Path(shutil.copytree(artifact, tmp_path / "copy.tkc"))
    before = (copy / "manifest.json").read_bytes()
    assert "--force" in tkc("compile", model, "-o", copy, code=2).stderr
    assert (copy / "manifest.json").read_bytes() == before
    tkc("compile", model, "-o", copy, "--force", "--kernels", "none")
    assert (copy / "manifest.json").read_bytes() != before
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("")
    for place in (tmp_path / "folder", tmp_path / "folder" / "kept"):
        assert "no artifact" in tkc("compile", model, "-o", place, "--force", code=2).stderr.replace("\n", " ")
    assert (tmp_path / "folder" / "kept").exists()


def test_what_is_misspelt_is_answered_with_what_was_meant(model: Path) -> None:
    """Options, commands, and commands of commands."""
    cases = [
        (("compile", model, "-o", "out", "--kernel", "all"), "--kernels"),
        (("compile", model, "-o", "out", "--check"), "--checks"),
        (("explain", model, "--databse", "x"), "--database"),
        (("tune", model, "--trails", "4"), "--trials"),
        (("tune", "kernel"), "kernels"),
        (("compil", model), "compile"),
        (("db", "merg", "x"), "merge"),
    ]
    for arguments, meant in cases:
        assert meant in tkc(*arguments, code=2).stderr


def test_what_the_machine_refuses_is_no_fault_of_ours(artifact: Path, tmp_path: Path) -> None:
    """A place that cannot be written is named, with exit code 2."""
    (tmp_path / "folder.npz").mkdir()
    assert "folder.npz" in tkc("run", artifact, "-o", tmp_path / "folder.npz", code=2).stderr.replace("\n", "")
    assert "nowhere" in tkc("run", artifact, "-o", tmp_path / "nowhere" / "out.npz", code=2).stderr


def test_run_reads_and_writes_files(artifact: Path, tmp_path: Path) -> None:
    """From .npy and .npz, to .npz; probabilities sum to one."""
    features = np.random.default_rng(0).standard_normal((6, 12), dtype=np.float32)
    np.save(tmp_path / "features.npy", features)
    np.savez(tmp_path / "all.npz", features=features)
    outputs = []
    for given in (f"features={tmp_path / 'features.npy'}", str(tmp_path / "all.npz")):
        tkc("run", artifact, "-i", given, "-o", tmp_path / "out.npz")
        (value,) = np.load(tmp_path / "out.npz").values()
        outputs.append(value)
    np.testing.assert_allclose(outputs[0].sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(*outputs)


def test_run_takes_and_gives_strings(tmp_path: Path) -> None:
    """From .npy and .npz, which need no pickle, to .npz; they agree with the model's or do not."""
    model, artifact = tmp_path / "words.onnx", tmp_path / "words.tkc"
    graph = 'g (string[n] x) => (string[n] y, int64[1] s) {{ k = Constant<value_string="{}">() {} }}'
    for end in ("!", "?"):
        onnx.save(parsed(graph.format(end, "y = StringConcat(x, k) s = Shape(x)")), model)
        if end == "!":
            tkc("compile", model, "-o", artifact, "--kernels", "none")
            assert "string" in tkc("run", artifact, "--size", "n=3", "--compare", model).stdout
    tkc("run", artifact, "--compare", model, code=1)
    np.save(tmp_path / "x.npy", np.array(["a b", "é"]))
    tkc("run", artifact, "-i", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "out.npz")
    assert np.load(tmp_path / "out.npz")["y"].tolist() == ["a b!", "é!"]
    refused = tkc("run", artifact, "-o", tmp_path / "out.safetensors", code=2).stderr.replace("\n", " ")
    assert "y are strings; write them as .npz" in refused


def test_profile_shows_the_time_by_the_models_nodes(artifact: Path, tmp_path: Path) -> None:
    """As a table, as JSON and as a page; inputs are given as to ``tkc run``."""
    page = tmp_path / "profile.html"
    shown = tkc("profile", artifact, "--size", "features_0=9", "--repeat", "2", "--html", page).stdout
    assert "Roofline" in shown and page.name in shown.replace("\n", "")
    assert "layers.0 (linear)" in page.read_text()
    np.savez(tmp_path / "in.npz", features=np.ones((3, 12), np.float32))
    profile = json.loads(tkc("profile", artifact, "--input", tmp_path / "in.npz", "--json").stdout)
    assert profile["inputs"] == ["features (float32 [3, 12])"] and profile["repeat"] == 20
    assert "--size is for random" in tkc("profile", artifact, "-i", "in.npz", "--size", "x=1", code=2).stderr
    assert "write a profile as" in tkc("profile", artifact, "-o", tmp_path / "profile.txt", code=2).stderr


def test_explain_and_inspect(model: Path, artifact: Path) -> None:
    """Both as tables and as JSON; explaining needs no compiler."""
    explained = tkc("explain", model).stdout
    assert "Generated functions" in explained and explained.splitlines()[-1] == "Verdict: compiled whole."
    assert json.loads(tkc("explain", model, "--json").stdout)["verdict"] == "compiled whole"
    assert json.loads(tkc("explain", model, "--target", "cuda:sm_90a", "--json").stdout)["target"] == "cuda:sm_90a"
    shown = tkc("inspect", artifact).stdout
    assert "[features_0, 12]" in shown and "[features_0, 5]" in shown
    assert "operators called in PyTorch" in shown and "libraries that kernels call" in shown
    assert "activations" in shown and "where" in shown
    assert json.loads(tkc("inspect", artifact, "--json").stdout)["format"] == FORMAT


class Called(torch.nn.Module):
    """Nine operators without a converter, which PyTorch computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [n, n]``."""
        return torch.linalg.eigvals(x).abs() + torch.linalg.inv(x) + torch.linalg.det(x) + torch.linalg.cholesky(x)


@pytest.mark.daily(1)
def test_what_pytorch_computes_is_in_the_verdict_and_the_artifact(tmp_path: Path) -> None:
    """In one line, also where the output is no terminal; ``inspect`` lists the operators, and brackets in names."""
    path, output = tmp_path / "called.pt2", tmp_path / "[n, 4].tkc"
    torch.export.save(torch.export.export(Called(), (torch.eye(3),)), path)
    report = json.loads(tkc("explain", path, "--json").stdout)
    shown = tkc_process("explain", path).stdout.splitlines()
    assert shown[-1] == f"Verdict: {report['verdict']}." and len(shown[-1]) > 100
    assert f"wrote {output}" in tkc("compile", path, "-o", output, "--kernels", "none").stdout
    inspected = "".join(tkc("inspect", output).stdout.split())  # a path may be longer than a line
    assert "linalg_eig" in inspected and "[n,4].tkc" in inspected


class Counter(torch.nn.Module):
    """Adds the number of its calls to its input."""

    def __init__(self) -> None:
        """None yet."""
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [3]``."""
        self.calls.add_(1)
        return x + self.calls


def test_a_model_with_state_is_run_from_its_initial_state(tmp_path: Path) -> None:
    """However often it is called before the comparison; ``inspect`` lists the state."""
    torch.export.save(torch.export.export(Counter(), (torch.zeros(3),)), tmp_path / "counter.pt2")
    tkc("compile", tmp_path / "counter.pt2", "-o", tmp_path / "counter.tkc")
    tkc("run", tmp_path / "counter.tkc", "--compare", tmp_path / "counter.pt2")
    shown = tkc("inspect", tmp_path / "counter.tkc").stdout.splitlines()
    assert any("state" in line and "calls" in line and "float32" in line for line in shown)


def test_dump_holds_the_module_between_stages(artifact: Path, model: Path) -> None:
    """One readable file for each stage, in order, and what each of its passes did."""
    names = sorted(path.name for path in model.with_name("dump").glob("*.py"))
    assert [name.split("_", 1)[1] for name in names][:3] == ["import.py", "canonicalize.py", "substitute_kernels.py"]
    assert "R.function" in (model.with_name("dump") / names[0]).read_text()


def test_doctor_says_what_is_there() -> None:
    """Every finding has a name, a status and what was found."""
    findings = json.loads(tkc("doctor", "--json").stdout)
    assert {"C++ compiler", "CUDA compiler", "GPU", "kernel cache"} <= {finding["name"] for finding in findings}
    assert all(finding["found"] for finding in findings)


@pytest.mark.daily(4)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_compilation_may_be_stopped_while_it_builds(model: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """``Ctrl-C`` ends it and its builders with 130; after either, nothing is half written and the next works."""
    output = tmp_path / "out.tkc"
    command = [*COMMAND, "compile", str(model), "-o", str(output), "--kernels", "all"]
    environment = os.environ | {"TKC_CACHE_DIR": str(tmp_path / "cache")}
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    builders = _builders(running)
    running.send_signal(sent)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == (130 if sent == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in errors
    if sent == signal.SIGINT:
        assert errors.splitlines()[-1] == "interrupted"
        assert psutil.wait_procs(builders, timeout=1)[1] == []
    assert list(tmp_path.glob("*.tkc*")) == []
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (output / "manifest.json").is_file()


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_interrupt_hides_what_destructors_raise_after_it(interrupted: bool) -> None:
    """Objects half made may fail to be taken down; without an interrupt such a failure is told."""
    script = (
        "import os, signal, tkc.cli.app\n"
        "from tkc.cli import main\n"
        "class HalfMade:\n"
        "    def __init__(self):\n"
        f"        if {interrupted}: os.kill(os.getpid(), signal.SIGINT)\n"
        "    def __del__(self):\n"
        "        self.folder\n"
        "tkc.cli.app.app = HalfMade\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if interrupted:
        assert (done.returncode, done.stderr) == (130, "interrupted\n")
    else:
        assert "AttributeError" in done.stderr


def _command(process: psutil.Process) -> str:
    """The process's command line; empty if it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _builders(compilation: subprocess.Popen[str]) -> list[psutil.Process]:
    """The builder processes, as soon as one is forked from the first."""
    while compilation.poll() is None:
        children = psutil.Process(compilation.pid).children(recursive=True)
        builders = [child for child in children if "tkc.builder.worker" in _command(child)]
        if len(builders) > 1:
            return builders
        time.sleep(0.05)
    raise AssertionError("the compilation ended before it built anything")


@pytest.mark.daily(3)
def test_a_program_with_custom_operators_names_what_to_import(tmp_path: Path) -> None:
    """A saved program that needs a module is refused with PyTorch's reason; ``--import`` brings the module."""
    (tmp_path / "doubling.py").write_text(
        "import torch\n"
        "library = torch.library.Library('tkc_test', 'DEF')\n"
        "library.define('unknown(Tensor x) -> Tensor')\n"
        "library.impl('unknown', lambda x: x * 2, 'CompositeExplicitAutograd')\n"
    )
    program = tmp_path / "custom.pt2"
    script = (
        "import torch, doubling\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.ops.tkc_test.unknown(x)\n"
        f"torch.export.save(torch.export.export(Model(), (torch.ones(2),)), {str(program)!r})\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert "--import" in (error := tkc("explain", program, code=2).stderr) and "tkc_test.unknown" in error
    assert "nowhere" in tkc("explain", program, "--import", "nowhere", code=2).stderr
    known = {"cwd": tmp_path, "capture_output": True, "text": True}
    command = [*COMMAND, "explain", str(program), "--import", "doubling"]
    refused = subprocess.run([*command, "--no-fallback"], **known)
    assert refused.returncode == 2 and "tkc_test.unknown" in refused.stderr.replace("\n", "")  # now as an operator
    called = subprocess.run(command, **known)  # by default
    assert called.returncode == 0 and "tkc_test::unknown (1)" in called.stdout


def test_errors_are_one_message_and_an_exit_code(model: Path, artifact: Path, tmp_path: Path) -> None:
    """Every wrong argument names the culprit; nothing is written."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x07garbage")
    cases = [
        (("compile", "missing.pt2", "-o", tmp_path / "out"), "missing.pt2"),
        (("compile", broken, "-o", tmp_path / "out"), "broken.onnx"),
        (("compile", model, "-o", tmp_path / "out", "--target", "tpu"), "tpu"),
        (("compile", model, "-o", tmp_path / "out", "--kernels", "most"), "most"),
        (("compile", model), "--output"),
        (("run", tmp_path), "is no artifact"),
        (("run", artifact, "--size", "width=3"), "width=3"),
        (("run", artifact, "-i", "features=missing.npy"), "missing.npy"),
        (("run", artifact, "-o", "out.txt"), "out.txt"),
        (("inspect", "nowhere"), "nowhere"),
        (("bench", "kernels", "no.such", "--target", "cpu"), "no.such"),
    ]
    for arguments, culprit in cases:
        assert culprit in tkc(*arguments, code=2).stderr
    arguments, culprit = cases[0]
    assert culprit in tkc_process(*arguments, code=2).stderr
    assert not (tmp_path / "out").exists()
