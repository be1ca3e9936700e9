"""The training loop."""

import importlib
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from polycov.data.loading import epoch_order, number_from
from polycov.errors import NonFiniteError, PolycovError, known
from polycov.models.backbones import import_timm
from polycov.models.model import Model
from polycov.models.weights import load_exactly
from polycov.progress import make_progress
from polycov.system.files import append_json_lines, read_json_lines, write_json_lines
from polycov.training.batch_norm import SynchronizedBatchNorm
from polycov.training.batches import Feed, Number
from polycov.training.checkpoint import load_checkpoint, load_tensors, save_checkpoint, save_tensors
from polycov.training.config import TrainOptions
from polycov.training.scores import Scores, score


def rate(options: TrainOptions, epoch: float) -> float:
    """Returns the factor of the learning rates at a time, in epochs.

    Example:
        >>> rate(TrainOptions(epochs=10), 5)
        0.5
        >>> rate(TrainOptions(schedule="step", milestones=(30, 45)), 50)
        0.01
    """
    if epoch < options.warmup:
        return epoch / options.warmup
    if options.schedule == "step":
        return round(0.1 ** sum(epoch >= milestone for milestone in options.milestones), 12)
    if options.schedule == "cosine":
        share = (epoch - options.warmup) / max(options.epochs - options.warmup, 1e-9)
        return round((1 + math.cos(math.pi * min(share, 1.0))) / 2, 12)
    return 1.0


def make_optimizer(model: Model, options: TrainOptions) -> torch.optim.Optimizer:
    """Returns an optimiser with two rates: of the backbone, and of what is new on top of it.

    Raises:
        PolycovError: if there is no such optimiser.
    """
    import_timm()
    optim = importlib.import_module("timm.optim")
    if options.optimizer not in optim.list_optimizers():
        raise PolycovError(
            f"Unknown optimizer {options.optimizer!r}. {known(options.optimizer, optim.list_optimizers())}"
        )
    new = [model.classifier, model.pool, *([] if model.reduction_has_weights else [model.reduction])]
    own = {id(p) for module in new for p in module.parameters()}
    groups = []
    for fresh, lr in ((False, options.backbone_lr), (True, options.lr)):
        parameters = [p for p in model.parameters() if p.requires_grad and (id(p) in own) == fresh]
        if parameters:
            groups.append({"params": parameters, "lr": lr, "full_lr": lr})
    try:
        made = optim.create_optimizer_v2(
            groups, opt=options.optimizer, lr=options.lr, weight_decay=options.weight_decay, momentum=options.momentum
        )
    except Exception as error:  # some need another package, or a GPU
        raise PolycovError(f"The optimizer {options.optimizer!r} is not to be had here: {error!r}.") from error
    if getattr(made, "is_second_order", False):
        raise PolycovError(f"The optimizer {options.optimizer!r} needs second derivatives, which are not computed.")
    return made


class Trainer:
    """Trains a model on batches of a feed; all it needs to go on after a kill is in the folder of the run.

    Nothing random depends on what happened before: weights, order, augmentation and dropout come from the seed, the
    epoch and the step. So a run that was stopped and resumed is the run that was not.

    Args:
        model: to train.
        network: what the feed's batches go through: the model itself, or its head.
        feed: of batches.
        options: of the training.
        folder: of the run.
        accelerator: of the processes.
        console: to show progress on.
    """

    def __init__(
        self,
        model: Model,
        network: nn.Module,
        feed: Feed,
        options: TrainOptions,
        folder: Path,
        accelerator: Accelerator,
        console: Console,
    ) -> None:
        self.model, self.feed, self.options, self.folder = model, feed, options, folder
        self.accelerator, self.console = accelerator, console
        parts, world = options.accumulate, accelerator.num_processes
        self.batch = min(options.batch_size, len(feed.data["train"]) // (parts * world) * parts * world)
        if not self.batch or self.batch % (parts * world):
            raise PolycovError(
                f"Expected batch_size to be a multiple of {world} processes × {parts} parts, got {options.batch_size} "
                f"for {len(feed.data['train'])} training pictures."
            )
        # A batch that is not finite is found by its loss, in all processes at once, and named.
        model.pool.check_finite = False
        self.raw_network = network.to(accelerator.device)
        self.optimizer = make_optimizer(model, options)
        self.network, self.wrapped = accelerator.prepare(network, self.optimizer)
        self.progress: dict[str, Any] = {"epoch": 0, "step": 0, "sums": [0.0, 0.0, 0.0], "best": None, "seconds": 0.0}
        self.steps = len(feed.data["train"]) // self.batch
        self.saved = time.monotonic()

    @property
    def checkpoint(self) -> Path:
        """The file of the last checkpoint."""
        return self.folder / "checkpoint.safetensors"

    def resume(self) -> None:
        """Goes back to the last checkpoint, if there is one; what was noted after it is struck out."""
        if self.checkpoint.is_file():
            self.progress = load_checkpoint(self.checkpoint, self.model, self.optimizer)
            if self.accelerator.scaler is not None and self.progress.get("scaler"):
                self.accelerator.scaler.load_state_dict(self.progress["scaler"])
        if self.accelerator.is_main_process:
            metrics = self.folder / "metrics.jsonl"
            kept = [row for row in read_json_lines(metrics) if row.get("epoch", math.inf) <= self.progress["epoch"]]
            write_json_lines(metrics, [row for row in kept if "test_accuracy" not in row])
        self.accelerator.wait_for_everyone()

    def train(self) -> None:
        """Trains to the end, and leaves the weights to keep in the model.

        Raises:
            NonFiniteError: if a loss or a gradient is not finite; the last checkpoint is from before.
        """
        options = self.options
        writer = _tensorboard(self.folder) if self.accelerator.is_main_process else None
        shown = "loss {task.fields[loss]:.3f}  {task.fields[speed]:.0f} images/s  validation {task.fields[val]}"
        with make_progress(self.console, shown) as bar, torch.random.fork_rng(self._devices()):
            total = options.epochs * self.steps
            task = bar.add_task("training", total=total, loss=math.nan, speed=0.0, val="–")
            while self.progress["epoch"] < options.epochs:
                self._epoch(lambda **now: bar.update(task, **now))
                row = self._end_of_epoch()
                bar.update(task, val="–" if row["val_accuracy"] is None else f"{row['val_accuracy']:.1%}")
                if writer is not None:
                    for name, value in row.items():
                        if value is not None and name not in ("epoch", "processes"):
                            writer.add_scalar(name, value, row["epoch"])
        if writer is not None:
            writer.close()
        self.accelerator.wait_for_everyone()  # for the first process to have written the best
        best = self.folder / "best.safetensors"
        if self.progress["best"] is not None and options.keep == "best":
            load_exactly(self.model, load_tensors(best)[0], "best.safetensors")
        self.model.pool.check_finite = True

    def _devices(self) -> list[int]:
        return [self.accelerator.device.index or 0] if self.accelerator.device.type == "cuda" else []

    def _epoch(self, show: Any) -> None:
        epoch, done = self.progress["epoch"], self.progress["step"]
        order = epoch_order(len(self.feed.data["train"]), self.batch, self.options.seed, epoch)
        feed = self.feed.batches("train", list(self._shares(order[done:], epoch)))
        self.network.train()
        show(description=f"epoch {epoch + 1}/{self.options.epochs}", completed=epoch * self.steps + done)
        for step in range(done, len(order)):
            start = time.monotonic()
            self._step(feed, epoch * self.steps + step, order[step])
            seconds = time.monotonic() - start
            self.progress["step"] = step + 1
            self.progress["seconds"] += seconds
            loss, _, count = self.progress["sums"]
            show(advance=1, loss=loss / count, speed=self.batch / seconds)
            if time.monotonic() - self.saved > 60 * self.options.checkpoint_minutes and step + 1 < len(order):
                self._save()

    def _shares(self, order: list[list[int]], epoch: int) -> Iterator[list[Number]]:
        """This process's share of each part of each batch, with the seeds of the augmentation."""
        world, rank, parts = self.accelerator.num_processes, self.accelerator.process_index, self.options.accumulate
        for batch in order:
            for part in range(parts):
                mine = batch[part::parts][rank::world]
                yield [(i, number_from(self.options.seed, "augment", epoch, i)) for i in mine]

    def _step(self, feed: Iterator[Any], step: int, batch: list[int]) -> None:
        """One step of the optimiser on a batch, which comes in parts."""
        options, world = self.options, self.accelerator.num_processes
        torch.manual_seed(number_from(options.seed, "step", step, self.accelerator.process_index))
        for group in self.optimizer.param_groups:
            group["lr"] = group["full_lr"] * rate(options, step / self.steps)
        sums = torch.zeros(3, dtype=torch.float64)
        for part in range(options.accumulate):
            x, y, numbers = next(feed)
            x, y = x.to(self.accelerator.device), y.to(self.accelerator.device)
            last = part == options.accumulate - 1
            several = SynchronizedBatchNorm() if world > 1 else nullcontext()
            with nullcontext() if last else self.accelerator.no_sync(self.network):
                with self.accelerator.autocast(), several:
                    logits = self.network(x)
                losses = functional.cross_entropy(
                    logits.float(), y, reduction="none", label_smoothing=options.label_smoothing
                )
                self._require_finite(losses, numbers, step)
                # Gradients are averaged over processes, so the mean over the whole batch takes this factor.
                self.accelerator.backward(losses.sum() * (world / len(batch)))
            right = (logits.argmax(1) == y).sum()
            sums += torch.tensor([losses.detach().sum().item(), right.item(), len(y)], dtype=torch.float64)
        norm = self.accelerator.clip_grad_norm_(self.raw_network.parameters(), options.clip or math.inf)
        if self.accelerator.scaler is None and norm is not None and not math.isfinite(norm):
            names = [self.feed.data["train"].name(i) for i in batch]
            self._stop(f"The gradient of step {step + 1} is not finite", names)
        self.wrapped.step()
        self.wrapped.zero_grad()
        total = self.accelerator.reduce(sums.to(self.accelerator.device).float(), "sum").double().cpu()
        self.progress["sums"] = [a + float(b) for a, b in zip(self.progress["sums"], total, strict=True)]

    def _require_finite(self, losses: Tensor, numbers: Tensor, step: int) -> None:
        """Stops all processes if the loss of any picture in any of them is not finite."""
        wrong = ~losses.detach().isfinite()
        if float(self.accelerator.reduce(wrong.sum().float(), "sum")) == 0:
            return
        names = [self.feed.data["train"].name(int(i)) for i in numbers[wrong.cpu()]]
        names = gather_object(names) if self.accelerator.num_processes > 1 else names
        self._stop(f"The loss of step {step + 1} is not finite", names)

    def _stop(self, what: str, names: list[str]) -> None:
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        kept = f"The last good checkpoint is kept in {self.checkpoint}." if self.checkpoint.is_file() else ""
        raise NonFiniteError(f"{what}, for {shown}. {kept} A smaller --lr, --clip or --warmup may help.")

    def _end_of_epoch(self) -> dict[str, Any]:
        """Measures on the validation part, notes it, and writes what a resumed run needs."""
        loss, right, count = self.progress["sums"]
        epoch = self.progress["epoch"] + 1
        val = self.score("val") if len(self.feed.data["val"]) else None
        if val is not None and not bool(val.loss.isfinite().all()):
            wrong = (~val.loss.isfinite()).nonzero().flatten().tolist()
            names = [self.feed.data["val"].name(i) for i in wrong]
            self._stop(f"The validation loss after epoch {epoch} is not finite", names)
        row = {
            "epoch": epoch,
            "loss": loss / count,
            "accuracy": right / count,
            "val_loss": float(val.loss.mean()) if val else None,
            "val_accuracy": val.accuracy if val else None,
            "lr": self.optimizer.param_groups[-1]["lr"],
            "processes": self.accelerator.num_processes,
            "images_per_second": count / max(self.progress["seconds"], 1e-9),
        }
        best = self.progress["best"]
        better = val is not None and (best is None or val.accuracy > best["val_accuracy"])
        if better:
            self.progress["best"] = {"epoch": epoch, "val_accuracy": row["val_accuracy"]}
        self.progress |= {"epoch": epoch, "step": 0, "sums": [0.0, 0.0, 0.0], "seconds": 0.0}
        if self.accelerator.is_main_process:
            append_json_lines(self.folder / "metrics.jsonl", [row])
            if better:
                save_tensors(self.folder / "best.safetensors", self.model.state_dict(), {"epoch": epoch})
        self._save()
        shown = f"epoch {epoch}/{self.options.epochs}: loss {row['loss']:.3f}, training {row['accuracy']:.1%}"
        shown += f", validation {val.accuracy:.1%}" if val else ""
        self.console.print(f"{shown}, {row['images_per_second']:.0f} images/s")
        return row

    def _save(self) -> None:
        if self.accelerator.scaler is not None:
            self.progress["scaler"] = self.accelerator.scaler.state_dict()
        if self.accelerator.is_main_process:
            save_checkpoint(self.checkpoint, self.model, self.optimizer, self.progress)
        self.saved = time.monotonic()

    def score(self, part: str) -> Scores:
        """Measures the model as it is on a part of the data."""
        options = self.options
        batch = min(options.batch_size, 64)
        return score(self.raw_network, self.feed, part, self.accelerator, batch=batch, mirror=options.mirror)


def _tensorboard(folder: Path) -> Any:
    """A writer for TensorBoard, if that is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
