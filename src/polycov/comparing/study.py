"""The results of one comparison, ready to be shown: computed once from its folder."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polycov.comparing.comparison_folder import ComparisonFolder
from polycov.comparing.protocols.choose import make_protocol
from polycov.comparing.protocols.protocol import Protocol
from polycov.comparing.recommendation import Recommendation, recommend, size_in_words
from polycov.comparing.records import Record
from polycov.comparing.statistics import (
    Difference,
    Point,
    PointKey,
    against_uncompressed,
    points,
    standard_error,
)
from polycov.comparing.storage import StorageCurve
from polycov.errors import PolycovError
from polycov.progress import duration


@dataclass(frozen=True)
class Study:
    """Everything a report says about one comparison.

    Attributes:
        name: name of the data.
        classes: how many.
        counts: images of each split.
        protocol: how features were judged.
        unseen: share of the classes that nothing was fitted to; 0 if all were seen.
        records: one per setting.
        points: methods at their sizes.
        differences: differences to uncompressed isqrt-cov.
        recommendation: if there is one.
        stored: the recommended feature in ever fewer bytes, if that was measured.
        gallery: images; see `polycov.comparing.report.gallery`.
        facts: pairs of name and value, for the page.
        next_command: trains a classifier with the recommended feature; empty if there is none.
    """

    name: str
    classes: int
    counts: dict[str, int]
    protocol: Protocol
    unseen: float
    records: Sequence[Record]
    points: Sequence[Point]
    differences: dict[PointKey, Difference]
    recommendation: Recommendation | None
    stored: Sequence[Point]
    gallery: dict[str, Any] | None
    facts: list[tuple[str, str]]
    next_command: str = ""

    @property
    def metrics(self) -> list[str]:
        """Names of the further results that some points have."""
        return list(dict.fromkeys(name for point in self.points for name in point.metrics))

    @property
    def words(self) -> str:
        """How features were judged, in words."""
        if not self.unseen:
            return self.protocol.words
        held_out = f"{self.unseen:.0%} of the classes, drawn for each seed, that nothing was fitted to"
        if self.protocol.name == "probe":
            return f"{self.protocol.words} “Unseen” is retrieval by cosine among {held_out}."
        return f"{self.protocol.words} All of it within {held_out}."


def read_study(path: Path) -> Study:
    """Reads a comparison from its folder.

    Raises:
        PolycovError: if the folder is not a comparison, or nothing is done.
    """
    folder = ComparisonFolder(path)
    config, records = folder.config(), folder.records()
    if not records:
        raise PolycovError(f"The comparison {str(path)!r} has no records yet.")
    try:
        scored, identity = folder.scored(), config["identity"]
        if any(record.measurement.test_images != len(scored[record.seed]["test"]) for record in records):
            raise PolycovError(f"The records of {str(path)!r} have different numbers of test images.")
        all_points = points(records)
        protocol = make_protocol(identity["head"], identity.get("protocol"))
        recommendation = recommend(records, all_points, scored, protocol.score, protocol.unit)
        train = [*config["train"], *recommendation.train_flags()] if recommendation and "train" in config else []
        return Study(
            name=config["data"],
            classes=len(config["classes"]),
            counts=config["counts"],
            protocol=protocol,
            unseen=identity.get("unseen_classes", 0.0),
            records=records,
            points=all_points,
            differences=against_uncompressed(records, scored),
            recommendation=recommendation,
            stored=stored_points(folder.storage(), recommendation),
            gallery=folder.gallery(),
            facts=_facts(config, folder.features(), records),
            next_command=shlex.join(train),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PolycovError):
            raise
        raise PolycovError(f"The comparison {str(path)!r} is damaged: {type(error).__name__} {error}.") from error


def stored_points(curve: StorageCurve | None, recommendation: Recommendation | None) -> list[Point]:
    """Returns the recommended feature in ever fewer bytes; empty if another feature was measured, or none."""
    chosen = recommendation.chosen if recommendation else None
    if curve is None or chosen is None or (curve.method, curve.dim) != chosen.key:
        return []
    return [
        replace(
            chosen,
            method=f"{chosen.label}, in fewer bytes",
            bytes=point.bytes,
            code=point.code,
            seeds=len(point.scores),
            test=float(np.mean(point.scores)),
            test_error=standard_error(point.scores),
            val=math.nan,
            val_error=math.nan,
            kernel_error=None,
            metrics={},
        )
        for point in curve.points
    ]


def stored_in_words(stored: Sequence[Point]) -> str:
    """Returns what a feature is worth in fewer bytes; empty if it was not measured."""
    if not stored:
        return ""
    texts = [f"{point.test:.1%} in {size_in_words(point.bytes)} ({point.code})" for point in stored]
    return f"{stored[0].method}: {', '.join(texts)}."


def _facts(config: dict[str, Any], features: dict[str, Any], records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the page says about data, backbone, command, versions, hardware and time."""
    network = config["identity"]["config"]["network"]
    where = ""
    if features:
        where = (
            f", {features['stage']}: {features['locations']} locations of {features['channels']} channels in images of "
            f"{features['size']} pixels"
        )
    return [
        ("data", f"{config['data']} ({'; '.join(config['notes'])})" if config["notes"] else config["data"]),
        ("backbone", f"{network['backbone']}, weights {network['weights']}{where}"),
        ("command", config.get("command", "")),
        ("settings", f"{len(records)}, of {len({record.method for record in records})} methods"),
        ("time", f"{duration(sum(record.seconds for record in records))}, without extracting features"),
        ("hardware", "; ".join(dict.fromkeys(record.hardware for record in records))),
        ("versions", ", ".join(f"{name} {number}" for name, number in records[0].versions.items())),
    ]


def storage_in_words(all_points: Sequence[Point], score: str = "accuracy") -> str:
    """Returns what storing features in fewer bytes costs, over all settings; empty if it was not measured."""
    texts = []
    for dtype, share in (("float16", "half"), ("int8", "a quarter of")):
        changes = [value for point in all_points if (value := getattr(point, dtype)) is not None]
        if not changes:
            return ""
        low, mean, high = (round(100 * float(f(changes)), 2) + 0.0 for f in (np.min, np.mean, np.max))  # no minus zero
        texts.append(f"{share} the bytes as {dtype}: {mean:+.2f} points on average ({low:+.2f} to {high:+.2f})")
    return f"Storing the features in fewer bytes changes the test {score} by: {'; '.join(texts)}."
