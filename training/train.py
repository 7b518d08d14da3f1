"""The training loop: data, model, loss, step, in the order they happen.

    python -m training --config configs/training/quickstart.toml
    torchrun --nproc-per-node 8 -m training --config FILE.toml --train-data MANIFEST --output DIR --name NAME

In DIR/NAME: settings.json (the resolved run), metrics.jsonl (a row a step), events.jsonl (what happened beside it),
checkpoints/ (training/checkpoint.py), and at the end train.json (what the run was and took) and checkpoint.pt, the
weights alone, which `open_clip.create_model(name, pretrained="checkpoint.pt")` loads.
"""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data_prep.errors import DataError
from evaluate.result import versions
from training import checkpoint, folder
from training.distributed import World
from training.log import RunLog
from training.measure import Meter, distances, macs_of, number, snapshot
from training.schedule import learning_rate
from training.settings import Settings, SettingsError
from training.setup import Setup, build_setup
from training.signals import StopRequest
from training.state import (
    Progress,
    capture,
    differences,
    restore_generators,
    restore_training,
    whole_weights,
)

MOST_ROLLBACKS = 3  # to one checkpoint: a fourth would end as these did


class TrainingError(RuntimeError):
    """A run that cannot go on; the message says where it stood and what to change."""


def train(settings: Settings, world: World, command: str, stop: StopRequest) -> bool:
    """Run to the end and write the results, or to a checkpoint where a signal asks to stop.

    Returns:
        Whether the run is finished.

    Raises:
        SettingsError, DataError, CheckpointError: the run cannot start, or its data or its disk fails.
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
    try:
        setup = build_setup(settings, world, saved["data"] if saved else None)
    except DataError as error:
        raise SettingsError(str(error)) from error  # before the start it is an option that is wrong
    parts, progress = setup.parts, Progress()
    if saved:
        restore_training(saved, parts, progress, settings)
        restore_generators(saved, world)
        del saved
    total = setup.steps(progress)
    facts = {"model": settings.model, "epochs": settings.epochs, "precision": setup.precision}
    facts |= {"world_size": world.size, "command": command, "versions": versions()}
    log = writer = None
    if world.is_first:
        folder.check_room(run, parts, settings)
        log, writer = RunLog(run, settings), checkpoint.Writer(run / folder.CHECKPOINTS, settings.keep)
        log.start(asdict(settings) | facts, headline(setup, total), progress.step, total)
        for note in ([f"resumed from {path}"] if path else []) + notes + parts.loader.notes:
            log.event(progress.step, "start", note)

    # --- steps ----------------------------------------------------------------------------------------------------
    model, optimizer, guard = parts.model, parts.optimizer, parts.guard
    model.train()
    meter = Meter(world, setup.global_batch, sum(macs_of(settings).values()), setup.precision)
    rollbacks: dict[int, int] = {}
    last_save, stopping = time.monotonic(), False
    while progress.step < total and not stopping:
        meter.start()
        lr = learning_rate(progress.step, settings, total)
        for group in optimizer.param_groups:
            group["lr"] = lr
        pairs, keys = setup.next_batches()
        meter.data_is_there()

        own_loss = setup.forward_backward(pairs)
        norm = number(nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip_norm or math.inf))

        # What one process meets or is asked, all do: skip the step, write a checkpoint, stop.
        is_bad = not (math.isfinite(norm) and math.isfinite(own_loss.item()))
        is_due = world.is_first and 0 < 60 * settings.save_every_minutes < time.monotonic() - last_save
        sums = world.sums(own_loss, is_bad, bool(stop.name), is_due, parts.loader.bad_samples)
        loss, bad, stopping, due = sums[0] / world.size, sums[1] > 0, sums[2] > 0, sums[3] > 0
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
            if parts.scaler:
                parts.scaler.update()
        else:
            update(setup)
        optimizer.zero_grad()
        if before is not None:
            row |= distances(model, before)
            del before
        row["logit_scale"] = number(parts.logit_scale.detach().exp())
        row |= meter.stop() | {"skipped_steps": guard.skipped, "bad_samples": int(sums[4])}
        if settings.unique_key:
            row["left_out_samples"] = parts.loader.left_out
        progress.seconds += row["step_seconds"]
        row["seconds"] = progress.seconds
        if setup.evaluation.due(progress.step, setup.epoch_steps, last=progress.step == total):
            row |= setup.evaluation.run(model)
        if log:
            log.step(row)

        # --- what the step's outcome asks for -----------------------------------------------------------------
        if bad:
            everyones = [key for own in world.gathered(keys) for key in own]
            if log:
                text = f"skipped: the loss is {loss} and the gradient's norm {norm}"
                log.event(progress.step, "skipped", text, keys=everyones)
            if guard.in_a_row > settings.max_bad_steps:
                raise TrainingError(
                    f"step {progress.step}: {guard.in_a_row} steps in a row had a loss or gradient that is no number "
                    f"(the last loss {loss}, norm {norm}). Earlier checkpoints are kept in {run / folder.CHECKPOINTS}. "
                    "Lower lr, lengthen warmup, or set grad_clip_norm"
                )
        elif guard.is_spike(loss):
            if log:
                log.event(progress.step, "spike", f"the loss {loss:.4g} is far above those before it", keys=keys)
            if settings.spike_rollback:
                if writer:
                    writer.wait()
                roll_back(run, setup, progress, rollbacks)
                if log:
                    log.rewind(progress.step)
                    log.event(progress.step, "rollback", "back at this step's checkpoint, on with the next data")
                continue
        every = settings.save_every_steps
        if due or stopping or progress.step == total or (every and progress.step % every == 0):
            state = capture(parts, progress, settings, world)
            last_save = time.monotonic()
            if log and writer:
                log.sync()
                log.bad_samples(progress.step, state["data"]["bad"])
                writer.save(progress.step, state)
            del state

    parts.loader.close()

    # --- results --------------------------------------------------------------------------------------------------
    finished = progress.step >= total
    weights = whole_weights(model, settings) if finished else {}
    averages = parts.ema.state_dict() if finished and parts.ema else {}
    if log and writer:
        writer.wait()
        if finished:
            folder.write_results(run, parts, progress, weights, averages, settings, facts)
            log.say(f"trained {progress.step} steps in {progress.seconds / 60:.1f} minutes: {run / folder.WEIGHTS}")
        else:
            log.event(progress.step, "stopped", f"stopped by {stop.name or 'a signal'}; --resume auto continues")
        log.close()
    world.from_first(lambda: None)  # a process that ended before the first has written would have torchrun kill it
    return finished


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


def roll_back(run: Path, setup: Setup, progress: Progress, rollbacks: dict[int, int]) -> None:
    """Put the training where the newest checkpoint has it; the data goes on after the spike.

    Raises TrainingError where there is no checkpoint, or the same one was gone back to too often.
    """
    path = setup.world.from_first(lambda: checkpoint.newest(run / folder.CHECKPOINTS, print))
    if path is None:
        raise TrainingError(f"step {progress.step}: a loss spike, and no checkpoint to go back to; save more often")
    spiked = progress.step
    restore_training(checkpoint.load(path), setup.parts, progress, setup.settings)
    rollbacks[progress.step] = rollbacks.get(progress.step, 0) + 1
    if rollbacks[progress.step] > MOST_ROLLBACKS:
        raise TrainingError(
            f"step {spiked}: another loss spike after {MOST_ROLLBACKS} rollbacks to step {progress.step}; lower lr or "
            "set grad_clip_norm"
        )
