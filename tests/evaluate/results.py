"""Results as `python -m evaluate` writes them, with figures of the test's own, and every text hostile."""

from typing import Any

HOSTILE = "<img src=x onerror=alert(1)>&\"'"
MODEL = {
    "format": 1,
    "model": HOSTILE,
    "kind": HOSTILE,
    "text_kind": HOSTILE,
    "parameters": {"vision": 10, "text": 20, "total": 30},
    "checkpoint": {"path": HOSTILE, "sha256": "c0ffee" + "0" * 58},
    "image_size": 32,
    "versions": {"torch": HOSTILE},
    "command": f"python {HOSTILE}",
}


def figures(**changes: Any) -> dict[str, Any]:
    """One set's figures."""
    row = {
        "top1": 12.345,
        "top5": 33.3,
        "mean_per_class": 11.1,
        "n": 1000,
        "classes": 200,
        "interval": [10.4, 14.6],
        "interval_top5": [30.1, 36.6],
        "merged_top1": 12.9,
    }
    return row | changes


def zero_shot(**changes: Any) -> dict[str, Any]:
    """A zero-shot result on a data set that brings its own names."""
    own = {
        "dataset": f"wds/{HOSTILE}",
        "templates": {"name": "full", "texts": ["{}"]},
        "lists": {"": "ab" * 32},
        "results": {HOSTILE: figures(per_vendor={HOSTILE: figures()})},
        "about": [HOSTILE],
    }
    return MODEL | own | changes


def retrieval(**changes: Any) -> dict[str, Any]:
    """A retrieval result."""
    recalls = {f"{way}_r{k}": 5.5 + k for way in ("image_to_text", "text_to_image") for k in (1, 5, 10)}
    own = {
        "data": HOSTILE,
        "manifest_sha256": "cd" * 32,
        "bad_images": [{}, {}],
        "results": recalls | {"pairs": 77, "captions": 80, "loss": 1.5},
        "intervals": {name: [1.0, 20.0] for name in recalls},
    }
    return MODEL | own | changes


def probe(**changes: Any) -> dict[str, Any]:
    """A probe result of two classifiers."""
    own = {
        "dataset": HOSTILE,
        "list_sha256": "ab" * 32,
        "train_list_sha256": "cd" * 32,
        "pictures": {"training": 4321, "test": 1234},
        "limit": 5,
        "results": {"linear": figures(), HOSTILE: {"top1": 1.0, "mean_per_class": 2.0}},
    }
    return MODEL | own | changes


def comparison(**changes: Any) -> dict[str, Any]:
    """A comparison of two results."""
    pair = {"a": 10.0, "b": 12.5, "difference": 2.5}
    tested = pair | {"only_a": 11, "only_b": 33, "p": 0.00123}
    of_set = {"n": 1234, "top1": tested, "top5": tested, "mean_per_class": pair}
    return {"a": f"{HOSTILE}.json", "b": "b.json", "sets": {HOSTILE: of_set}} | changes


def scaling(**changes: Any) -> dict[str, Any]:
    """A scaling result of one kind in two sizes."""
    fit = {
        "kind": HOSTILE,
        "form": "a·N^-α",
        "a": 9.0,
        "alpha": 0.25,
        "c": 0.0,
        "alpha_interval": [0.2, 0.3],
        "runs": 2,
    }
    points = [
        {"kind": HOSTILE, "parameters": n, "training_loss": loss, "validation_loss": None}
        for n, loss in ((16, 4.5), (81, 3))
    ]
    own = {"over": "parameters", "loss": HOSTILE, "fits": [fit], "points": points, "notes": [HOSTILE]}
    return {"format": 1, "command": HOSTILE} | own | changes


def attention(**changes: Any) -> dict[str, Any]:
    """An attention result of two pictures through one layer of two heads."""

    def picture(keys: list[float]) -> dict[str, Any]:
        seen = {"effective_keys": keys, "negative": [0.0, 0.5]}
        return {
            "file": f"/x/{HOSTILE}",
            "layers": [{"layer": 1, "kind": HOSTILE, "class_token": seen, "patches": seen}],
        }

    return MODEL | {"grid": [2, 3], "pictures": [picture([1.0, 2.0]), picture([3.0, 6.0])]} | changes
