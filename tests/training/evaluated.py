"""What test_evaluation.py runs on each rank: one evaluation of a plain model, and one of an FSDP model with a step.

python evaluated.py DATA OUTPUT     # DATA holds pairs/ and val/; OUTPUT/RANK.json gets the figures
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import open_clip
import torch

import open_clip_linear  # noqa: F401
from evaluate.data import read
from evaluate.data.classes import ClassList
from evaluate.data.sets import Templates, get_dataset
from training import evaluation
from training.distributed import World, join
from training.evaluation import Evaluation
from training.model import parallel
from training.settings import Settings

MODEL = "tiny-emoji-eq7mean"
CLASSES = [f"n{number:08d}" for number in range(13)]
NAMES = tuple(open_clip.IMAGENET_CLASSNAMES[:13])
TEMPLATES = ("a photo of a {}.", "art of the {}.")


def small_imagenet() -> None:
    """Thirteen classes and two prompts each in place of ImageNet's, and room for a bad picture among few."""
    templates = {"full": Templates("full", TEMPLATES)}
    read.class_list = lambda name, subset: ClassList(tuple(CLASSES), NAMES)
    evaluation.get_dataset = lambda name: replace(get_dataset(name), templates=templates)
    evaluation.MOST_BAD = 0.2


def spread_model(**arguments: bool) -> torch.nn.Module:
    """The same weights on every rank, such that pictures and captions differ in their features."""
    torch.manual_seed(0)
    model = open_clip.create_model(MODEL, output_dict=True, **arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2 and parameter.requires_grad:
                parameter.normal_(std=0.2)
    return model


def evaluation_of(data: Path, model: torch.nn.Module, world: World, batch_size: int) -> Evaluation:
    settings = Settings(
        model=MODEL, imagenet_val=str(data / "val"), val_data=str(data / "pairs"), batch_size=batch_size, workers=2
    )
    return Evaluation(settings, model, open_clip.get_tokenizer(MODEL), world)


def of_sharded(data: Path, world: World) -> dict[str, float]:
    """Figures of an FSDP model; weights changed in their shards count the next time, and it still trains."""
    model = spread_model(nonscalar_logit_scale=True).train()
    evaluation = evaluation_of(data, model, world, 8)
    parallel(model, Settings(fsdp=True), world)
    own_part = model.text_projection
    figures = evaluation.run(model)
    assert model.text_projection is own_part, "the optimizer's parameters are those of the model again"
    with torch.no_grad():
        own_part.neg_()
    assert evaluation.run(model)["val_loss"] != figures["val_loss"], "measured with parameters gathered before"
    model(torch.randn(2, 3, 48, 48), torch.ones(2, 16, dtype=torch.int64))["image_features"].sum().backward()
    assert model.visual.proj.grad is not None
    return figures


if __name__ == "__main__":
    data, output = map(Path, sys.argv[1:])
    small_imagenet()
    with join() as world:
        model = spread_model()
        results = {str(size): evaluation_of(data, model, world, size).run(model) for size in (8, 64)}
        results["sharded"] = of_sharded(data, world)
        (output / f"{world.rank}.json").write_text(json.dumps(results))
