"""The folder of a comparison: what is compared, and a record for every setting measured so far."""

import hashlib
import json
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

from polycov.comparing.comparison_values import Facts, Gallery, Judged, LocalFeatures, check_gallery
from polycov.comparing.grid import Setting, SettingKey
from polycov.comparing.records import Record
from polycov.comparing.statistics import Scored
from polycov.comparing.storage import StorageCurve
from polycov.errors import PolycovError
from polycov.progress import Progress
from polycov.system.files import is_there
from polycov.system.formats import require_format
from polycov.system.json_files import append_json_lines, read_json, read_json_lines, read_object, write_json
from polycov.system.locks import only_writer
from polycov.system.structure import structure, to_plain

FORMAT = 2


class ComparisonFolder:
    """The files of a comparison.

    ``config.json`` says what is compared, ``records.jsonl`` has a line per setting that is done, ``splits/SEED.json``
    which images each seed judged, ``features.json`` facts about the local features, ``storage.json`` the recommended
    feature in fewer bytes, ``gallery.json`` images for the page, ``explanations.html`` explanations of mistakes among
    them, ``runs`` the training runs. Only one process writes to it, no matter which ones measure. A record is
    appended when its setting is complete, so a kill costs only the settings in flight.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._config = self.path / "config.json"
        self._records = self.path / "records.jsonl"
        self._features = self.path / "features.json"
        self._storage = self.path / "storage.json"
        self._gallery = self.path / "gallery.json"
        self._by_key: dict[SettingKey, Record] = {}
        self._lines_read = 0

    def writing(self) -> AbstractContextManager[None]:
        """Makes this process the only one that writes to the folder, which is created if necessary.

        Raises:
            PolycovError: if another process does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return only_writer(self.path / "writing.lock", self.path)

    # Identity

    def open(self, identity: dict[str, Any], facts: dict[str, Any]) -> None:
        """Writes what is compared, or checks that the folder holds the same comparison.

        Args:
            identity: what all records have in common.
            facts: further facts for the report.

        Raises:
            PolycovError: if the folder holds another comparison.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._config.is_file():
            if self._records.is_file():
                raise PolycovError(
                    f"{str(self.path)!r} holds records, but no {self._config.name} that says what they are of. Choose "
                    "another --out, or restore the file."
                )
            write_json(self._config, {"format": FORMAT, "identity": identity, **facts})
        before, after = _leaves(self.config()["identity"]), _leaves(json.loads(json.dumps(identity)))
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if changed:
            name = changed[0]
            was = "other images" if name == "images" else f"{name} {before.get(name)!r}, not {after.get(name)!r}"
            raise PolycovError(f"{str(self.path)!r} holds a comparison with {was}. Choose another --out.")

    def config(self) -> dict[str, Any]:
        """Reads what is compared.

        Raises:
            PolycovError: if the folder is not a comparison, or of another version.
        """
        config = read_json(self._config) if self._config.is_file() else None
        if not isinstance(config, dict) or not isinstance(config.get("identity"), dict):
            raise PolycovError(f"{str(self.path)!r} is not a comparison: see its {self._config.name}.")
        require_format(config.get("format", 1), FORMAT, f"The comparison {str(self.path)!r}", "Compare again.")
        return config

    @cached_property
    def _digest(self) -> str:
        """Of what is compared: every record carries it."""
        return _hash(self.config()["identity"])[:16]

    def facts(self) -> Facts:
        """Returns what a report says of the comparison.

        Raises:
            PolycovError: if the folder is not a comparison, or ``config.json`` is damaged.
        """
        return structure(Facts, self.config(), repr(str(self._config)))

    # Records

    def records(self) -> list[Record]:
        """Returns the records in order, each setting once.

        Raises:
            PolycovError: if a record is damaged, or of another comparison.
        """
        for line, row in enumerate(read_json_lines(self._records), 1):
            if line > self._lines_read:  # records are only ever appended
                where = f"line {line} of {str(self._records)!r}"
                if isinstance(row, dict) and row.pop("comparison", self._digest) != self._digest:
                    raise PolycovError(f"{where} is a record of another comparison. Remove it.")
                record = structure(Record, row, where)
                self._by_key[record.key] = record
                self._lines_read = line
        return list(self._by_key.values())

    def append(self, record: Record, scored: Scored) -> None:
        """Records a setting, and which images its seed judged."""
        splits = self.path / "splits"
        splits.mkdir(exist_ok=True)
        write_json(splits / f"{record.seed}.json", scored)
        append_json_lines(self._records, [{**to_plain(record), "comparison": self._digest}])

    def scored(self) -> dict[int, Scored]:
        """Returns the images, or episodes, that each seed judged: for validation and for the test.

        Older comparisons list the validation images alone; their test images are the same for all seeds.
        """
        paths = [path for path in sorted((self.path / "splits").glob("*.json")) if path.stem.isdecimal()]
        found = {int(path.stem): self._judged(path) for path in paths}
        newer = [scored["test"] for scored in found.values() if isinstance(scored, dict)]
        counts = structure(dict[str, int], self.config().get("counts", {}), repr(str(self._config)))
        test = newer[0] if newer else list(range(counts.get("test", 0)))
        return {seed: {"val": s, "test": test} if isinstance(s, list) else s for seed, s in found.items()}

    @staticmethod
    def _judged(path: Path) -> Scored | list[int]:
        value, where = read_json(path), repr(str(path))
        if isinstance(value, list):
            return structure(list[int], value, where)
        judged = structure(Judged, value, where)
        return {"val": judged.val, "test": judged.test}

    def run_folder(self, setting: Setting) -> Path:
        """Returns the folder of the training run of a setting."""
        return self.path / "runs" / setting.file_name

    # Features, storage and gallery

    def write_features(self, facts: LocalFeatures) -> None:
        """Records facts about the local features."""
        write_json(self._features, to_plain(facts))

    def features(self) -> LocalFeatures | None:
        """Returns facts about the local features; None if none were extracted."""
        if not is_there(self._features):
            return None
        return structure(LocalFeatures, read_object(self._features), repr(str(self._features)))

    def write_storage(self, curve: StorageCurve) -> None:
        """Writes how good the recommended feature is in fewer bytes."""
        write_json(self._storage, to_plain(curve))

    def storage(self) -> StorageCurve | None:
        """Returns how good the recommended feature is in fewer bytes, if that was measured."""
        if not is_there(self._storage):
            return None
        return structure(StorageCurve, read_object(self._storage), repr(str(self._storage)))

    def write_gallery(self, gallery: Gallery) -> None:
        """Writes the images for the page."""
        write_json(self._gallery, gallery)

    def drop_damaged(self, progress: Progress) -> None:
        """Removes damaged files, which a comparison computes again, and reports them."""
        for path, read in ((self._storage, self.storage), (self._gallery, self.gallery)):
            try:
                read()
            except PolycovError as error:
                progress.message(f"{str(path)!r} is computed again: {error}")
                path.unlink(missing_ok=True)

    @property
    def explanations(self) -> Path:
        """The page that explains mistakes in the gallery; it need not exist."""
        return self.path / "explanations.html"

    def gallery(self) -> Gallery | None:
        """Returns images for the page, if there are any.

        Raises:
            PolycovError: if they are damaged, or an image is an address elsewhere.
        """
        if not is_there(self._gallery):
            return None
        return check_gallery(read_object(self._gallery), repr(str(self._gallery)))


def default_path(name: str, identity: dict[str, Any]) -> Path:
    """Returns the folder of a comparison that was not given one: the same for the same identity."""
    return Path("runs") / f"compare-{name}-{_hash(identity)[:8]}"


def _hash(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _leaves(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested dictionaries, by their last key."""
    if not isinstance(value, dict):
        return {name: value}
    return {key: leaf for inner, one in value.items() for key, leaf in _leaves(one, inner).items()}
