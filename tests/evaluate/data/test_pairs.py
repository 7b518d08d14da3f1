"""Reading held-out pairs: each picture from its own place, and every kind of damage by name."""

from pathlib import Path

import pytest

from data_prep.errors import DataError
from data_prep.manifest import write_manifest
from data_prep.shards import ShardWriter, decode_image, read_samples
from evaluate.data.pairs import duplicates, list_sha256, read_pairs
from evaluate.errors import RefusedError

from ..conftest import png


def write(folder: Path, *samples: dict[str, bytes]) -> Path:
    with ShardWriter(folder / "00000.tar") as writer:
        for number, members in enumerate(samples):
            writer.write(f"key{number}", members)
    write_manifest(folder, [writer.close()])
    return folder


def test_pictures_and_captions_are_those_of_the_shards(emoji_root: Path) -> None:
    folder = emoji_root / "heldout-vendor"
    pairs = read_pairs(folder)
    assert pairs == read_pairs(folder / "manifest.jsonl")
    raw = [sample for shard in sorted(folder.glob("*.tar")) for sample in read_samples(shard)]
    assert len({pair.place.file for pair in pairs}) == 3
    assert len(pairs) == len(raw) == 20
    for pair, sample in zip(pairs, raw, strict=True):
        assert (pair.key, pair.captions) == (sample["__key__"].decode(), (sample["txt"].decode(),))
        assert pair.picture().tobytes() == decode_image(sample["png"]).tobytes()


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.jsonl does not exist"):
        read_pairs(tmp_path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"txt": b"a"}, "sample 'key1' has no picture"),
        ({"png": b"x"}, "sample 'key1' has no caption"),
        ({"png": b"x", "txt": b"\xff"}, "sample 'key1': its caption is not UTF-8"),
    ],
)
def test_incomplete_samples_are_named(tmp_path: Path, second: dict[str, bytes], message: str) -> None:
    write(tmp_path, {"png": b"x", "txt": b"a"}, second)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path)


def test_one_pair_is_no_retrieval(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds 1 pairs; retrieval needs at least two"):
        read_pairs(write(tmp_path, {"png": b"x", "txt": b"a"}))


def test_a_changed_shard_is_refused(tmp_path: Path) -> None:
    shard = write(tmp_path, {"png": b"x", "txt": b"a"}, {"png": b"y", "txt": b"b"}) / "00000.tar"
    content = bytearray(shard.read_bytes())
    content[512] ^= 1  # the first picture's first byte: the tar is still whole
    shard.write_bytes(content)
    with pytest.raises(DataError, match="its sha256 differs"):
        read_pairs(tmp_path)


def clip_benchmark_set(root: Path, *samples: dict[str, bytes]) -> Path:
    """Samples as CLIP_benchmark's convert_retrieval_dataset leaves them, two a shard."""
    (root / "test").mkdir(parents=True)
    (root / "dataset_type.txt").write_text("retrieval\n")
    for shard in range(0, len(samples), 2):
        with ShardWriter(root / "test" / f"{shard // 2}.tar") as writer:
            for number, members in enumerate(samples[shard : shard + 2], start=shard):
                writer.write(f"s{number:07d}", members)
    (root / "test" / "nshards.txt").write_text(f"{-(-len(samples) // 2)}\n")
    return root


def test_clip_benchmarks_layout_has_a_caption_a_line(tmp_path: Path) -> None:
    texts = [b"a cat\na tabby\n\xc3\xa9clair", b"a dog", b"a bird\na finch\n"]
    root = clip_benchmark_set(tmp_path, *({"webp": png(i), "txt": text} for i, text in enumerate(texts)))
    pairs = read_pairs(root)
    assert [pair.captions for pair in pairs] == [("a cat", "a tabby", "éclair"), ("a dog",), ("a bird", "a finch")]
    assert [pair.key for pair in pairs] == ["s0000000", "s0000001", "s0000002"]
    assert [pair.place.file for pair in pairs] == [root / "test" / name for name in ("0.tar", "0.tar", "1.tar")]
    for number, pair in enumerate(pairs):
        assert pair.picture().tobytes() == decode_image(png(number)).tobytes()
    assert list_sha256(pairs) == list_sha256(read_pairs(str(root))) != list_sha256(pairs[:2])
    assert duplicates(pairs) == 0


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"txt": b"a"}, "1.tar:s0000002 must have one picture"),
        ({"png": b"x"}, r"1.tar:s0000002 has no caption \(a line of txt\)"),
        ({"png": b"x", "txt": b""}, "1.tar:s0000002 has no caption"),
        ({"png": b"x", "txt": b"\xff"}, "1.tar:s0000002: its captions are not UTF-8"),
    ],
)
def test_incomplete_samples_of_clip_benchmarks_are_named(
    tmp_path: Path, second: dict[str, bytes], message: str
) -> None:
    whole = {"png": b"x", "txt": b"a"}
    with pytest.raises((DataError, RefusedError), match=message):
        read_pairs(clip_benchmark_set(tmp_path, whole, whole, second))


def test_captions_of_another_picture_are_counted(tmp_path: Path) -> None:
    texts = [b"a cat\na cat", b"a cat\na dog", b"a bird"]
    assert duplicates(read_pairs(clip_benchmark_set(tmp_path, *({"png": b"x", "txt": t} for t in texts)))) == 2
