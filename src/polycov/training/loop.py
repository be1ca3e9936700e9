"""The training loop, on accelerate. Trainers of other libraries do not resume in the middle of an epoch bit for bit."""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn import functional

from polycov.data.images import Split
from polycov.data.loading import Batch, epoch_order, seed_from
from polycov.errors import NonFiniteError, PolycovError
from polycov.models.model import Model
from polycov.progress import SILENT, Progress, Task
from polycov.system.signals import uninterrupted
from polycov.training.batch_norm import SynchronizedBatchNorm
from polycov.training.batches import BatchSource, Index
from polycov.training.config import TrainOptions
from polycov.training.optimizer import learning_rate_factor, make_optimizer
from polycov.training.predictions import Predictions, predict_split
from polycov.training.run_folder import RunFolder


class Trainer:
    """Trains a model; everything it needs to resume after a kill is in the folder of the run.

    Nothing random depends on what happened before: weights, order, augmentation and dropout come from the seed, the
    epoch and the step. So a run that was stopped and resumed equals one that was not.

    Args:
        model: model to train.
        network: what batches go through: the model itself, or the layers on top of its backbone.
        source: where batches come from.
        options: options of the training.
        folder: folder of the run.
        accelerator: accelerator of the processes.
        progress: receives steps and epochs.
    """

    def __init__(
        self,
        model: Model,
        network: nn.Module,
        source: BatchSource,
        options: TrainOptions,
        folder: RunFolder,
        accelerator: Accelerator,
        progress: Progress = SILENT,
    ) -> None:
        self.model, self.source, self.options, self.folder = model, source, options, folder
        self.accelerator, self.progress = accelerator, progress
        self.samples = source.data["train"]
        parts, world = options.accumulate, accelerator.num_processes
        self.batch_size = min(options.batch_size, len(self.samples) // (parts * world) * parts * world)
        if not self.batch_size or self.batch_size % (parts * world):
            raise PolycovError(
                f"Expected batch_size to be a multiple of {world} processes × {parts} parts, got {options.batch_size} "
                f"for {len(self.samples)} training images."
            )
        # A batch that is not finite is found by its loss, in all processes at once, and named.
        model.pool.check_finite = False
        self.raw_network = network.to(accelerator.device)
        self.optimizer = make_optimizer(model, options)
        self.network, self.wrapped_optimizer = accelerator.prepare(network, self.optimizer)
        self.state: dict[str, Any] = {"epoch": 0, "step": 0, "sums": [0.0, 0.0, 0.0], "best": None, "seconds": 0.0}
        self.steps = len(self.samples) // self.batch_size
        self.last_save = time.monotonic()
        self._buffers: list[tuple[Tensor, Tensor]] = []  # within a step: buffers, and their values before it

    def resume(self) -> None:
        """Returns to the last checkpoint, if there is one, and drops metrics recorded after it."""
        if self.folder.has_checkpoint:
            self.state = self.folder.load_checkpoint(self.model, self.optimizer)
            if self.accelerator.scaler is not None and self.state.get("scaler"):
                self.accelerator.scaler.load_state_dict(self.state["scaler"])
        if self.accelerator.is_main_process:
            self.folder.keep_metrics(up_to_epoch=self.state["epoch"])
        self.accelerator.wait_for_everyone()

    def train(self) -> None:
        """Trains to the end, and leaves the weights to keep in the model.

        An interruption saves a checkpoint of the last complete step.

        Raises:
            NonFiniteError: if a loss or a gradient is not finite; the last checkpoint is from before.
        """
        options = self.options
        writer = self.folder.tensorboard() if self.accelerator.is_main_process else None
        total = options.epochs * self.steps
        with self.progress.task("training", total) as task, torch.random.fork_rng(self._cuda_devices()):
            while self.state["epoch"] < options.epochs:
                row = self._epoch(task)
                if writer is not None:
                    for name, value in row.items():
                        if value is not None and name not in ("epoch", "processes"):
                            writer.add_scalar(name, value, row["epoch"])
        if writer is not None:
            writer.close()
        self.accelerator.wait_for_everyone()  # until the main process has written the best weights
        best = self.state["best"]
        if best is not None and options.keep == "best":
            self.folder.load_best(self.model)
            self.progress.message(f"kept: epoch {best['epoch']}, the best on validation ({best['val_accuracy']:.1%})")
        self.model.pool.check_finite = True

    def _cuda_devices(self) -> list[int]:
        return [self.accelerator.device.index or 0] if self.accelerator.device.type == "cuda" else []

    def _epoch(self, task: Task) -> dict[str, Any]:
        """Trains for an epoch, or what is left of it; an interruption is saved before it goes on."""
        try:
            self._train_epoch(task)
            return self._finish_epoch()
        except KeyboardInterrupt:
            with uninterrupted(), torch.no_grad():
                for buffer, before in self._buffers:
                    buffer.copy_(before)
                self._save()
            raise

    def _train_epoch(self, task: Task) -> None:
        epoch, done = self.state["epoch"], self.state["step"]
        order = epoch_order(len(self.samples), self.batch_size, self.options.seed, epoch)
        batches = self.source.batches("train", list(self._shares(order[done:], epoch)))
        self.network.train()
        for step in range(done, len(order)):
            seconds = self._step(batches, epoch * self.steps + step, order[step])
            loss, _, count = self.state["sums"]
            status = f"epoch {epoch + 1}/{self.options.epochs}, loss {loss / count:.3f}"
            task.update(epoch * self.steps + step + 1, f"{status}, {self.batch_size / seconds:.0f} images/s")
            if time.monotonic() - self.last_save > 60 * self.options.checkpoint_minutes and step + 1 < len(order):
                self._save()

    def _shares(self, order: list[list[int]], epoch: int) -> Iterator[list[Index]]:
        """This process's share of each part of each batch, with the seeds of the augmentation."""
        world, rank, parts = self.accelerator.num_processes, self.accelerator.process_index, self.options.accumulate
        for batch in order:
            for part in range(parts):
                mine = batch[part::parts][rank::world]
                yield [(i, seed_from(self.options.seed, "augment", epoch, i)) for i in mine]

    def _step(self, batches: Iterator[Batch], step: int, indices: list[int]) -> float:
        """One step of the optimiser on a batch, which comes in parts; returns its seconds."""
        start = time.monotonic()
        self._buffers = [(buffer, buffer.clone()) for buffer in self.raw_network.buffers()]
        options = self.options
        torch.manual_seed(seed_from(options.seed, "step", step, self.accelerator.process_index))
        for group in self.optimizer.param_groups:
            group["lr"] = group["full_lr"] * learning_rate_factor(options, step / self.steps)
        sums = torch.zeros(3, dtype=torch.float64)
        for part in range(options.accumulate):
            sums += self._backward(next(batches), step, len(indices), last=part == options.accumulate - 1)
        norm = self.accelerator.clip_grad_norm_(self.raw_network.parameters(), options.clip or math.inf)
        if self.accelerator.scaler is None and norm is not None and not math.isfinite(norm):
            self._stop(f"The gradient of step {step + 1} is not finite", [self.samples.name(i) for i in indices])
        total = self.accelerator.reduce(sums.to(self.accelerator.device).float(), "sum").double().cpu()
        with uninterrupted():  # a step is done as a whole, or not at all
            self.wrapped_optimizer.step()
            self.wrapped_optimizer.zero_grad()
            self._buffers = []
            self.state["sums"] = [a + float(b) for a, b in zip(self.state["sums"], total, strict=True)]
            self.state["step"] += 1
            seconds = time.monotonic() - start
            self.state["seconds"] += seconds
        return seconds

    def _backward(self, part: Batch, step: int, count: int, *, last: bool) -> Tensor:
        """Adds the gradient of a part of a batch of ``count`` images; returns its loss, correct images and images."""
        x, y = (values.to(self.accelerator.device) for values in part[:2])
        world = self.accelerator.num_processes
        synchronized = SynchronizedBatchNorm() if world > 1 else nullcontext()
        with nullcontext() if last else self.accelerator.no_sync(self.network):
            with self.accelerator.autocast(), synchronized:
                logits = self.network(x)
            losses = functional.cross_entropy(
                logits.float(), y, reduction="none", label_smoothing=self.options.label_smoothing
            )
            self._require_finite(losses, part[2], step)
            # Gradients are averaged over processes, so the mean over the whole batch takes this factor.
            self.accelerator.backward(losses.sum() * (world / count))
        correct = (logits.argmax(1) == y).sum()
        return torch.tensor([losses.detach().sum().item(), correct.item(), len(y)], dtype=torch.float64)

    def _require_finite(self, losses: Tensor, indices: Tensor, step: int) -> None:
        """Stops all processes if the loss of any image in any of them is not finite."""
        bad = ~losses.detach().isfinite()
        if float(self.accelerator.reduce(bad.sum().float(), "sum")) == 0:
            return
        names = [self.samples.name(int(i)) for i in indices[bad.cpu()]]
        names = gather_object(names) if self.accelerator.num_processes > 1 else names
        self._stop(f"The loss of step {step + 1} is not finite", names)

    def _stop(self, problem: str, names: list[str]) -> None:
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        kept = f"The last good checkpoint is in {self.folder.path}. " if self.folder.has_checkpoint else ""
        raise NonFiniteError(
            f"{problem}, for {shown}. {kept}Try a smaller --lr, gradient clipping (--clip) or --warmup."
        )

    def _finish_epoch(self) -> dict[str, Any]:
        """Measures on validation, records it, and saves what a resumed run needs."""
        loss, correct, count = self.state["sums"]
        epoch = self.state["epoch"] + 1
        val = self.predict("val") if len(self.source.data["val"]) else None
        if val is not None and not bool(val.loss.isfinite().all()):
            bad = (~val.loss.isfinite()).nonzero().flatten().tolist()
            names = [self.source.data["val"].name(i) for i in bad]
            self._stop(f"The validation loss after epoch {epoch} is not finite", names)
        row = {
            "epoch": epoch,
            "loss": loss / count,
            "accuracy": correct / count,
            "val_loss": float(val.loss.mean()) if val else None,
            "val_accuracy": val.accuracy if val else None,
            "lr": self.optimizer.param_groups[-1]["lr"],
            "processes": self.accelerator.num_processes,
            "images_per_second": count / max(self.state["seconds"], 1e-9),
        }
        best = self.state["best"]
        improved = val is not None and (best is None or _rank(row) > _rank(best))
        with uninterrupted():
            if improved:
                self.state["best"] = {name: row[name] for name in ("epoch", "val_accuracy", "val_loss")}
            self.state |= {"epoch": epoch, "step": 0, "sums": [0.0, 0.0, 0.0], "seconds": 0.0}
            if self.accelerator.is_main_process:
                self.folder.append_metrics(row)
                if improved:
                    self.folder.save_best(self.model, epoch)
            self._save()
        validation = f", validation {val.accuracy:.1%}" if val else ""
        self.progress.message(
            f"epoch {epoch}/{self.options.epochs}: loss {row['loss']:.3f}, training {row['accuracy']:.1%}{validation}, "
            f"{row['images_per_second']:.0f} images/s"
        )
        return row

    def _save(self) -> None:
        if self.accelerator.scaler is not None:
            self.state["scaler"] = self.accelerator.scaler.state_dict()
        if self.accelerator.is_main_process:
            self.folder.save_checkpoint(self.model, self.optimizer, self.state)
        self.last_save = time.monotonic()

    def predict(self, split: Split) -> Predictions:
        """Returns the predictions of the model as it is for a split."""
        size, mirror = min(self.options.batch_size, 64), self.options.mirror
        return predict_split(self.raw_network, self.source, split, self.accelerator, batch_size=size, mirror=mirror)


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    """What epochs are compared by: accuracy on validation, and between equals the loss."""
    return row["val_accuracy"], -row.get("val_loss", math.inf)
