"""Everything a run is made of, built from its settings in one place: the loop and the dry run start from it."""

from dataclasses import dataclass
from typing import Any

import open_clip
from torch import Tensor, nn

from data_prep.errors import DataError
from training import rng
from training.data.decode import Decode, Normalise
from training.data.loader import Loader, sources_of
from training.distributed import World
from training.evaluation import Evaluation
from training.guard import Guard
from training.loss import build_loss, build_teacher, forward_backward
from training.model import Ema, build, parallel
from training.optimizer import build_optimizer
from training.precision import autocast, precision_of, scaler_of
from training.settings import Settings, SettingsError
from training.state import Parts, Progress


@dataclass
class Setup:
    """A run ready to step. `parts` is what changes, the rest stays as it is."""

    settings: Settings
    world: World
    precision: str
    normalise: Normalise
    replica: nn.Module
    loss: nn.Module
    teacher: nn.Module | None
    evaluation: Evaluation
    parts: Parts

    @property
    def global_batch(self) -> int:
        """Pairs in one optimizer step over all processes."""
        return self.settings.batch_size * self.settings.accum_freq * self.world.size

    @property
    def epoch_samples(self) -> int:
        """Pairs that count as one epoch."""
        return self.settings.train_num_samples or self.parts.loader.samples

    @property
    def epoch_steps(self) -> int:
        """Whole steps in an epoch, at least one."""
        return max(self.epoch_samples // self.global_batch, 1)

    def steps(self, progress: Progress) -> int:
        """Optimizer steps of the whole run. Raises SettingsError where there is none or the schedule has no room."""
        settings = self.settings
        left = int(settings.epochs * self.epoch_samples - progress.samples_seen) // self.global_batch
        total = settings.max_steps or progress.step + max(left, 0)
        if total < 1:
            raise SettingsError(
                f"--epochs {settings.epochs} of {self.epoch_samples:,} samples make no step of {self.global_batch:,}"
            )
        if settings.warmup + settings.cooldown > total:
            raise SettingsError(
                f"warmup and cooldown ({settings.warmup} + {settings.cooldown}) exceed the {total} steps"
            )
        return total

    def next_batches(self) -> tuple[list[tuple[Tensor, Tensor]], list[str]]:
        """Pictures, as decoded, and captions of a step on the device, a pair a pass, and their samples' keys."""
        device, pairs, keys = self.world.device, [], []
        for _ in range(self.settings.accum_freq):
            batch = next(self.parts.loader)
            pairs.append((batch.images.to(device, non_blocking=True), batch.texts.to(device, non_blocking=True)))
            keys += batch.keys
        return pairs, keys

    def forward_backward(self, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Gradients of one step, unscaled, in the parameters; this process's loss."""
        precision, device = self.precision, self.world.device
        loss = forward_backward(
            self.replica,
            self.loss,
            pairs,
            lambda: autocast(precision, device),
            self.parts.scaler,
            self.teacher,
            self.normalise,
        )
        if self.parts.scaler:
            self.parts.scaler.unscale_(self.parts.optimizer)
        return loss


def build_setup(settings: Settings, world: World, data_state: dict[str, Any] | None) -> Setup:
    """Build the run; `data_state` is a checkpoint's position in the data.

    Raises SettingsError where something cannot be built; before the start it is an option that is wrong, the data too.
    """
    try:
        return _built(settings, world, data_state)
    except (DataError, OSError) as error:
        raise SettingsError(str(error)) from error


def _built(settings: Settings, world: World, data_state: dict[str, Any] | None) -> Setup:
    rng.seed_all(settings.seed)
    model = build(settings, world.device)
    preprocess_cfg: dict[str, Any] = model.visual.preprocess_cfg  # type: ignore[union-attr, assignment]
    decode = Decode(settings, preprocess_cfg)
    tokenizer = open_clip.get_tokenizer(settings.model)
    on_gpu = world.device.type == "cuda"
    sources = world.from_first(lambda: sources_of(settings, data_state))
    loader = Loader(settings, decode, tokenizer, world.rank, world.size, data_state, on_gpu, sources)
    evaluation = Evaluation(settings, model, tokenizer, world)
    teacher = build_teacher(settings, model, world) if settings.distill_model else None
    precision = precision_of(settings, world.device)
    replica = parallel(model, settings, world)
    parts = Parts(
        model=model,
        optimizer=build_optimizer(model, settings),
        scaler=scaler_of(precision, world.device),
        ema=Ema(model, settings.ema) if settings.ema else None,
        guard=Guard(),
        loader=loader,
    )
    rng.seed_all(settings.seed + world.rank + 1)  # patch dropout draws differently on every process
    return Setup(
        settings=settings,
        world=world,
        precision=precision,
        normalise=Normalise(preprocess_cfg).to(world.device),
        replica=replica,
        loss=build_loss(settings, world),
        teacher=teacher,
        evaluation=evaluation,
        parts=parts,
    )
