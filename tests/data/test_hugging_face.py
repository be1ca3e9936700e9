import sys
from pathlib import Path

import pytest

from fake_images import make_image
from polycov.data.read import read_splits
from polycov.errors import MissingDependencyError, PolycovError


def write_pets(folder: Path, labels: list[int]) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    splits = {}
    for split, chosen in (("train", labels), ("test", labels[:4])):
        rows = {"image": [make_image(abs(label), i) for i, label in enumerate(chosen)], "label": chosen}
        splits[split] = datasets.Dataset.from_dict(rows, features)
    datasets.DatasetDict(splits).save_to_disk(folder)


@pytest.mark.slow
def test_a_data_set_on_disk(tmp_path: Path) -> None:
    write_pets(tmp_path / "pets", [0, 1, 0, 1, -1, 0])
    data = read_splits(f"hfds/{tmp_path}/pets")
    assert (data.name, data.classes) == ("pets", ["cat", "dog"])
    assert [data["test"].name(i) for i in range(4)] == [f"test/{i:08d}" for i in range(4)]
    assert list(data["train"].labels) == [0, 1, 0, 1, 0]  # -1 is an unknown class
    assert data["train"].name(4) == "train/00000005"
    assert data["train"].image(1).tobytes() == make_image(1, 1).tobytes()


@pytest.mark.slow
def test_a_missing_data_set_is_named() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(PolycovError, match=r"^Cannot read the dataset 'no/such': "):
        read_splits("hfds/no/such")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"needs Hugging Face datasets.*pip install 'polycov.data.'"):
        read_splits("hfds/some/name")
