"""`bootstrap.py` and the Makefile, without a network: real environments of a tiny project, real pip, real locks."""

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

import bootstrap

ROOT = Path(bootstrap.__file__).parent

# A project that pip installs with nothing but itself. Its build waits on the file "gate", if there is one: a named
# pipe that the test opens when it wants to know that pip has come so far, and closes to let it go on.
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
[project.optional-dependencies]
one = []
two = []
missing = ["open-clip-linear-has-no-such-dependency"]
"""
BACKEND = """
import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    if os.path.exists("gate"):
        open("gate", "w").close()
        open("gate").read()
    name, info = "tiny-1-py3-none-any.whl", "tiny-1.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("tiny.pth", os.getcwd())
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\n"
            "Tag: py3-none-any\\n")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\nProvides-Extra: one\\n"
            "Provides-Extra: two\\nProvides-Extra: missing\\n"
            "Requires-Dist: open-clip-linear-has-no-such-dependency; extra == 'missing'\\n")
        wheel.writestr(info + "RECORD", "tiny.pth,,\\n%sWHEEL,,\\n%sMETADATA,,\\n%sRECORD,,\\n" % (info, info, info))
    return name
"""
# The disk of the machine that runs the tests is none of their business.
DRIVER = (
    "import sys, bootstrap; bootstrap.SPACE = dict.fromkeys(bootstrap.SPACE, (0.0, 0.0));"
    "sys.exit(bootstrap.main(sys.argv[1:]))"
)


def environment(**extra: str) -> dict[str, str]:
    """The surroundings of a machine with no pip configuration and no registry."""
    ours = ("PIP_", "MAKE", "MFLAGS")  # and what a person may have given the make that runs the tests
    theirs = {"TMPDIR", "PYTHON", "MODEL", "RUN"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in theirs}
    return {**clean, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_RETRIES": "0", **extra}


def start(project: Path, extras: str, **extra: str) -> subprocess.Popen[str]:
    """Starts bootstrap.py in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, "--extras", extras],
        cwd=project,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell that starts the tests in the background has them ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it said."""
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def set_up(project: Path, extras: str, **extra: str) -> tuple[int, str]:
    return finish(start(project, extras, **extra))


def stamp(project: Path) -> dict[str, object]:
    return json.loads((project / ".venv" / bootstrap.STAMP).read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that was set up once with the extra "one"; its path has a space, as a person's may."""
    project = tmp_path_factory.mktemp("check out") / "tiny"
    project.mkdir()
    shutil.copy(ROOT / "bootstrap.py", project)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "backend.py").write_text(BACKEND)
    code, said = set_up(project, "one")
    assert code == 0, said
    assert "making" in said
    return project


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil, which takes itself for the original."""
    copy = tmp_path / "copy of tiny"
    shutil.copytree(finished, copy, symlinks=True)
    bootstrap.write_stamp(copy / ".venv", {**stamp(copy), "folder": str(copy)})
    return copy


# ------------------------------------------------------------------------------------------------- an unfit machine


def test_an_old_python_reads_the_file_and_is_refused_in_a_sentence() -> None:
    ast.parse((ROOT / "bootstrap.py").read_text(), feature_version=(3, 6))
    with pytest.raises(bootstrap.SetupError, match=r"needs Python 3\.11 or newer, and /usr/bin/python3 is 3\.8\.10\."):
        bootstrap.check_python((3, 8, 10), "/usr/bin/python3")
    bootstrap.check_python((3, 11, 0), "python3")
    bootstrap.check_python((4, 0, 0), "python3")


def test_a_python_without_ensurepip_is_told_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    monkeypatch.setattr(bootstrap.os.path, "exists", lambda path: path == "/etc/debian_version")
    with pytest.raises(bootstrap.SetupError, match=rf"apt install python3\.{sys.version_info[1]}-venv"):
        bootstrap.check_venv_module()
    monkeypatch.setattr(bootstrap.os.path, "exists", lambda path: False)
    with pytest.raises(bootstrap.SetupError, match=r"lacks venv or ensurepip\. Install a whole Python"):
        bootstrap.check_venv_module()


@pytest.mark.parametrize(
    ("free_gb", "index", "torch", "refused"),
    [
        (5.0, "", False, "installing PyTorch's default build takes about 11.5 GB there and 5.0 GB are free"),
        (12.0, "", False, None),
        (5.0, "https://index.example/whl/cpu", False, None),
        (2.0, "https://index.example/whl/cpu", False, "PyTorch's CPU build takes about 3.0 GB"),
        (2.0, "", True, None),
        (0.1, "", True, "the missing packages takes about 1.5 GB there and 0.1 GB are free"),
    ],
)
def test_a_full_disk_is_refused_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gb: float, index: str, torch: bool, refused: str | None
) -> None:
    disk = namedtuple("disk", "f_bavail f_frsize")(int(free_gb * 1e9 / 4096) + 1, 4096)
    monkeypatch.setattr(bootstrap.os, "statvfs", lambda path: disk)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)
    if torch:
        info = tmp_path / "lib/python3.11/site-packages/torch-2.9.0.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").touch()
    if refused is None:
        bootstrap.check_space(tmp_path)
    else:
        with pytest.raises(bootstrap.SetupError, match=refused):
            bootstrap.check_space(tmp_path)


def test_an_unknown_extra_is_refused_before_anything_is_made(finished: Path, tmp_path: Path) -> None:
    for name in ("bootstrap.py", "pyproject.toml"):
        shutil.copy(finished / name, tmp_path)
    code, said = set_up(tmp_path, "one,tow")
    assert (code, said) == (1, "setup: no extra tow in pyproject.toml; there are missing, one, two\n")
    assert not (tmp_path / ".venv").exists()


# ------------------------------------------------------------------------------------------------ what is missing


def test_a_second_run_finds_everything_and_starts_no_pip(project: Path) -> None:
    assert stamp(project)["extras"] == ["one"]
    (project / ".venv" / "lib").rename(project / ".venv" / "hidden")  # no pip left to run
    assert set_up(project, "one") == (0, "setup: .venv has everything\n")
    assert set_up(project, "") == (0, "setup: .venv has everything\n")


def test_extras_add_up(project: Path) -> None:
    code, said = set_up(project, "two")
    assert code == 0, said
    assert "with the extras one, two" in said
    assert stamp(project)["extras"] == ["one", "two"]
    assert set_up(project, "one") == (0, "setup: .venv has everything\n")


def test_a_changed_pyproject_is_installed_again(project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    code, said = set_up(project, "")
    assert code == 0, said
    assert "with the extras one" in said
    assert "making" not in said
    assert set_up(project, "one") == (0, "setup: .venv has everything\n")


def test_a_half_made_environment_is_made_anew(project: Path) -> None:
    venv = project / ".venv"
    (venv / "bin" / "python").unlink()
    (venv / "pyvenv.cfg").unlink()
    code, said = set_up(project, "one")
    assert code == 0, said
    assert "is unfinished, or its Python is gone; making it anew" in said
    assert (venv / "bin" / "python").exists()
    assert set_up(project, "one") == (0, "setup: .venv has everything\n")


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"folder": "/elsewhere/open_clip_linear"}, "was made for /elsewhere/open_clip_linear"),
        ({"python": "3.2"}, "does not fit its Python"),
    ],
)
def test_a_moved_checkout_or_another_python_makes_it_anew(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], recorded: dict, said: str
) -> None:
    venv, made = project / ".venv", []
    bootstrap.write_stamp(venv, {**stamp(project), **recorded})
    monkeypatch.setattr(bootstrap, "check_space", lambda venv: None)
    monkeypatch.setattr(bootstrap, "make_environment", lambda venv, lock: made.append(venv))
    monkeypatch.setattr(bootstrap, "run", lambda *step: (0, ""))
    bootstrap.setup(project, ["two"])
    assert made == [venv]
    assert said in capfd.readouterr().out
    assert stamp(project)["extras"] == ["two"]  # what the old one had is gone with it


def test_a_folder_that_is_no_environment_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(bootstrap.SetupError, match=r"no Python environment \(it holds thesis.tex\): move it away"):
        bootstrap.clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_clearing_keeps_the_lock_and_drops_the_stamp_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (bootstrap.LOCK, bootstrap.STAMP, "pyvenv.cfg"):
        (tmp_path / name).touch()
    (tmp_path / "lib").mkdir()

    def killed(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap.shutil, "rmtree", killed)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([self / "lib", self / bootstrap.STAMP]))
    with pytest.raises(KeyboardInterrupt):
        bootstrap.clear(tmp_path)
    assert not (tmp_path / bootstrap.STAMP).exists()
    monkeypatch.undo()
    bootstrap.clear(tmp_path)
    assert os.listdir(tmp_path) == [bootstrap.LOCK]


# ---------------------------------------------------------------------------------------------- failing and stopping


def test_pip_failing_ends_in_a_sentence_and_the_next_run_carries_on(project: Path) -> None:
    code, said = set_up(project, "missing")
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("setup: pip failed; this looks like: a package that no registry asked has")
    assert last.endswith("Then give the same command again: it carries on from here.")
    code, said = set_up(project, "two")
    assert code == 0, said
    assert "making" not in said
    assert stamp(project)["extras"] == ["one", "two"]


def test_no_registry_is_told_from_a_missing_package(project: Path) -> None:
    nobody = "http://127.0.0.1:1/simple"  # refused at once, by this machine itself
    code, said = set_up(project, "missing", PIP_NO_INDEX="0", PIP_RETRIES="1", PIP_INDEX_URL=nobody)
    assert code == 1
    assert "pip failed; this looks like: no package registry could be reached." in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "said", "sentence"),
    [
        (1, "ERROR: Could not install packages: [Errno 28] No space left on device\n", "the disk is full"),
        (2, "WARNING: Connection timed out\nERROR: ResolutionImpossible: for help visit", "exclude each other"),
        (2, "ReadTimeoutError: HTTPSConnectionPool(host='x', port=443): Read timed out.", "no package registry"),
        (1, "ERROR: Could not install: [Errno 13] Permission denied: '/x/.venv/lib'", "may not be written"),
        (1, "ERROR: something new\n  note: below\n", "it said: ERROR: something new"),
        (1, "", "it said: nothing"),
        (-9, "", "it was ended by SIGKILL. Was the machine out of memory?"),
    ],
)
def test_what_a_failure_looks_like(code: int, said: str, sentence: str) -> None:
    assert sentence in bootstrap.failure("pip", code, said)


def test_packages_left_in_pieces_are_removed_so_that_pip_installs_them(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info", "~alf"):
        (site / name).mkdir(parents=True)
    (site / "whole-1.dist-info" / "INSTALLER").write_text("pip\n")
    bootstrap.remove_cut_short(tmp_path)
    assert os.listdir(site) == ["whole-1.dist-info"]


@pytest.fixture
def at_the_gate(project: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run for "two" whose pip is in the middle of the installation; whatever is left of both is ended after."""
    os.mkfifo(project / "gate")
    process = start(project, "two")
    (project / "gate").open().close()  # returns when the other end is opened
    yield project, process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing_behind(
    at_the_gate: tuple[Path, subprocess.Popen[str]], signum: int, code: int
) -> None:
    project, process = at_the_gate
    assert os.listdir(project / ".venv" / bootstrap.TEMPORARY)  # pip works in it
    os.killpg(process.pid, signum)
    ended, said = finish(process)
    assert ended == code, said
    if signum == signal.SIGINT:
        assert said.endswith("setup: interrupted; the same command carries on from here.\n")
    assert not (project / ".venv" / bootstrap.TEMPORARY).exists()
    (project / "gate").unlink()
    again, said = set_up(project, "two")
    assert again == 0, said
    assert "making" not in said


def test_two_runs_at_once_take_turns(at_the_gate: tuple[Path, subprocess.Popen[str]]) -> None:
    project, first = at_the_gate
    second = start(project, "two")
    assert second.stdout is not None
    assert second.stdout.readline() == "setup: another setup of this checkout is running; waiting for it to end\n"
    (project / "gate").open("w").close()
    assert finish(first)[0] == 0
    assert finish(second) == (0, "setup: .venv has everything\n")


def test_a_killed_runs_pip_keeps_the_next_run_waiting(at_the_gate: tuple[Path, subprocess.Popen[str]]) -> None:
    project, first = at_the_gate
    first.kill()  # its pip goes on, and must not meet another in the same environment
    second = start(project, "one")
    assert second.stdout is not None
    assert second.stdout.readline().startswith("setup: another setup of this checkout is running")
    (project / "gate").open("w").close()
    code, said = finish(second)
    assert code == 0, said
    assert said == "setup: .venv has everything\n"
    first.communicate()


# --------------------------------------------------------------------------------------------------------- make


def make(*words: str, folder: Path = ROOT, **extra: str) -> str:
    """What make says; fails the test if it fails."""
    done = subprocess.run(["make", *words], cwd=folder, env=environment(**extra), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with nothing but the Makefile."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    return tmp_path


def test_quickstarts_lines_are_in_order(bare: Path) -> None:
    said = make("-n", "-j", "4", "quickstart", folder=bare, PYTHON="python3").replace("\\\n\t", "")
    assert said.splitlines() == [
        '"python3" bootstrap.py --extras quickstart',
        ".venv/bin/python -m data_prep emoji --output data/emoji",
        ".venv/bin/python -m training --config configs/training/quickstart.toml --model tiny-emoji-eq7mean "
        "--output runs/quickstart",
        ".venv/bin/python -m evaluate zero-shot --model tiny-emoji-eq7mean "
        "--pretrained runs/quickstart/checkpoint.pt --dataset emoji --root data/emoji "
        "--output runs/quickstart/zero-shot.json",
        ".venv/bin/python -m evaluate report runs/quickstart --root data/emoji",
        "echo 'The report: runs/quickstart/report.html'",
    ]


def test_another_model_gets_another_folder(bare: Path) -> None:
    said = make("-n", "quickstart", "MODEL=tiny-emoji-softmax", folder=bare)
    assert "--model tiny-emoji-softmax --output runs/quickstart-softmax\n" in said
    assert "--output runs/mine\n" in make("-n", "quickstart", "RUN=runs/mine", folder=bare)


def test_finished_stages_are_not_repeated(bare: Path) -> None:
    outputs = ["data/emoji/README.md", "runs/quickstart/checkpoint.pt", "runs/quickstart/zero-shot.json"]
    for age, name in enumerate(outputs):
        (bare / name).parent.mkdir(parents=True, exist_ok=True)
        (bare / name).touch()
        os.utime(bare / name, (age, age))
    stages = [line for line in make("-n", "quickstart", folder=bare).splitlines() if " -m " in line]
    assert stages == [".venv/bin/python -m evaluate report runs/quickstart --root data/emoji"]
    (bare / "runs/quickstart/report.html").touch()
    os.utime(bare / outputs[0])  # a data set built anew does not by itself repeat a training
    assert " -m " not in make("-n", "quickstart", folder=bare)
    os.utime(bare / outputs[1])  # a new checkpoint is evaluated
    assert make("-n", "quickstart", folder=bare).count(" -m evaluate") == 2


def test_the_test_command_is_the_whole_check(bare: Path) -> None:
    said = make("-n", "-j", "4", "test", folder=bare, PYTHON="python3")
    assert said.splitlines() == [
        '"python3" bootstrap.py --extras quickstart,test',
        ".venv/bin/python -m ruff check .",
        ".venv/bin/python -m mypy",
        ".venv/bin/python -m pytest",
    ]
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert "make test" in ci.read_text()


def test_make_takes_the_first_python_that_is_new_enough(bare: Path) -> None:
    programs = bare / "programs"
    programs.mkdir()
    for name, code in (("python3", 1), ("python3.13", 127), ("python3.12", 0), ("python3.11", 0)):
        (programs / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    assert '"python3.12" bootstrap.py' in make("-n", "setup", folder=bare, PATH=path)
    for name in ("python3.11", "python3.12"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
    assert '"python3" bootstrap.py' in make("-n", "setup", folder=bare, PATH=path)


def test_make_alone_lists_the_targets(bare: Path) -> None:
    said = make(folder=bare)
    assert said == make("help", folder=bare)
    for target in ("quickstart", "test", "lint", "setup"):
        assert f"make {target} " in said
