"""The training loop: data, model, loss, step, in the order they happen.

    python -m training --config configs/training/quickstart.toml
    torchrun --nproc-per-node 8 -m training --config FILE.toml --train-data MANIFEST --output DIR --name NAME

In DIR/NAME: settings.json (the resolved run), metrics.jsonl (a row a step), events.jsonl (what happened beside it),
checkpoints/ (training/checkpoint.py), and at the end train.json (what the run was and took) and checkpoint.pt, the
weights alone, which `open_clip.create_model(name, pretrained="checkpoint.pt")` loads.
"""

import math
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from data_prep.errors import DataError
from evaluate.result import versions
from training import checkpoint, folder
from training.checkpoint import Writer
from training.distributed import World
from training.guard import RunningStatistics
from training.log import RunLog
from training.measure import Meter, distances, gradient_norm, is_finite, number, snapshot
from training.schedule import learning_rate
from training.settings import Settings
from training.setup import Setup, build_setup
from training.signals import StopRequest
from training.state import Progress, capture, differences, restore_generators, restore_training, whole_weights

MOST_ROLLBACKS = 3  # to one checkpoint: a fourth would end as these did


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says where it stood and what to change."""


def train(settings: Settings, world: World, command: str, stop: StopRequest) -> bool:
    """Run to the end and write the results, or to a checkpoint where a signal asks to stop.

    Returns:
        Whether the run is finished.

    Raises:
        SettingsError: the run cannot start.
        DataError, CheckpointError: its data or its disk fails.
        TrainingError: too many steps in a row whose loss or gradient is no number, or rollbacks that do not help.
    """
    run = Path(settings.output) / settings.name
    if settings.resume == "auto" and world.from_first(lambda: folder.is_finished(run, settings)):
        if world.is_first:
            print(f"{run} is finished already: {run / folder.WEIGHTS}")
        return True

    # --- what there is of the run, and its parts ------------------------------------------------------------------
    path, notes = world.from_first(lambda: folder.checkpoint_to_resume(run, settings))
    saved = checkpoint.load(path) if path else None
    notes += differences(saved, settings, world) if saved else []
    setup = build_setup(settings, world, saved["data"] if saved else None)
    progress = Progress()
    if saved:
        restore_training(saved, setup.parts, progress, settings, world)
        restore_generators(saved, world)
        del saved
        notes = [f"resumed from {path}", *notes, *setup.parts.loader.notes]
    total = setup.steps(progress)
    facts = {"model": settings.model, "epochs": settings.epochs, "precision": setup.precision}
    facts |= {"world_size": world.size, "command": command, "versions": versions()}
    records: list[Records] = []  # the first process's own
    world.from_first(lambda: records.append(Records(run, setup, progress, total, facts, notes)))

    # --- steps, and results ---------------------------------------------------------------------------------------
    first = records[0] if records else None
    try:
        take_steps(run, setup, progress, total, stop, first)
        finished = progress.step >= total
        weights = whole_weights(setup.parts.model, settings) if finished else {}
        averages = setup.parts.ema.state_dict() if finished and setup.parts.ema else {}

        def finish() -> None:
            if first:
                first.finish(weights, averages, finished, stop.name or "a signal")

        world.from_first(finish)  # all wait: one that ended earlier would have torchrun end the first in its writing
    except Exception as error:
        if first:
            first.log.event(progress.step, "failed", str(error))
        raise
    finally:
        setup.parts.loader.close()
        if first:
            first.log.close()
    return finished


class Records:
    """What the first process alone keeps: the log, the checkpoints and the results in the folder `run`.

    Raises SettingsError where the folder cannot hold them.
    """

    def __init__(
        self, run: Path, setup: Setup, progress: Progress, total: int, facts: dict[str, Any], notes: list[str]
    ) -> None:
        self.run, self.setup, self.progress, self.facts = run, setup, progress, facts
        settings = setup.settings
        folder.check_room(run, setup.parts, settings)
        self.log = RunLog(run, settings)
        self.writer = Writer(run / folder.CHECKPOINTS, settings.keep)
        self.log.start(asdict(settings) | facts, headline(setup, total), progress.step, total)
        for note in notes:
            self.log.event(progress.step, "start", note)
        self.put_aside()
        if progress.step < total:
            folder.put_results_aside(run)

    def put_aside(self) -> None:
        """Rename checkpoints of later steps: this run goes another way from here."""
        for path in checkpoint.put_aside(self.run / folder.CHECKPOINTS, self.progress.step):
            self.log.event(self.progress.step, "put aside", f"a later checkpoint is put aside as {path}")

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint beside the training."""
        self.log.sync()
        self.log.bad_samples(self.progress.step, state["data"]["bad"])
        self.writer.save(self.progress.step, state)

    def finish(self, weights: dict[str, Any], averages: dict[str, Any], finished: bool, signal: str) -> None:
        """Wait for the last checkpoint; write the results of a finished run, or say what stopped it."""
        self.writer.wait()
        step, minutes = self.progress.step, self.progress.seconds / 60
        if not finished:
            self.log.event(step, "stopped", f"stopped by {signal}; --resume auto continues")
            return
        settings = self.setup.settings
        folder.write_results(self.run, self.setup.parts, self.progress, weights, averages, settings, self.facts)
        self.log.say(f"trained {step} steps in {minutes:.1f} minutes: {self.run / folder.WEIGHTS}")


def take_steps(
    run: Path, setup: Setup, progress: Progress, total: int, stop: StopRequest, first: Records | None
) -> None:
    """Train up to step `total`, or until a signal came on any process and its checkpoint was handed to the writer."""
    settings, world, parts = setup.settings, setup.world, setup.parts
    model, optimizer, guard = parts.model, parts.optimizer, parts.guard
    model.train()
    meter = Meter(setup.settings, model, world, setup.global_batch, setup.precision)
    statistics = RunningStatistics(model)
    rollbacks: Counter[int] = Counter()
    last_save, stopping, is_due = time.monotonic(), False, False
    stop.wait_for_step()
    while progress.step < total and not stopping:
        meter.start()
        lr = learning_rate(progress.step, settings, total)
        for group in optimizer.param_groups:
            group["lr"] = lr
        with first.log.waiting(progress.step) if first else nullcontext():
            pairs, keys = setup.next_batches()
        meter.data_is_there()

        statistics.keep()
        own_loss = setup.forward_backward(pairs)
        norm = gradient_norm(model, settings.grad_clip_norm)

        # What one process meets or is asked, all do: skip the step, write a checkpoint, stop.
        is_bad = not (math.isfinite(norm) and math.isfinite(own_loss.item()))
        # A write that failed counts as a save that is due: there all processes are told of the failure.
        is_late = 0 < 60 * settings.save_every_minutes < time.monotonic() - last_save
        is_late = first is not None and (is_late or first.writer.has_failed)
        everyone = world.rows(own_loss, is_bad, bool(stop.name), is_late, parts.loader.bad_samples, meter.data_wait)
        loss, waited = float(everyone[:, 0].mean()), float(everyone[:, 5].max())
        bad, stopping, late = (bool(everyone[:, column].any()) for column in (1, 2, 3))
        bad_samples = int(everyone[:, 4].sum())
        progress.step += 1
        progress.samples_seen += setup.global_batch
        progress.loss = loss

        row: dict[str, Any] = {
            "step": progress.step,
            "epoch": progress.samples_seen / setup.epoch_samples,
            "samples_seen": progress.samples_seen,
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
        }
        shown = progress.step % settings.log_every_n_steps == 0 or progress.step in (1, total)
        before = snapshot(model) if shown else None
        if bad:
            guard.skip()
            statistics.put_back()
            if parts.scaler:
                parts.scaler.update()  # a smaller scale, as float16 overflowed
        else:
            update(setup)
        optimizer.zero_grad()
        if before is not None:
            row |= distances(model, before)
            del before
        row["logit_scale"] = number(parts.logit_scale.detach().exp())
        row |= meter.stop(waited) | {"skipped_steps": guard.skipped, "bad_samples": bad_samples}
        if settings.unique_key:
            row["left_out_samples"] = parts.loader.left_out
        progress.seconds += row["step_seconds"]
        row["seconds"] = progress.seconds
        last = progress.step == total
        if setup.evaluation.due(progress.step, setup.epoch_steps, last=last) and (last or not stopping):
            found = setup.evaluation.run(model)
            row |= found
            shown = shown or bool(found)
        if first:
            first.log.step(row, shown)

        # --- what the step's outcome asks for ---------------------------------------------------------------------
        if bad_samples > settings.max_bad_samples * max(parts.loader.samples, progress.samples_seen):
            raise DataError(too_many_bad_samples(setup, bad_samples))
        if bad:
            note_skipped(setup, progress, row, keys, first)
            if guard.in_a_row > settings.max_bad_steps:
                raise TrainingError(
                    f"step {progress.step}: {guard.in_a_row} steps in a row had a loss or gradient that is no number "
                    f"(the last loss {loss}, norm {norm}). The last checkpoint of finite weights is kept in "
                    f"{run / folder.CHECKPOINTS}. Lower lr, lengthen warmup, or set grad_clip_norm"
                )
        elif guard.is_spike(loss):
            if first:
                first.log.event(progress.step, "spike", f"the loss {loss:.4g} is far above those before it", keys=keys)
            if settings.spike_rollback and roll_back(run, setup, progress, rollbacks, first):
                continue  # to save here would write the checkpoint that was gone back to over itself
        every = settings.save_every_steps
        is_due = is_due or late or stopping or last or bool(every and progress.step % every == 0)
        if is_due and not world.rows(not is_finite(model)).any():
            save(setup, progress, row["epoch"], first)
            last_save, is_due = time.monotonic(), False
    if is_due and progress.step >= total:
        raise TrainingError(f"step {progress.step}: the weights at the end are no numbers; lower lr or lengthen warmup")


def save(setup: Setup, progress: Progress, epoch: float, first: Records | None) -> None:
    """Hand a checkpoint to the first process's writer; an error there ends all."""
    state = capture(setup.parts, progress, epoch, setup.settings, setup.world)

    def write() -> None:
        if first:
            first.save(state)

    setup.world.from_first(write)


def headline(setup: Setup, total: int) -> str:
    """One line on what will run."""
    settings, world, loader = setup.settings, setup.world, setup.parts.loader
    parameters = sum(p.numel() for p in setup.parts.model.parameters())
    times = f" x {settings.accum_freq}" if settings.accum_freq > 1 else ""
    return (
        f"{settings.model}: {parameters:,} parameters; {loader.description()}; {total:,} steps of "
        f"{settings.batch_size} x {world.size}{times}, {setup.precision} on {world.device}"
    )


def update(setup: Setup) -> None:
    """One optimizer step from the gradients that are there, and what follows the weights."""
    parts = setup.parts
    if parts.scaler:
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
    else:
        parts.optimizer.step()
    with torch.no_grad():
        parts.logit_scale.clamp_(0, math.log(100))  # OpenCLIP's bound on the temperature
    if parts.ema:
        parts.ema.update(parts.model)


def note_skipped(setup: Setup, progress: Progress, row: dict[str, Any], keys: list[str], first: Records | None) -> None:
    """Say that a step was skipped, with the keys of its samples on all processes.

    A finite loss whose scaled gradients overflow is how float16 finds its scale: no samples are to blame for that.
    """
    text = f"skipped: the loss is {row['loss']} and the gradient's norm {row['grad_norm']}"
    if setup.parts.scaler and math.isfinite(row["loss"]):
        if first:
            first.log.event(progress.step, "loss scale", f"{text}; scaled by {setup.parts.scaler.get_scale():g} now")
        return
    everyones = [key for own in setup.world.gathered(keys) for key in own]
    if first:
        first.log.event(progress.step, "skipped", text, keys=everyones)


def too_many_bad_samples(setup: Setup, bad_samples: int) -> str:
    """Why the run ends: the counts of all processes by reason, and the shards with the most."""
    reasons: Counter[str] = Counter()
    shards: Counter[str] = Counter()
    for bad in setup.world.gathered(setup.parts.loader.bad):
        for shard, counts in bad.items():
            reasons.update(counts)
            shards[shard] += sum(counts.values())
    counted = ", ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    named = ", ".join(f"{shard} ({count})" for shard, count in shards.most_common(5))
    return (
        f"{bad_samples} samples cannot be used, more than --max-bad-samples {setup.settings.max_bad_samples} allows: "
        f"{counted}; most in {named}. Make these shards again, or raise the share"
    )


def roll_back(run: Path, setup: Setup, progress: Progress, rollbacks: Counter[int], first: Records | None) -> bool:
    """Put the training where the newest checkpoint has it; the data goes on after the spike.

    Returns whether there was one. Raises TrainingError where the same one was gone back to too often.
    """
    spiked, passed_over = progress.step, list[str]()

    def newest() -> Path | None:
        if first:
            first.writer.wait()
        return checkpoint.newest(run / folder.CHECKPOINTS, passed_over.append)

    path = setup.world.from_first(newest)
    if path is None:
        if first:
            first.log.event(spiked, "no rollback", "there is no checkpoint to go back to yet; on from here")
        return False
    restore_training(checkpoint.load(path), setup.parts, progress, setup.settings, setup.world)
    rollbacks[progress.step] += 1
    if rollbacks[progress.step] > MOST_ROLLBACKS:
        raise TrainingError(
            f"step {spiked}: another loss spike after {MOST_ROLLBACKS} rollbacks to step {progress.step}; lower lr or "
            "set grad_clip_norm"
        )
    if first:
        first.put_aside()
        first.log.rewind(progress.step)
        for text in [*passed_over, f"from {spiked} back to this step's checkpoint, on with the next data"]:
            first.log.event(progress.step, "rollback", text)
    return True
