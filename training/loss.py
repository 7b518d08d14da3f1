"""The losses, and one step's gradients: OpenCLIP's CLIP, SigLIP and distillation loss over one or several batches.

Contrastive accumulation (`accum_freq` batches make a step) is the two-pass form of GradCache (Gao et al. 2021,
arXiv:2101.06983): features of all batches without gradients; the loss of all of them together, once, down to its
gradients with respect to features, logit scale and bias; then each batch again, with those gradients carried back.
The gradients are the full batch's for every parameter. OpenCLIP's own form computes the loss once a batch instead,
which is accum_freq times the work and makes the gradients of logit scale and bias accum_freq times too large.
Cost: one more forward pass than the same batches one by one; memory of one batch's activations, all features,
all pictures as they were decoded (bytes), and the logits of the whole batch, which grow with its square.

The towers compute under autocast, the losses in float32 (float64 stays): near the logit scale's bound of 100 a
bfloat16 logit would be rounded to steps of 0.5.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.loss import ClipLoss, DistillClipLoss, SigLipLoss
from open_clip.transformer import to_2tuple
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from open_clip_linear.convert.weights import WeightsError, load_weights
from training import rng
from training.distributed import World
from training.settings import Settings, SettingsError

Batch = tuple[Tensor, Tensor]  # images (B, 3, H, W) and tokens (B, L)
_INPUTS: dict[str, Callable[[Any], Any]] = {  # what teacher and student must have in common
    "image size": lambda model: to_2tuple(model.visual.image_size),
    "pixel mean": lambda model: tuple(model.visual.preprocess_cfg["mean"]),
    "pixel deviation": lambda model: tuple(model.visual.preprocess_cfg["std"]),
    "context length": lambda model: model.context_length,
    "vocabulary size": lambda model: model.vocab_size,
}

Outputs = dict[str, Tensor]  # image_features and text_features (B, D), normalised; logit_scale, where there logit_bias
Autocast = Callable[[], AbstractContextManager[Any]]
Prepare = Callable[[Tensor], Tensor]


def build_loss(settings: Settings, world: World) -> nn.Module:
    """OpenCLIP's loss for these settings: SigLipLoss, DistillClipLoss or ClipLoss.

    Its value is this process's; the mean over the processes is the joint batch's. DistributedDataParallel and FSDP2
    take the mean of the gradients likewise. Warns, on the first process, where these are not the joint batch's.
    """
    if settings.siglip:
        return SigLipLoss(rank=world.rank, world_size=world.size)
    if world.size > 1 and world.is_first and not settings.gather_with_grad:
        effect = (
            "another direction than the joint batch's: other processes' rows of the logits are left out"
            if settings.local_loss
            else f"1/{world.size} of the joint batch's, while the logit scale's are whole"
        )
        warnings.warn(f"without --gather-with-grad the towers' gradients are {effect}", stacklevel=2)
    kind = DistillClipLoss if settings.distill_model else ClipLoss
    return kind(
        local_loss=settings.local_loss,
        gather_with_grad=settings.gather_with_grad,
        rank=world.rank,
        world_size=world.size,
    )


def build_teacher(settings: Settings, model: nn.Module, world: World) -> nn.Module:
    """The frozen teacher of `settings.distill_model`, for the student `model`; it sees the student's batches.

    Its embedding may have another size, as the loss compares logits. It is whole on every process, and every process
    must call it. The first one builds it before the others, so that weights to be downloaded are there for them.

    Raises:
        SettingsError: it cannot be built or loaded, or would not read the student's pictures and tokens as its own.
    """
    name = settings.distill_model
    if getattr(model, "logit_bias", None) is not None:
        raise SettingsError(
            f"--distill-model cannot teach {settings.model}: OpenCLIP's distillation loss has no logit bias"
        )
    built: list[nn.Module] = []
    world.from_first(lambda: built.append(_load_teacher(settings, world.device)))
    teacher = built[0] if built else _load_teacher(settings, world.device)
    for what, read in _INPUTS.items():
        if read(teacher) != read(model):
            raise SettingsError(
                f"--distill-model {name} has the {what} {read(teacher)} and the student {read(model)}; both see the "
                "same batches, so take a teacher with the student's"
            )
    return teacher.eval().requires_grad_(False)


def _load_teacher(settings: Settings, device: torch.device) -> nn.Module:
    name = settings.distill_model
    try:
        return open_clip.create_model(
            name, pretrained=settings.distill_pretrained, device=device, output_dict=True, require_pretrained=True
        )
    except Exception as error:  # OpenCLIP, torch and safetensors raise every kind for files that do not fit
        reason = _no_weights(Path(settings.distill_pretrained)) or str(error) or type(error).__name__
        raise SettingsError(
            f"--distill-model {name} with --distill-pretrained {settings.distill_pretrained}: "
            f"{' '.join(reason.split())[:600]}"
        ) from error


def _no_weights(path: Path) -> str:
    """Why a file holds no weights; empty where it does, or where there is no such file."""
    try:
        if path.is_file():
            load_weights(path)
    except WeightsError as error:
        return str(error)
    return ""


def forward_backward(
    replica: nn.Module,
    loss: nn.Module,
    batches: Sequence[Batch],
    autocast: Autocast,
    scaler: torch.amp.GradScaler | None = None,
    teacher: nn.Module | None = None,
    prepare: Prepare = nn.Identity(),  # noqa: B008  (it holds nothing)
) -> Tensor:
    """Add the gradients of the loss of all `batches` as one to the parameters' `.grad`.

    Random draws (patch dropout) are the same in both passes, and the generators end as after one forward pass a batch.

    Args:
        replica: the model, alone or as `training.model.parallel` gives it; returns a dict (output_dict).
        loss: of `build_loss`.
        batches: on the device, equally many and equally large ones on every process.
        autocast: makes the context the towers compute in.
        scaler: scales the loss, and so the gradients, for float16.
        teacher: of `build_teacher`, where the loss is DistillClipLoss.
        prepare: from the pictures of a batch, bytes perhaps, to what the towers take; called before each pass.

    Returns:
        This process's loss, unscaled: float32 (float64 for a float64 model), no dimensions, detached.
    """
    if len(batches) == 1:
        with autocast():
            outputs = replica(prepare(batches[0][0]), batches[0][1])
        value = _value(loss, outputs, _taught(teacher, batches, autocast, prepare))
        _scaled(value, scaler).backward()
        return value.detach()

    device, states, parts = batches[0][0].device, [], []
    for batch in batches:
        states.append(rng.capture(device))
        with torch.no_grad(), autocast():
            parts.append(replica(prepare(batch[0]), batch[1]))
    leaves = {key: tensor.requires_grad_() for key, tensor in _joined(parts).items()}
    value = _value(loss, leaves, _taught(teacher, batches, autocast, prepare))
    _scaled(value, scaler).backward()

    for number, (batch, state) in enumerate(zip(batches, states, strict=True)):
        is_last = number == len(batches) - 1
        rng.restore(state, device)
        with nullcontext() if is_last else _without_all_reduce(replica):
            with autocast():
                outputs = replica(prepare(batch[0]), batch[1])
            gradients = _shares(leaves, number, len(batches))
            # The scale and the bias take part once: DistributedDataParallel waits for them in the last batch.
            keys = [key for key in gradients if outputs[key].requires_grad and (is_last or key.endswith("_features"))]
            torch.autograd.backward([outputs[key] for key in keys], [gradients[key] for key in keys])
    return value.detach()


def _value(loss: nn.Module, outputs: Mapping[str, Tensor], taught: Mapping[str, Tensor]) -> Tensor:
    """The loss, without dimensions, in float32 or wider."""
    wide = {key: t.to(torch.promote_types(t.dtype, torch.float32)) for key, t in {**outputs, **taught}.items()}
    return torch.stack(list(loss(**wide, output_dict=True).values())).sum()


def _taught(teacher: nn.Module | None, batches: Sequence[Batch], autocast: Autocast, prepare: Prepare) -> Outputs:
    """The teacher's features and scale under the names that DistillClipLoss takes; empty without a teacher."""
    if teacher is None:
        return {}
    with torch.no_grad(), autocast():
        outputs = _joined([teacher(prepare(images), texts) for images, texts in batches])
    # A teacher's bias moves all of its logits alike, which softmax does not see: the loss has no place for it.
    return {f"dist_{key}": outputs[key] for key in ("image_features", "text_features", "logit_scale")}


def _joined(parts: Sequence[Outputs]) -> Outputs:
    """The outputs of several batches as those of one, detached."""
    return {
        key: torch.cat([part[key] for part in parts]) if key.endswith("_features") else parts[0][key].detach().clone()
        for key in parts[0]
    }


def _shares(leaves: Outputs, number: int, batches: int) -> Outputs:
    """The gradients of the leaves that belong to one batch; leaves the loss does not depend on have none."""
    return {
        key: leaf.grad.chunk(batches)[number] if key.endswith("_features") else leaf.grad
        for key, leaf in leaves.items()
        if leaf.grad is not None
    }


def _scaled(value: Tensor, scaler: torch.amp.GradScaler | None) -> Tensor:
    return scaler.scale(value) if scaler else value


def _without_all_reduce(replica: nn.Module) -> AbstractContextManager[Any]:
    """Gradients stay on this process until the last batch. FSDP2 sends them each time: whole ones need the memory."""
    return replica.no_sync() if isinstance(replica, DistributedDataParallel) else nullcontext()
