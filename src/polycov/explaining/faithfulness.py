"""Do maps mean something? What hiding their regions does to the score, against other maps and random orders."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polycov.data.images import Samples
from polycov.errors import PolycovError
from polycov.explaining.boxes import Box, box_cover, find_boxes, share_inside
from polycov.explaining.curves import Curves, measure_curves, rank_cells, step_counts
from polycov.explaining.evidence import Evidence, collect_evidence
from polycov.explaining.faithfulness_options import CAMS, FaithfulnessOptions
from polycov.explaining.faithfulness_result import CurveRecord, Faithfulness
from polycov.explaining.grad_cam import find_block, grad_cam, hires_cam
from polycov.explaining.hiding import hide_cells, replacement
from polycov.explaining.regions import grid_of
from polycov.models.model import Model
from polycov.models.modes import evaluation_mode
from polycov.pooling.tokens import maps_to_tokens
from polycov.progress import SILENT, Progress
from polycov.system.json_files import append_json_lines, read_json_lines


def measure_faithfulness(
    model: Model,
    samples: Samples,
    options: FaithfulnessOptions | None = None,
    *,
    records: Path | None = None,
    boxes: Mapping[str, Box] | None = None,
    progress: Progress = SILENT,
) -> Faithfulness:
    """Hides the regions of images in the order of several maps and measures what is left of the score.

    Args:
        model: that is explained.
        samples: images to choose from.
        options: see `FaithfulnessOptions`.
        records: a file of JSON lines, one per image and map, appended as they are measured; measured ones are not
            measured again.
        boxes: where the object is, by the name of the image; default: those of CUB-200-2011, if the images are.
        progress: receives the number of images done.

    Returns:
        The curves of each image.

    Raises:
        PolycovError: on an option out of range, an image that cannot be read, or a pool without an exact decomposition.
    """
    options = (options or FaithfulnessOptions()).check()
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(options.seed))
    chosen = order[: options.images].tolist()
    settings = _settings(model, options)
    done = _read(records, settings)
    boxes = find_boxes(samples) if boxes is None else boxes
    block = _block(model, samples, options)
    with progress.task("hiding regions", len(chosen)) as task, evaluation_mode(model), torch.no_grad():
        for index in chosen:
            name = samples.name(index)
            missing = [key for key in options.keyed_maps() if (name, *key) not in done]
            if missing:
                image = _HidingImage(model, samples, index, options, block)
                for key in missing:
                    record = image.measure(*key, boxes.get(name), settings)
                    done[record.key] = record
                    if records is not None:
                        append_json_lines(records, [asdict(record)])
            task.advance()
    keys = [(samples.name(index), *key) for index in chosen for key in options.keyed_maps()]
    return Faithfulness([done[key] for key in keys])


def _block(model: Model, samples: Samples, options: FaithfulnessOptions) -> str:
    """The block for "grad-cam-block"."""
    if "grad-cam-block" not in options.maps:
        return ""
    return find_block(model, model.preprocessing(samples.image(0))[None])


def _settings(model: Model, options: FaithfulnessOptions) -> str:
    """A digest of everything that records depend on, besides the image and the map."""
    digest = hashlib.sha256(f"{model.pool.spec} {model.pool.seed} {model.preprocessing.identity()}".encode())
    digest.update(json.dumps([options.step, options.hide, options.seed]).encode())
    for module in (model.reduction, model.classifier):
        for tensor in module.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _read(path: Path | None, settings: str) -> dict[tuple[str, str, int], CurveRecord]:
    """The records of an earlier run with the same settings."""
    if path is None:
        return {}
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for row in read_json_lines(path) if row.get("settings") == settings]
    try:
        return {record.key: record for record in (CurveRecord(**row) for row in rows)}
    except TypeError as error:
        raise PolycovError(f"Cannot read the records of {str(path)!r}: {error}. Remove the file.") from error


class _HidingImage:
    """One image, whose regions are hidden in the order of one map after another."""

    def __init__(self, model: Model, samples: Samples, index: int, options: FaithfulnessOptions, block: str) -> None:
        self.model, self.options = model, options
        self.name, self.label = samples.name(index), int(samples.labels[index])
        original = samples.image(index)
        self.size = original.size
        self.image = model.preprocessing(original)
        self.instead = replacement(self.image, options.hide)
        features = model.backbone(self._batch(torch.stack([self.image, self.instead])))
        logits = model.classify(features)
        best = logits[0].topk(min(2, logits.shape[1])).indices.tolist()
        self.target: int = best[0]
        whole, nothing = measure_scores(logits, self.target)
        self.ends = whole, nothing
        self.grid = grid_of(features)
        self._measured: dict[tuple[int, ...], Curves] = {}
        self.maps = _Maps(model, self._batch(self.image[None]), features[:1], best, options.seed, block)

    def measure(self, name: str, seed: int, box: Box | None, settings: str) -> CurveRecord:
        """The record of one map."""
        contributions = self.maps.contributions(name, seed, self.name)
        order = rank_cells(contributions, _generator(self.options.seed, "ties", seed, self.name))
        counts = step_counts(len(order), self.options.step)
        curves = self._measured.get(tuple(order.tolist()))  # maps that agree are measured once
        if curves is None:
            curves = measure_curves(order, counts, self._scores, self.ends)
            self._measured[tuple(order.tolist())] = curves
        cover = None if box is None else box_cover(box, self.size, self.model.preprocessing, self.grid)
        return CurveRecord(
            settings=settings,
            image=self.name,
            map=name,
            seed=seed,
            label=self.label,
            predicted=self.target,
            counts=counts,
            deletion=curves.deletion.mT.tolist(),
            insertion=curves.insertion.mT.tolist(),
            inside=None if cover is None else share_inside(contributions.view(self.grid).cpu(), cover),
            area=None if cover is None else float(cover.mean()),
        )

    def _scores(self, hidden: Tensor) -> Tensor:
        scores = []
        for masks in hidden.view(-1, *self.grid).split(self.options.batch_size):
            shown = hide_cells(self.image, masks, self.instead)
            scores.append(measure_scores(self.model(self._batch(shown)), self.target))
        return torch.cat(scores) if scores else torch.zeros(0, 2, dtype=torch.float64)

    def _batch(self, images: Tensor) -> Tensor:
        return images.to(self.model.device).contiguous(memory_format=torch.channels_last)  # the faster layout


def measure_scores(logits: Tensor, target: int) -> Tensor:
    """Returns the probability of the target and the lead of its logit over the best other class, (B, 2)."""
    others = logits.clone()
    others[:, target] = -torch.inf
    return torch.stack([logits.softmax(1)[:, target], logits[:, target] - others.amax(1)], 1).double().cpu()


def _generator(*parts: Any) -> torch.Generator:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogateescape")).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


class _Maps:
    """The maps of one image."""

    def __init__(self, model: Model, image: Tensor, features: Tensor, best: list[int], seed: int, block: str) -> None:
        self.model, self.image, self.best, self.seed = model, image, best, seed
        self.local = model.reduce(features)
        self.count = maps_to_tokens(self.local).shape[1]
        self.block = block
        self._evidence: Evidence | None = None

    def contributions(self, name: str, seed: int, image: str) -> Tensor:
        """The contribution of each location, (N,), by a map and its seed."""
        weight, target = self.model.classifier.weight, self.best[0]
        if name == "random":
            return torch.rand(self.count, generator=_generator(self.seed, name, seed, image))
        if name in CAMS:
            return self._cam(name)
        if name == "untrained":  # another classifier for each image, so that intervals hold for others too
            random = torch.randn(weight.shape[1], generator=_generator(self.seed, name, seed, image))
            return self._exact(random.to(weight))
        return self._exact(weight[target] - (weight[self.best[1]] if name == "exact-runner-up" else 0.0))

    def _cam(self, name: str) -> Tensor:
        """Negative values too: they rank what the ReLU would make equal."""
        compute = hires_cam if name == "hires-cam" else grad_cam
        layer = {"grad-cam-reduced": "reduced", "grad-cam-block": self.block}.get(name, "local")
        return compute(self.model, self.image, self.best[:1], layer=layer, relu=False)[0]

    def _exact(self, weights: Tensor) -> Tensor:
        if self._evidence is None:
            self._evidence = collect_evidence(self.model.pool, self.local)
        return self._evidence.locations(weights[None])[0][0]
