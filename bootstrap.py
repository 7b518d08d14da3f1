"""Make the project's environment in `.venv` and install what is missing in it; `make` calls this first.

    python3 bootstrap.py --extras quickstart,test

Needs a Python of 3.11 or newer and nothing else, and uses plain pip, with whatever index and constraints pip is
configured for. An older Python gets a sentence rather than a SyntaxError, so this one file is written in Python 3.6.
A first run with PyTorch's default build downloads about 4 GB and fills about 7 GB; a run that finds everything in
place takes a tenth of a second. The same by hand:

    python3 -m venv .venv && .venv/bin/python -m pip install -e '.[quickstart,test]'
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

ROOT = Path(__file__).resolve().parent
OLDEST = (3, 11)
GB = 10**9

# What is in a virtual environment and what we put there: a folder with anything else in it is not ours to clear.
LOCK, STAMP, TEMPORARY = "bootstrap.lock", "bootstrap.json", "bootstrap-tmp"
PARTS = {"bin", "include", "lib", "lib64", "share", "etc", "pyvenv.cfg", ".gitignore", LOCK, STAMP, TEMPORARY}

# Gigabytes (in the environment, downloaded while installing): measured with torch 2.14, rounded up.
SPACE = {"PyTorch's default build": (7.0, 4.5), "PyTorch's CPU build": (2.0, 1.0), "the missing packages": (1.0, 0.5)}

# How pip's errors look, what that means and what to do about it. The first that matches counts: a download that
# worked at the second attempt leaves a warning behind, so the causes that no retry explains come first.
SYMPTOMS = (
    (
        r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]",
        "the disk is full",
        "Free some space; PIP_NO_CACHE_DIR=1 keeps pip from storing each download a second time.",
    ),
    (
        r"ResolutionImpossible|conflicting dependencies",
        "packages that exclude each other's versions",
        "The lines above name them; `.venv/bin/python -m pip config list` shows constraints set on this machine.",
    ),
    (
        r"NewConnectionError|Failed to establish|ConnectTimeout|ConnectionRefused|ConnectionReset|Connection broken"
        r"|connection broken|ConnectionError|ReadTimeout|Read timed out|IncompleteRead|ProtocolError|ProxyError"
        r"|MaxRetryError|Name or service not known|name resolution|SSLError|CERTIFICATE_VERIFY_FAILED"
        r"|HTTP error (403|407|429|5\d\d)|(403|407|429|5\d\d) (Client|Server) Error",
        "no package registry could be reached",
        "Check the network and the proxy, and pip's index with `.venv/bin/python -m pip config list`.",
    ),
    (
        r"No matching distribution found|Could not find a version|requires a different Python",
        "a package that no registry asked has for this Python and platform (or none answered)",
        "The lines above name it; another Python may do: remove .venv and give make PYTHON=python3.12.",
    ),
    (
        r"Permission denied|\[Errno 13\]|Read-only file system",
        "a folder that may not be written",
        "The lines above name it; .venv may belong to another user.",
    ),
)


class SetupError(Exception):
    """What stopped the setup, as a sentence for the person at the terminal."""


def say(sentence: str) -> None:
    """One line of progress, ahead of whatever a child process prints next."""
    print("setup: " + sentence, flush=True)


# ---------------------------------------------------------------------------------------------------------------
# Is this machine fit for it?


def dotted(version: Iterable[object]) -> str:
    """(3, 11) as "3.11"."""
    return ".".join(map(str, version))


def check_python(version: Tuple[int, ...], executable: str) -> None:
    """Refuses a Python older than the project's oldest."""
    if version < OLDEST:
        raise SetupError(
            f"open_clip_linear needs Python {dotted(OLDEST)} or newer, and {executable} is {dotted(version)}. "
            f"Install a newer one and give make its name, as in: make quickstart PYTHON=python{dotted(OLDEST)}"
        )


def check_venv_module() -> None:
    """Refuses a Python that cannot make an environment with pip in it (Debian keeps that in a package of its own)."""
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return
    if os.path.exists("/etc/debian_version"):
        cure = f"Install the package that has them: apt install python{dotted(sys.version_info[:2])}-venv"
    else:
        cure = "Install a whole Python, with its modules venv and ensurepip, and name it: make quickstart PYTHON=..."
    raise SetupError(f"{sys.executable} cannot make an environment: it lacks venv or ensurepip. {cure}")


def own_temporary(venv: Path) -> Optional[Path]:
    """A folder in .venv for pip's downloads (a /tmp in memory is too small for them); None where TMPDIR is set."""
    return None if os.environ.get("TMPDIR") else venv / TEMPORARY


def check_space(venv: Path) -> None:
    """Refuses to begin a download that the disk cannot hold."""
    if any(venv.glob("lib/python*/site-packages/torch-*.dist-info/RECORD")):
        what = "the missing packages"
    elif "cpu" in os.environ.get("PIP_INDEX_URL", "") + os.environ.get("PIP_EXTRA_INDEX_URL", ""):
        what = "PyTorch's CPU build"
    else:
        what = "PyTorch's default build"
    downloads = venv if own_temporary(venv) else Path(tempfile.gettempdir())
    needs: Dict[int, float] = {}
    for place, gigabytes in zip((venv, downloads), SPACE[what]):
        device = os.stat(str(place)).st_dev
        needs[device] = needs.get(device, 0.0) + gigabytes
    for place in (venv, downloads):
        disk = os.statvfs(str(place))
        needed, found = needs[os.stat(str(place)).st_dev], disk.f_bavail * disk.f_frsize / GB
        if found < needed:
            smaller = "; the CPU build needs less, see the README" if what == "PyTorch's default build" else ""
            raise SetupError(
                f"not enough disk at {place}: installing {what} takes about {needed:.1f} GB there "
                f"and {found:.1f} GB are free. Free some space{smaller}."
            )


# ---------------------------------------------------------------------------------------------------------------
# What is there already?


def python_of(venv: Path) -> Path:
    """The environment's interpreter."""
    return venv / "bin" / "python"


def answer(python: Path, *arguments: str) -> Optional[str]:
    """What that interpreter prints, or None where it does not run or fails."""
    try:
        done = subprocess.run(
            [str(python), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def version_of(venv: Path) -> Optional[str]:
    """The environment's Python as "3.11"; None when it does not run (half made, or its Python was removed)."""
    return answer(python_of(venv), "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def read_stamp(venv: Path) -> Dict[str, Any]:
    """What the last completed run recorded; empty when none did."""
    try:
        stamp = json.loads((venv / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(venv: Path, stamp: Dict[str, Any]) -> None:
    """Whole or not at all."""
    partial = venv / (STAMP + ".partial")
    partial.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    os.replace(str(partial), str(venv / STAMP))


def known_extras(root: Path) -> Set[str]:
    """The extras that pyproject.toml defines."""
    import tomllib  # part of Python from 3.11 on, which is checked by now

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project.get("optional-dependencies", {}))


# ---------------------------------------------------------------------------------------------------------------
# The two steps


def run(command: Sequence[str], folder: Path, environment: Dict[str, str], lock: Optional[int]) -> Tuple[int, str]:
    """Runs it there, its output passed on as it comes. Returns its exit code and the end of what it said on stderr.

    The child holds the lock as well, so that one that outlives us (we were killed) keeps the next run waiting.
    """
    said = deque(maxlen=400)  # type: deque[str]
    process = subprocess.Popen(
        command, cwd=str(folder), env=environment, stderr=subprocess.PIPE, pass_fds=() if lock is None else (lock,)
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode("utf-8", "replace")
            sys.stderr.write(text)
            sys.stderr.flush()
            said.append(text)
        return process.wait(), "".join(said)
    except BaseException as stopped:
        # Ctrl-C at a terminal reached the child too: let it clean up. Any other end is ours to pass on.
        if not isinstance(stopped, KeyboardInterrupt):
            process.terminate()
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise


def clear(venv: Path) -> None:
    """Empties the environment, all but the lock that we hold."""
    strangers = sorted(set(os.listdir(str(venv))) - PARTS)
    if strangers and not (venv / "pyvenv.cfg").exists():
        raise SetupError(f"{venv} is no Python environment (it holds {', '.join(strangers[:3])}): move it away.")
    for entry in [venv / STAMP, *venv.iterdir()]:  # the stamp first: it must not vouch for what is being removed
        if entry.name == LOCK or not os.path.lexists(str(entry)):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(str(entry))
        else:
            entry.unlink()


def make_environment(venv: Path, lock: Optional[int]) -> None:
    """A new, empty environment with pip, of the Python that runs this."""
    clear(venv)
    say(f"making {venv} with Python {dotted(sys.version_info[:3])}")
    code, said = run([sys.executable, "-m", "venv", str(venv)], venv.parent, dict(os.environ), lock)
    if code != 0:
        raise SetupError(failure("making the environment", code, said))


def remove_cut_short(venv: Path) -> None:
    """Makes pip install anew what a killed run left in pieces.

    pip writes a package's INSTALLER file after all its code, and reads metadata without it as "installed". Names with
    a tilde are what it set aside while replacing a package.
    """
    for site in venv.glob("lib/python*/site-packages"):
        pieces = [info for info in site.glob("*.dist-info") if not (info / "INSTALLER").exists()]
        for piece in pieces + list(site.glob("~*")):
            say(f"removing {piece.name}, left by an interrupted run")
            shutil.rmtree(str(piece), ignore_errors=True)


def install(root: Path, venv: Path, extras: Sequence[str], lock: Optional[int]) -> None:
    """Has pip install the checkout with these extras; what is there already, pip leaves alone."""
    remove_cut_short(venv)
    what = f".[{','.join(extras)}]" if extras else "."
    say("installing open_clip_linear" + (" with the extras " + ", ".join(extras) if extras else ""))
    environment, temporary = dict(os.environ), own_temporary(venv)
    if temporary:
        shutil.rmtree(str(temporary), ignore_errors=True)  # gigabytes, if the last run was killed
        temporary.mkdir()
        environment["TMPDIR"] = str(temporary)
    try:
        code, said = run([str(python_of(venv)), "-m", "pip", "install", "-e", what], root, environment, lock)
    finally:
        if temporary:
            shutil.rmtree(str(temporary), ignore_errors=True)
    if code != 0:
        raise SetupError(failure("pip", code, said))


def failure(step: str, code: int, said: str) -> str:
    """The sentence for a step that failed: what it looks like, what to do."""
    if code < 0:
        looks, cure = f"it was ended by {signal.Signals(-code).name}", "Was the machine out of memory?"
    else:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.upper().startswith("ERROR")]
        looks, cure = "it said: " + (errors or lines or ["nothing"])[-1].rstrip("."), "The lines above say more."
        for pattern, meaning, advice in SYMPTOMS:
            if re.search(pattern, said):
                looks, cure = "this looks like: " + meaning, advice
                break
    return f"{step} failed; {looks}. {cure} Then give the same command again: it carries on from here."


# ---------------------------------------------------------------------------------------------------------------
# All of it


@contextlib.contextmanager
def only_one(venv: Path) -> Iterator[Optional[int]]:
    """Holds the environment's lock, after waiting for whoever has it. Yields the lock's file descriptor."""
    with open(str(venv / LOCK), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup of this checkout is running; waiting for it to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            say(f"no lock on this file system ({error.strerror}): do not run two setups at once")
            yield None
            return
        yield file.fileno()


def setup(root: Path, extras: Sequence[str]) -> None:
    """Leaves `root/.venv` with the checkout and these extras installed in it, doing only what is missing."""
    check_python(sys.version_info[:3], sys.executable)
    unknown = sorted(set(extras) - known_extras(root))
    if unknown:
        allowed = ", ".join(sorted(known_extras(root)))
        raise SetupError(f"no extra {', '.join(unknown)} in pyproject.toml; there are {allowed}")
    venv = root / ".venv"
    venv.mkdir(exist_ok=True)
    with only_one(venv) as lock:
        stamp, version = read_stamp(venv), version_of(venv)
        wanted = {
            "python": version,
            "folder": str(root),  # scripts in .venv and the link to the checkout name it: a moved one is made anew
            "pyproject": hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest(),
        }
        have = set(stamp.get("extras", ()))
        if version and all(stamp.get(key) == value for key, value in wanted.items()) and have >= set(extras):
            say(".venv has everything")
            return

        check_venv_module()
        check_space(venv)
        broken = None
        if not version or not answer(python_of(venv), "-m", "pip", "--version"):
            broken = "is unfinished, or its Python is gone"
        elif stamp.get("folder", str(root)) != str(root):
            broken = f"was made for {stamp['folder']}"
        elif tuple(map(int, version.split("."))) < OLDEST or stamp.get("python", version) != version:
            broken = f"does not fit its Python, which is now {version}"
        if broken:
            if os.listdir(str(venv)) != [LOCK]:
                say(f"the .venv that is there {broken}; making it anew")
            make_environment(venv, lock)
            have, version = set(), version_of(venv)
        elif version != dotted(sys.version_info[:2]):
            say(f"keeping .venv, which has Python {version}; remove it to change to {sys.executable}")

        both = sorted((have & known_extras(root)) | set(extras))
        install(root, venv, both, lock)
        write_stamp(venv, dict(wanted, python=version, extras=both))
        say(".venv is ready")


def stop(signum: int, frame: Any) -> None:
    """SIGTERM ends the run the way Ctrl-C does: pip is ended too, and what it left in .venv/bootstrap-tmp removed."""
    sys.exit(128 + signum)


def main(arguments: Optional[List[str]] = None) -> int:
    """The command line. Returns the exit code: 0 done, 1 stopped by what the sentence says, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="bootstrap.py", description="Make .venv and install what is missing in it.")
    parser.add_argument("--extras", default="", metavar="A,B", help="extras of pyproject.toml to install as well")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    try:
        setup(ROOT, [extra.strip() for extra in options.extras.split(",") if extra.strip()])
    except SetupError as error:
        sentence, code = str(error), 1
    except OSError as error:
        sentence, code = f"stopped by {error}. Put that right and give the same command again.", 1
    except KeyboardInterrupt:
        sentence, code = "interrupted; the same command carries on from here.", 130
    else:
        return 0
    print("setup: " + sentence, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
