"""The download for real: img2dataset under watch, against a server that misbehaves, with the counts added up.

img2dataset wants older packages than this environment holds, so the tests make an environment of its own and remove it.
"""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from server import BEHAVIOURS, OPT_OUTS, MisbehavingServer

from data_prep.errors import DataError
from data_prep.laion import watch
from data_prep.laion.collect import collect
from data_prep.laion.columns import parse_columns
from data_prep.laion.download import Settings, download
from data_prep.laion.http import Limits
from data_prep.laion.layout import Part, read_parts
from data_prep.laion.plan import Shape, plan
from data_prep.laion.retry import plan_retry
from data_prep.laion.rules import Settings as Rules
from data_prep.laion.stats import stats
from data_prep.laion.verify import Options
from data_prep.laion.watch import Bounds

pytestmark = pytest.mark.slow
UNREACHABLE = re.compile(r"from versions: none|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError")
ROOT = Path(__file__).parents[3]
GIVEN = (
    "good",
    "slow",
    "turned",
    "turned-late",
    "png16",
    "tiff16",
    "moved",
    "flaky",
    "informed",
    "gzip",
    "gzip-unsaid",
    "gzip-members",
    "said-gzip",
    "slow-trailer",
)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The Python of an environment with img2dataset."""
    if sys.version_info >= (3, 13):
        pytest.skip("img2dataset imports a module that Python 3.13 removed")
    venv = tmp_path_factory.mktemp("img2dataset")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    install = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "--quiet", "--retries", "1"]
    done = subprocess.run([*install, "img2dataset>=1.47,<2", "ray"], capture_output=True, text=True)
    if UNREACHABLE.search(done.stderr) and done.returncode:
        pytest.skip(f"pip reaches no index that has img2dataset: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    yield str(venv / "bin" / "python")
    shutil.rmtree(venv)


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as server:
        yield server


@pytest.fixture
def settings(python: str) -> Settings:
    """Quick to give up; two processes."""
    return Settings(
        processes=2,
        threads=8,
        timeout=1,
        limits=Limits(max_bytes=1 << 20, deadline=2.0, allow_private=True),
        bounds=Bounds(stall=20, memory_limit=4 << 30, disk_floor=1 << 20, min_success=0.05),
        python=python,
    )


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, with a short name, as those of sockets are short."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def make_plan(folder: Path, server: MisbehavingServer, paths: Sequence[str], shard_size: int, parts: int = 2) -> Path:
    """A plan of the addresses in this order; returns the folder to download to."""
    folder.mkdir(exist_ok=True)
    urls = [server.url(path) for path in paths]
    captions = [f"a picture at {path}" for path in paths]
    metadata = folder / "metadata.parquet"
    table = {"url": urls, "caption": captions, "similarity": [0.5 + 0.001 * place for place in range(len(urls))]}
    parquet.write_table(pa.table(table), metadata)
    output = folder / "laion"
    shape = Shape(shard_size, shards_per_part=-(-len(paths) // shard_size // parts))
    plan([metadata], output, parse_columns("auto"), Rules(allow_private=True), shape)
    return output


def samples(output: Path) -> dict[str, dict[str, bytes]]:
    """Every sample of every finished or collected shard by the path of its address, none twice."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted([*output.glob("parts/*/*.tar"), *output.glob("shards/*.tar")]):
        with tarfile.open(path) as tar:
            members = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
        for key in {name.split(".")[0] for name in members}:
            sample = {suffix: members[f"{key}.{suffix}"] for suffix in ("jpg", "txt", "json")}
            address = "/" + json.loads(sample["json"])["url"].split("/", 3)[3]
            assert address not in found
            found[address] = sample
    return found


def expected(path: str) -> bool:
    """Whether the server gives a picture there."""
    return path.split("/")[1] in GIVEN


def test_everything_that_answers_is_there_and_nothing_else(
    tmp_path: Path, server: MisbehavingServer, settings: Settings, temporary: Path
) -> None:
    kinds = [*BEHAVIOURS, *OPT_OUTS, "flaky", "404", "503"]
    paths = [f"/{kind}/{place}" for place in range(2) for kind in kinds]
    output = make_plan(tmp_path, server, paths, shard_size=15)
    result = download(output, settings)

    found = samples(output)
    assert set(found) == {path for path in paths if expected(path)}
    for path, sample in found.items():
        assert sample["txt"].decode() == f"a picture at {path}"
        description = json.loads(sample["json"])
        assert description["similarity"] == pytest.approx(0.5 + 0.001 * paths.index(path))
        assert "exif" not in description
    assert result["rows"] == len(paths)
    assert result["reasons"]["success"] == len(found)
    assert result["reasons"]["opted out"] == 2 * len(OPT_OUTS)
    assert result["reasons"]["HTTP 404"] == 2
    assert sum(result["reasons"].values()) == len(paths)
    assert list(temporary.iterdir()) == []

    # Opt-outs and what is gone are asked for once, what may pass three times in all.
    for kind in (*OPT_OUTS, "404", "long", "html"):
        assert server.log[f"/{kind}/0"] == 1, kind
    assert [server.log[f"/{kind}/0"] for kind in ("503", "stall", "reset", "flaky", "drip")] == [3, 3, 3, 3, 1]

    for kind in ("turned", "turned-late"):
        turned = np.asarray(Image.open(io.BytesIO(found[f"/{kind}/0"]["jpg"])).convert("RGB")).astype(int)
        assert turned[5, 100, 2] > 150 > turned[5, 100, 0], kind  # blue above: upright, as a viewer would show it
    for kind in ("png16", "tiff16"):
        ramp = np.asarray(Image.open(io.BytesIO(found[f"/{kind}/0"]["jpg"])).convert("L")).astype(int)
        assert ramp[100, 3] < 20, kind
        assert 100 < ramp[100, ramp.shape[1] // 2] < 155, kind
        assert ramp[100, -3] > 235, kind


def test_a_second_call_changes_and_fetches_nothing(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    output = make_plan(tmp_path, server, [f"/good/{place}" for place in range(25)], shard_size=10)
    first = download(output, settings)
    before = {path: path.read_bytes() for path in output.glob("parts/*/*.*")}
    asked = server.log.total()
    (output / "download.json").unlink()  # then the shards are compared again
    assert download(output, settings) == download(output, settings) == first
    assert {path: path.read_bytes() for path in output.glob("parts/*/*.*")} == before
    assert server.log.total() == asked


def test_a_retry_brings_what_was_down_and_asks_for_nothing_else(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    paths = [f"/{kind}/{place}" for place in range(8) for kind in ("good", "reset", "noai", "404")]
    output = make_plan(tmp_path, server, paths, shard_size=20, parts=1)
    download(output, settings)
    asked = dict(server.log)
    server.healed = True
    process = started(output, settings.python, "--json", command="retry")
    said, told = process.communicate()
    assert process.returncode == 0, told
    result = json.loads(said)
    assert (result["retried"], result["rows"]) == (8, len(paths))
    assert result["reasons"] == {"success": 16, "opted out": 8, "HTTP 404": 8}
    assert set(samples(output)) == {path for path in paths if path.split("/")[1] in ("good", "reset")}
    again = {path for path, times in server.log.items() if times != asked[path]}
    assert again == {path for path in paths if path.startswith("/reset/")}


def test_a_shard_made_again_leaves_to_a_retry_what_that_has(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    paths = [path for place in range(10) for path in (f"/good/{place}", f"/reset/{place + 10}")]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    download(output, settings)
    server.healed = True
    assert plan_retry(output) == 10
    whole = download(output, settings)
    assert whole["reasons"] == {"success": 20}
    with open(output / "parts/00000/00001.tar", "r+b") as tar:
        tar.write(bytes(1000))
    asked = dict(server.log)
    assert collect(output, Options(workers=1)).unsound
    assert download(output, settings) == whole
    assert not collect(output, Options(workers=1)).unsound
    assert set(samples(output)) == set(paths)  # none twice
    assert {path for path, times in server.log.items() if times != asked[path]} == {f"/good/{n}" for n in range(5, 10)}
    record = stats(output, seed=0, workers=1)
    assert (record["reasons"], record["rows_to_come"]) == ({"success": 20}, 0)
    assert plan_retry(output) == 0


def collected(output: Path, settings: Settings) -> Part:
    """The only part of a plan, downloaded and collected."""
    download(output, settings)
    assert not collect(output, Options(workers=1)).unsound
    [part] = read_parts(output)
    return part


@pytest.mark.parametrize("lost", ["a shard", "a shard and download.json", "the bytes of a shard"])
def test_a_part_whose_folder_is_gone_is_refused_before_collected_shards_are_fetched_again(
    tmp_path: Path, server: MisbehavingServer, settings: Settings, lost: str
) -> None:
    """Img2dataset would fetch all of it for the one shard that is missing, and does once what is advised is done."""
    paths = [f"/{kind}/{place}" for place in range(15) for kind in ("good", "404")]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    part, asked = collected(output, settings), server.log.total()
    shutil.rmtree(part.folder)
    if lost == "the bytes of a shard":
        with open(part.collected(1), "r+b") as tar:
            tar.write(bytes(1000))
        assert len(collect(output, Options(workers=1)).unsound) == 1
    else:
        part.collected(1).unlink()
    if lost == "a shard and download.json":
        (output / "download.json").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match=r"lost the statistics of 2 shards.*remove \S+/00000-\*\.tar too") as caught:
            download(output, settings)
    assert server.log.total() == asked
    pattern = Path(re.findall(r"remove (\S+)", str(caught.value))[0])
    for tar in pattern.parent.glob(pattern.name):
        tar.unlink()
    assert download(output, settings)["reasons"] == {"success": 15, "HTTP 404": 15}
    collect(output, Options(workers=1))  # the manifest named what was removed
    assert not collect(output, Options(workers=1)).unsound
    assert set(samples(output)) == {path for path in paths if expected(path)}
    assert server.log.total() == 2 * asked


def test_a_collected_shard_whose_table_and_record_are_gone_is_made_again_alone(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    paths = [f"/good/{place}" for place in range(30)]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    part = collected(output, settings)
    (output / "download.json").unlink()
    part.file_of(1, ".parquet").unlink()
    part.file_of(1, "_stats.json").unlink()
    assert download(output, settings)["reasons"] == {"success": 30}
    assert len(collect(output, Options(workers=1)).unsound) == 1
    assert server.log.total() == 30
    collected(output, settings)
    assert set(samples(output)) == set(paths)
    assert server.log == {path: 2 if 10 <= place < 20 else 1 for place, path in enumerate(paths)}


def test_parts_of_two_machines_are_put_together_by_copying(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    paths = [f"/good/{place}" for place in range(40)]
    first, second = (make_plan(tmp_path / name, server, paths, shard_size=10) for name in ("first", "second"))
    assert download(first, replace(settings, part=(1, 2)))["rows"] == 20
    assert download(second, replace(settings, part=(2, 2)))["rows"] == 20
    shutil.copytree(second / "parts" / "00001", first / "parts" / "00001")
    assert download(first, settings)["reasons"] == {"success": 40}
    assert set(samples(first)) == set(paths)
    assert server.log.total() == len(paths)


@pytest.mark.parametrize("damage", ["cut tar", "no tar", "no table", "cut statistics", "fewer rows", "other tar"])
def test_a_shard_that_is_not_whole_is_made_again(
    tmp_path: Path, server: MisbehavingServer, settings: Settings, damage: str
) -> None:
    paths = [f"/good/{place}" for place in range(20)]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    first = download(output, settings)
    part = output / "parts" / "00000"
    kept = {path: path.read_bytes() for path in part.glob("00001*")}
    if damage != "no table":  # which is missed at once
        (output / "download.json").unlink()
    tar, table = part / "00000.tar", part / "00000.parquet"
    if damage == "cut tar":  # at the end of a member, which a lenient reader takes for the end
        with tarfile.open(tar) as opened:
            end = opened.getmembers()[9].offset
        os.truncate(tar, end)
    elif damage == "no tar":
        tar.unlink()
    elif damage == "no table":
        table.unlink()
    elif damage == "cut statistics":
        os.truncate(part / "00000_stats.json", 30)
    elif damage == "fewer rows":
        parquet.write_table(parquet.read_table(table).slice(1), table)
    else:
        shutil.copy(part / "00001.tar", tar)
    assert download(output, settings) == first
    assert set(samples(output)) == set(paths)
    assert {path: path.read_bytes() for path in part.glob("00001*")} == kept


def test_without_a_network_it_stops_early_and_loses_nothing(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    paths = [f"/good/{place}" for place in range(240)]
    output = make_plan(tmp_path, server, paths, shard_size=40, parts=1)
    server.down = True
    with pytest.raises(DataError, match=r"only 0 came \(HTTP 503"):
        download(output, replace(settings, processes=1, retries=0))
    assert server.log.total() < len(paths)
    server.down = False
    assert download(output, settings)["reasons"] == {"success": len(paths)}
    assert set(samples(output)) == set(paths)


def test_a_nearly_full_disk_stops_it_cleanly(
    tmp_path: Path, server: MisbehavingServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"/good/{place}" for place in range(40)]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    settings = replace(settings, bounds=replace(settings.bounds, disk_floor=0))
    real = shutil.disk_usage

    def filling(folder: Path) -> Any:
        """A disk that is full once a shard is finished."""
        full = any(output.glob("parts/*/*_stats.json"))
        return real(folder)._replace(free=100) if full else real(folder)

    with monkeypatch.context() as patched:
        patched.setattr(watch.shutil, "disk_usage", filling)
        with pytest.raises(DataError, match="100 bytes are free on this disk") as caught:
            download(output, replace(settings, processes=1))
    whole = sorted(output.glob("parts/*/*.tar"))  # the others are removed, to make room
    assert [path.with_name(f"{path.stem}_stats.json").exists() for path in whole] == [True] * len(whole)
    left = 40 - 10 * len(whole)
    needed = left * sum(path.stat().st_size for path in whole) // (40 - left)
    assert f"free some space (about {needed:,} bytes for {left} rows to come)" in str(caught.value)
    assert download(output, settings)["reasons"] == {"success": len(paths)}
    assert set(samples(output)) == set(paths)


def test_too_much_memory_means_fewer_processes(
    tmp_path: Path, server: MisbehavingServer, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    output = make_plan(tmp_path, server, [f"/good/{place}" for place in range(20)], shard_size=10, parts=1)
    commands: list[str] = []
    limited = replace(settings, bounds=replace(settings.bounds, memory_limit=1 << 20))
    real = subprocess.Popen

    def popen(command: list[str], **more: Any) -> Any:
        commands.append(command[-1])
        return real(command, **more)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(DataError, match=r"more than --memory-limit .*; give a higher --memory-limit"):
        download(output, replace(limited, processes=4))
    asked = [json.loads(text)["download"] for text in commands if text.startswith('{"download"')]
    assert [order["processes_count"] for order in asked] == [4, 2, 1]


def started(output: Path, python: str, *words: str, command: str = "download") -> subprocess.Popen[str]:
    """The command, on its own."""
    line = [sys.executable, "-m", "data_prep", command, "--output", output, "--allow-private", *words]
    line += ["--img2dataset-python", python, "--processes", "2", "--threads", "2", "--disk-floor", "1M"]
    return subprocess.Popen(list(map(str, line)), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What the condition gives once it gives something."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return found


def processes_of(output: Path) -> list[int]:
    """The processes that download to `output`, by the word in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"download:{output.resolve()}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_it_goes_on(tmp_path: Path, server: MisbehavingServer, settings: Settings, number: int) -> None:
    paths = [f"/slow/{place}" for place in range(60)]
    output = make_plan(tmp_path, server, paths, shard_size=10)
    process = started(output, settings.python)
    finished = until(lambda: sorted(output.glob("parts/*/*_stats.json")))[0]
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    until(lambda: not processes_of(output))  # nothing goes on without its supervisor
    whole = finished.with_name(finished.name.replace("_stats.json", ".tar"))
    before = whole.read_bytes()
    assert download(output, settings)["reasons"] == {"success": len(paths)}
    assert set(samples(output)) == set(paths)
    assert whole.read_bytes() == before


def test_a_killed_worker_hangs_nobody(tmp_path: Path, server: MisbehavingServer, settings: Settings) -> None:
    paths = [f"/slow/{place}" for place in range(60)]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    process = started(output, settings.python, "--timeout", "1", "--deadline", "2", "--stall", "15")
    until(lambda: [path for path in output.glob("parts/*/*.tar") if path.stat().st_size])
    workers = [pid for pid in processes_of(output) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    said = process.communicate()
    assert process.returncode == 0, said
    assert set(samples(output)) == set(paths)
    assert Counter(server.log.values()).keys() <= {1, 2, 3}


def test_what_the_guard_did_not_end_is_ended_at_the_next_start(
    tmp_path: Path, server: MisbehavingServer, settings: Settings
) -> None:
    paths = [f"/slow/{place}" for place in range(40)]
    output = make_plan(tmp_path, server, paths, shard_size=10)
    process = started(output, settings.python)
    until(lambda: list(output.glob("parts/*/*.tar")))
    guards = [pid for pid in processes_of(output) if b"/bin/sh" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    process.send_signal(signal.SIGSTOP)  # it would notice
    for pid in guards:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()
    assert processes_of(output)
    assert download(output, settings)["reasons"] == {"success": len(paths)}
    assert not processes_of(output)
    assert set(samples(output)) == set(paths)


def test_two_at_once_are_refused(tmp_path: Path, server: MisbehavingServer, settings: Settings) -> None:
    output = make_plan(tmp_path, server, [f"/slow/{place}" for place in range(40)], shard_size=10)
    process = started(output, settings.python)
    until(lambda: processes_of(output))
    with pytest.raises(DataError, match="another process is downloading"):
        download(output, settings)
    said = process.communicate()
    assert process.returncode == 0, said


def test_ray_distributes_the_same_plan(tmp_path: Path, server: MisbehavingServer, settings: Settings) -> None:
    """On a local cluster that Ray starts; what img2dataset is denied holds in its workers too."""
    paths = [f"/{kind}/{place}" for place in range(20) for kind in ("good", "noai-behind")]
    output = make_plan(tmp_path, server, paths, shard_size=10, parts=1)
    result = download(output, replace(settings, distributor="ray", bounds=replace(settings.bounds, stall=60)))
    assert result["reasons"] == {"success": 20, "opted out": 20}
    assert set(samples(output)) == {path for path in paths if path.startswith("/good/")}
    assert not processes_of(output)
