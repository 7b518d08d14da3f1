"""The training loop: data, model, loss, step, in the order they happen.

    python -m training --config configs/training/quickstart.toml

Written beside the weights in the output folder: settings.json (the resolved run), metrics.jsonl (a line every few
steps), train.json (what the run was and took) and checkpoint.pt, which
`open_clip.create_model(name, pretrained="checkpoint.pt")` loads.
"""

import io
import json
import math
import shutil
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import open_clip
import timm.optim
import torch
from open_clip.loss import ClipLoss
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from data_prep import atomic
from evaluate.result import versions
from training.data import ShardBatches, load
from training.distributed import World
from training.log import RunLog
from training.settings import Settings, SettingsError


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says where it stood and what to change."""


def computes_in_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products are a hardware instruction there rather than an emulation."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capability = torch.backends.cpu.get_cpu_capability()
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()) and "AVX512" in capability


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The mixed-precision context of a run; `auto` is resolved by `precision_of` before."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "amp_bf16" else nullcontext()


def precision_of(settings: Settings, device: torch.device) -> str:
    if settings.precision != "auto":
        return settings.precision
    return "amp_bf16" if computes_in_bf16(device) else "fp32"


def learning_rate(step: int, settings: Settings) -> float:
    """OpenCLIP's cosine schedule: linear warm-up to `lr`, then half a cosine that would reach 0 after the last step."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(model: nn.Module, wd: float) -> list[dict[str, Any]]:
    """OpenCLIP's two groups: no weight decay for vectors, norms, biases and the logit scale."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        exempt = parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))
        (free if exempt else decayed).append(parameter)
    return [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": wd}]


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """AdamW, or one of timm's by name, over OpenCLIP's two groups. Raises SettingsError where it cannot be built."""
    groups = parameter_groups(model, settings.wd)
    betas = (settings.beta1, settings.beta2)
    if settings.opt == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)
    name = settings.opt.removeprefix("timm/")
    info = timm.optim.get_optimizer_info(name)
    kwargs: dict[str, Any] = {"betas": betas} if info.has_betas and info.num_betas == 2 else {}
    if info.has_eps:
        kwargs["eps"] = settings.eps
    try:
        return timm.optim.create_optimizer_v2(groups, name, lr=settings.lr, weight_decay=settings.wd, **kwargs)
    except Exception as error:  # each optimizer has its own needs: a GPU, a package
        raise SettingsError(f"--opt {settings.opt} cannot be used here: {error or type(error).__name__}") from error


def train(settings: Settings, world: World, command: str) -> None:
    """Run to the end and write the results.

    Raises:
        SettingsError, DataError: before any work, where the run cannot start.
        TrainingError: the loss stopped being a number.
    """
    output = Path(settings.output)
    if (output / "checkpoint.pt").exists():
        raise SettingsError(f"{output} holds a finished run; choose another --output or remove it")

    # --- data and model -------------------------------------------------------------------------------------------
    torch.manual_seed(settings.seed)
    model, preprocess, _ = open_clip.create_model_and_transforms(
        settings.model, device=world.device, aug_cfg=settings.aug_cfg, output_dict=True
    )
    tokenizer = open_clip.get_tokenizer(settings.model)
    dataset = ShardBatches(Path(settings.train_data), settings, preprocess, tokenizer, world.rank, world.size)
    batches = load(dataset, pin_memory=world.device.type == "cuda")
    precision = precision_of(settings, world.device)
    replica: nn.Module = model
    if world.size > 1:
        device_ids = [world.device.index] if world.device.type == "cuda" else None
        replica = DistributedDataParallel(model, device_ids=device_ids)
    optimizer = build_optimizer(model, settings)
    # Gathering with gradients is the only form whose gradients equal those of one process on the joint batch.
    loss_of = ClipLoss(gather_with_grad=True, rank=world.rank, world_size=world.size)
    log = RunLog(output, settings.steps) if world.is_first else None
    parameters = sum(p.numel() for p in model.parameters())
    facts = {"precision": precision, "world_size": world.size, "command": command, "versions": versions()}
    if log:
        check_room(output, model)
        log.start(
            asdict(settings) | facts,
            f"{settings.model}: {parameters:,} parameters, {dataset.samples:,} samples in {len(dataset.entries)} "
            f"shards, {settings.steps} steps of {settings.batch_size} x {world.size}, {precision} on {world.device}",
        )

    # --- steps ----------------------------------------------------------------------------------------------------
    model.train()
    samples_seen, started = 0, time.monotonic()
    for step in range(settings.steps):
        lr = learning_rate(step, settings)
        for group in optimizer.param_groups:
            group["lr"] = lr
        images, texts = (part.to(world.device, non_blocking=True) for part in next(batches))

        with autocast(precision, world.device):
            loss = loss_of(**replica(images, texts))
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip_norm or math.inf)
        if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
            raise TrainingError(
                f"step {step + 1}: the loss is {loss.item()} and the gradient's norm {norm.item()}; nothing was saved. "
                "Lower lr, lengthen warmup, or set grad_clip_norm"
            )
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))  # OpenCLIP's bound on the temperature

        samples_seen += len(images) * world.size
        if log:
            seconds = time.monotonic() - started
            row = {
                "step": step + 1,
                "samples": samples_seen,
                "loss": loss.item(),
                "lr": lr,
                "logit_scale": model.logit_scale.exp().item(),
                "grad_norm": norm.item(),
                "images_per_s": samples_seen / seconds,
                "seconds": seconds,
            }
            log.step(row, write=step % settings.log_every_n_steps == 0 or step == settings.steps - 1)

    # --- results --------------------------------------------------------------------------------------------------
    if log:
        log.close()
        summary = {
            "model": settings.model,
            "steps": settings.steps,
            "train_minutes": row["seconds"] / 60,
            "images_per_s": row["images_per_s"],
            "parameters": parameters,
            "samples_seen": samples_seen,
            "final_loss": row["loss"],
        }
        # The summary goes first: a checkpoint is what marks a run as finished.
        atomic.write_text(output / "train.json", json.dumps(summary | facts, indent=2) + "\n")
        save_checkpoint(output / "checkpoint.pt", model, settings)
        print(f"trained {settings.steps} steps in {row['seconds'] / 60:.1f} minutes: {output / 'checkpoint.pt'}")


def check_room(output: Path, model: nn.Module) -> None:
    """Raise SettingsError where the folder `output` could not hold the checkpoint at the end of the run."""
    needed = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    free = shutil.disk_usage(output).free
    if free < 1.1 * needed:
        raise SettingsError(f"--output {output}: a checkpoint takes {needed:,} bytes and {free:,} are free; make room")


def save_checkpoint(path: Path, model: nn.Module, settings: Settings) -> None:
    """Write OpenCLIP's training-checkpoint form in one step: the file is whole or not there."""
    buffer = io.BytesIO()
    torch.save({"name": settings.model, "step": settings.steps, "state_dict": model.state_dict()}, buffer)
    atomic.write_bytes(path, buffer.getvalue())
