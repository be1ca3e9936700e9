"""The results of one comparison, ready to be shown: computed once from its folder."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polycov.comparing.comparison_folder import ComparisonFolder
from polycov.comparing.comparison_values import Facts, LocalFeatures
from polycov.comparing.protocols.choose import make_protocol
from polycov.comparing.protocols.protocol import Protocol
from polycov.comparing.recommendation import Recommendation, recommend, size_in_words
from polycov.comparing.records import Record, unpack
from polycov.comparing.statistics import (
    Difference,
    Point,
    PointKey,
    Scored,
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
    facts, records = folder.facts(), folder.records()
    if not records:
        raise PolycovError(f"The comparison {str(path)!r} has no records in its records.jsonl yet.")
    scored = folder.scored()
    _check_scores(records, scored, path)
    all_points, protocol = points(records), _protocol(facts, path)
    recommendation = recommend(records, all_points, scored, protocol.score, protocol.unit)
    train = [*facts.train, *recommendation.train_flags()] if recommendation and facts.train else []
    return Study(
        name=facts.data,
        classes=len(facts.classes),
        counts=facts.counts,
        protocol=protocol,
        unseen=facts.identity.unseen_classes,
        records=records,
        points=all_points,
        differences=against_uncompressed(records, scored),
        recommendation=recommendation,
        stored=stored_points(folder.storage(), recommendation),
        gallery=folder.gallery(),
        facts=_facts(facts, folder.features(), records),
        next_command=shlex.join(train),
    )


def _check_scores(records: Sequence[Record], scored: Mapping[int, Scored], path: Path) -> None:
    """Refuses records whose scores are not those of the images that their seed judged."""
    for record in records:
        judged = scored.get(record.seed)
        if judged is None:
            raise PolycovError(f"The file 'splits/{record.seed}.json' of the comparison {str(path)!r} is missing.")
        measured = record.measurement
        try:
            unpack(measured.val_correct, len(judged["val"]))
            unpack(measured.test_correct, len(judged["test"]))
            if measured.test_images != len(judged["test"]):
                raise PolycovError(f"{measured.test_images} test images are not the {len(judged['test'])} judged.")
        except PolycovError as error:
            raise PolycovError(
                f"In the records.jsonl of {str(path)!r}, {record.method!r} with seed {record.seed} does not fit "
                f"'splits/{record.seed}.json': {error}"
            ) from error


def _protocol(facts: Facts, path: Path) -> Protocol:
    try:
        return make_protocol(facts.identity.head, facts.identity.protocol)
    except (PolycovError, TypeError) as error:  # an unknown option of the protocol
        raise PolycovError(f"The config.json of {str(path)!r} is damaged: {error}") from error


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


def _facts(facts: Facts, features: LocalFeatures | None, records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the page says about data, backbone, command, versions, hardware and time."""
    network = facts.identity.config.network
    where = ""
    if features is not None:
        where = (
            f", {features.stage}: {features.locations} locations of {features.channels} channels in images of "
            f"{features.size} pixels"
        )
    return [
        ("data", f"{facts.data} ({'; '.join(facts.notes)})" if facts.notes else facts.data),
        ("backbone", f"{network.backbone}, weights {network.weights}{where}"),
        ("command", facts.command),
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
