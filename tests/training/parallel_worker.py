"""One of two processes of test_parallel.py: `torchrun parallel_worker.py FOLDER`.

Gradients and other results of each case go to FOLDER/results.pt, by the first process, as whole float64 tensors.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import tiny_clip
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from open_clip_linear import add_model_configs
from training.distributed import join
from training.loss import build_loss, build_teacher, forward_backward
from training.model import Ema, build, parallel
from training.optimizer import build_optimizer
from training.settings import Settings, SettingsError

CASES = {  # name: kind of loss, batches a step, settings
    "clip": ("clip", 1, {}),
    "clip, local loss": ("clip", 1, {"local_loss": True}),
    "clip, 2 batches": ("clip", 2, {}),
    "clip, local loss, 2 batches": ("clip", 2, {"local_loss": True}),
    "clip, checkpointing, 2 batches": ("clip", 2, {"grad_checkpointing": True}),
    "clip, image tower locked, 2 batches": ("clip", 2, {"lock_image": True}),
    "siglip": ("siglip", 1, {}),
    "siglip, 2 batches": ("siglip", 2, {}),
    "distill, 2 batches": ("distill", 2, {}),
}
PAIRS = 8  # of the joint batch


def settings_of(kind, folder, **kwargs):
    settings = Settings(model="grad-eq7", siglip=kind == "siglip", **kwargs)
    if kind == "distill":
        settings.distill_model, settings.distill_pretrained = "grad-teacher", str(folder / "teacher.pt")
    return settings


def whole(tensor):
    """A tensor, sharded or not, as a whole plain one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def share(world, batches):
    """This process's part of the joint batch, in so many batches."""
    images, texts = (side.chunk(world.size)[world.rank].chunk(batches) for side in tiny_clip.batch(PAIRS))
    return list(zip(images, texts, strict=True))


def step(world, folder, kind, batches, settings):
    """Model and gradients after one step's forward and backward pass on the joint batch."""
    torch.manual_seed(0)
    model = build(settings, world.device).double()
    teacher = build_teacher(settings, model, world).double() if kind == "distill" else None
    replica = parallel(model, settings, world)
    loss = build_loss(settings, world)
    value = forward_backward(replica, loss, share(world, batches), nullcontext, teacher=teacher)
    gradients = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return model, gradients, float(world.rows(value).mean())


def trained(world, folder):
    """Sharded: the weights and their average after a clipped step, features, and the average after a round trip."""
    settings = settings_of("clip", folder, fsdp=True, lr=1e-2)
    model, _, _ = step(world, folder, "clip", 1, settings)
    ema, optimizer = Ema(model, 0.75), build_optimizer(model, settings)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    ema.update(model)
    average = ema.state_dict()
    again = Ema(model, 0.75)
    again.load_state_dict(average)
    images, texts = tiny_clip.batch(4, seed=1)
    with torch.no_grad():
        features = [model.encode_image(images), model.encode_text(texts)]
    weights = {name: whole(p) for name, p in model.named_parameters()}
    return {
        "weights": weights,
        "average": average,
        "again": again.state_dict(),
        "features": features,
        "norm": whole(norm),
    }


def refusal(world, folder, opt):
    """What is said of an optimizer that does not work on sharded parameters."""
    settings = settings_of("clip", folder, fsdp=True, opt=opt)
    try:
        build_optimizer(parallel(build(settings, world.device), settings, world), settings)
    except SettingsError as error:
        return str(error)
    return "accepted"


def overflow(world, folder):
    """Scale and weights after a sharded gradient overflowed on one process alone: all skip the step."""
    settings = settings_of("clip", folder, fsdp=True)
    model, _, _ = step(world, folder, "clip", 1, settings)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=8.0), build_optimizer(model, settings)
    scaler.scale(torch.zeros(()))
    before = whole(model.text_projection)
    if world.rank == 1:
        model.text_projection.grad.to_local().fill_(torch.inf)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), torch.equal(before, whole(model.text_projection))


def main(folder):
    add_model_configs(folder / "configs")  # as the test wrote them
    results = {}
    with join() as world:
        for name, (kind, batches, kwargs) in CASES.items():
            for fsdp in (False, True):
                settings = settings_of(kind, folder, fsdp=fsdp, **kwargs)
                results[name, fsdp] = step(world, folder, kind, batches, settings)[1:]
        results["trained"] = trained(world, folder)
        results["refusals"] = {opt: refusal(world, folder, opt) for opt in ("timm/nmuon", "timm/cadamw")}
        everyones = world.gathered(overflow(world, folder))
        if world.is_first:
            torch.save(results | {"overflow": everyones}, folder / "results.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
