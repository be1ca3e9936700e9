"""Explanations of mistakes in the gallery, on a page beside the report."""

from dataclasses import replace
from pathlib import Path

from polycov.comparing.comparison_values import Gallery
from polycov.comparing.grid import Setting
from polycov.comparing.measure import config_for
from polycov.comparing.prepare import Prepared
from polycov.comparing.records import Record
from polycov.comparing.report.gallery import Entry
from polycov.errors import PolycovError
from polycov.explaining.explained import explain_images
from polycov.explaining.page import write_explanation_page
from polycov.explaining.training_images import TrainingImages
from polycov.models.model import Model
from polycov.pooling.methods import is_first_order
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device
from polycov.training.run_folder import RunFolder
from polycov.training.train import train

NEIGHBOURS = 4
ALONE = ("hardest", "predictions")


def explain_gallery(
    prepared: Prepared, record: Record, channels: int, gallery: Gallery, progress: Progress = SILENT
) -> Gallery:
    """Explains the hardest mistakes and those of the most confused pairs of classes, on a page.

    Returns the gallery, with an anchor for each image that is explained.

    A probe keeps no classifier, so that of the setting is fitted again, as a run in the folder of the comparison.

    Args:
        prepared: the comparison.
        record: of the predictions in the gallery.
        channels: before second-order pools, with a probe.
        gallery: from `make_gallery`.
        progress: receives messages and progress.
    """
    before = prepared.folder.gallery()
    if before is not None and prepared.folder.explanations.is_file() and _without_anchors(before) == gallery:
        return before
    mistakes = {entry["index"]: entry for entry in [*gallery["hardest"], *(pair["one"] for pair in gallery["pairs"])]}
    if not mistakes:
        return gallery
    try:
        model = Model.from_pretrained(_run(prepared, record, channels))
        _write_page(prepared, model, list(mistakes.values()), progress)
    except (PolycovError, OSError) as error:  # the comparison is complete without
        progress.message(f"no explanations: {error}")
        return gallery
    for entry in _entries(gallery):
        if entry["index"] in mistakes:
            entry["explanation"] = _anchor(entry)
    return gallery


def _entries(gallery: Gallery) -> list[Entry]:
    sides = (side for pair in gallery["pairs"] for side in (pair["one"], pair["other"]))
    return [*gallery["hardest"], *gallery["predictions"], *sides]


def _without_anchors(gallery: Gallery) -> Gallery:
    def plain(entry: Entry) -> Entry:
        return {key: value for key, value in entry.items() if key != "explanation"}

    pairs = [{**pair, "one": plain(pair["one"]), "other": plain(pair["other"])} for pair in gallery["pairs"]]
    return {**gallery, "pairs": pairs} | {key: [plain(e) for e in gallery.get(key, ())] for key in ALONE}


def _anchor(entry: Entry) -> str:
    return f"test-{entry['index']}"


def _run(prepared: Prepared, record: Record, channels: int) -> Path:
    """The run of a record; a probe is fitted."""
    if record.measurement.run is not None:
        return Path(record.measurement.run)
    setting = Setting(*record.key)
    method, dim = setting.pool
    width = 0 if is_first_order(method, dim=dim) else setting.channels(channels)
    config = config_for(setting, prepared.config, width)
    run = RunFolder(prepared.folder.run_folder(setting))
    return train(config, run.path, resume=run.has_config, cache=prepared.cache).folder


def _write_page(prepared: Prepared, model: Model, mistakes: list[Entry], progress: Progress) -> None:
    data, options = prepared.data.split(0), prepared.options
    model.to(choose_device(options.runtime.device))
    training = TrainingImages.prepare(
        model,
        data,
        prepared.cache,
        frozen=options.head != "finetune",
        store_channels=options.store_channels,
        workers=options.runtime.workers,
        progress=progress,
    )
    explained = explain_images(
        model,
        [data["test"].image(entry["index"]) for entry in mistakes],
        classes=[entry["prediction"] for entry in mistakes],
        against=[entry["class"] for entry in mistakes],
        names=[entry["name"] for entry in mistakes],
        training=training,
        neighbours=NEIGHBOURS,
        progress=progress,
    )
    items = [
        replace(item, truth=entry["class"], anchor=_anchor(entry))
        for item, entry in zip(explained, mistakes, strict=True)
    ]
    write_explanation_page(prepared.folder.explanations, items)
