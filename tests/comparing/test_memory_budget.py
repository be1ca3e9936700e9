"""Comparisons in little memory give what they give in plenty: tokens from disk, features in files, small blocks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from polycov.comparing.compare import compare
from polycov.comparing.comparison import Comparison
from polycov.comparing.protocols.choose import make_protocol
from polycov.comparing.protocols.protocol import FrozenProtocol, Pooled
from polycov.data.images import Split
from polycov.errors import PolycovError
from polycov.system import rows
from polycov.system.memory_budget import Memory
from polycov.system.rows import DiskRows, Rows
from polycov.training.train import train

TINY: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "size": 64, "stage": 2, "workers": 0}
SMALL = "1MB"  # two percent of it for features, in this test: those of 54 images with 200 dimensions take 43 KB


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes of the features that were put into files."""
    shapes: list[tuple[int, int]] = []
    original = DiskRows.__init__

    def watched(self: DiskRows, shape: tuple[int, int], folder: Path | None = None) -> None:
        shapes.append(shape)
        original(self, shape, folder)

    monkeypatch.setattr(DiskRows, "__init__", watched)
    return shapes


def scores(comparison: Comparison) -> dict[Any, Any]:
    results = {record.key: record.measurement for record in comparison.records}
    return {
        key: (m.val_accuracy, m.test_accuracy, m.strength, m.val_correct, m.test_correct, m.predictions, m.stored)
        for key, m in results.items()
    }


@pytest.mark.parametrize("head", ["probe", "retrieval"])
def test_a_comparison_in_little_memory_is_the_same(
    forest: Path, tmp_path: Path, head: str, on_disk: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for share in ("FEATURES", "TOKENS"):
        monkeypatch.setattr(f"polycov.system.memory_budget.{share}", 0.02)
    methods = ("average", "ipccp-ts", "covariance | sqrt(5) | triu | project(9)")
    options: dict[str, Any] = {**TINY, "methods": methods, "dims": (200,), "seeds": 2, "head": head, "channels": 24}
    plenty = compare(forest, out=tmp_path / "plenty", explain=False, memory="1GB", **options)
    assert not on_disk
    little = compare(forest, out=tmp_path / "little", explain=False, memory=SMALL, **options)
    assert on_disk
    assert scores(little) == scores(plenty)


def test_a_probe_in_little_memory_is_the_same(forest: Path, tmp_path: Path, on_disk: list[tuple[int, int]]) -> None:
    options: dict[str, Any] = {**TINY, "pool": "ipccp-ts", "dim": 300, "channels": 8, "probe": True}
    plenty = train(forest, tmp_path / "plenty", memory="1GB", **options)
    assert not on_disk
    little = train(forest, tmp_path / "little", memory="120KB", **options)
    assert on_disk
    assert (little.val_accuracy, little.test_accuracy) == (plenty.val_accuracy, plenty.test_accuracy)


def test_what_cannot_be_done_in_little_memory_says_so_at_once(
    forest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**TINY, "methods": ("ipccp-ts",), "dims": (24,), "seeds": 1, "channels": 8}
    with pytest.raises(PolycovError, match=r"512 features of 24 dimensions take 1MB, .* --memory 2MB or more"):
        compare(forest, out=tmp_path / "cmp", memory="1KB", **options)
    monkeypatch.setattr("polycov.system.memory_budget.BLOCK", 1)
    with pytest.raises(PolycovError, match=r"A probe of 24 dimensions needs matrices of 24 × 24 numbers.* --memory"):
        compare(forest, out=tmp_path / "cmp", memory="1KB", **options)
    with pytest.raises(PolycovError, match="such as 4GB"):
        compare(forest, out=tmp_path / "cmp", memory="much", **options)


@pytest.mark.parametrize("head", ["probe", "knn", "fewshot", "retrieval"])
def test_protocols_judge_features_in_files_and_in_memory_alike(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "BLOCK", 16)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 12, generator=generator)
    labels: dict[Split, torch.Tensor] = {split: torch.arange(n) % 6 for split, n in SIZES.items()}
    features: dict[Split, Rows] = {
        split: centres[of] + 1.5 * torch.randn(len(of), 12, generator=generator) for split, of in labels.items()
    }
    disk: dict[Split, Rows] = {}
    for split, values in features.items():
        disk[split] = DiskRows((len(values), 12), tmp_path)
        disk[split][0 : len(values)] = values[:]
    protocol = make_protocol(head, {"episodes": 20} if head == "fewshot" else {})
    assert isinstance(protocol, FrozenProtocol)
    for unseen in (False, *([True] if head != "probe" else [])):
        one = protocol.judge(Pooled(features, labels, 6, unseen=unseen))
        other = protocol.judge(Pooled(disk, labels, 6, unseen=unseen, memory=Memory(20_000, tmp_path)))
        torch.testing.assert_close(one.val, other.val)
        torch.testing.assert_close(one.test, other.test)
        assert (one.strength, one.neighbours) == (other.strength, other.neighbours)
        assert one.metrics == pytest.approx(other.metrics)
        assert one.stored(lambda x: x.round()) == other.stored(lambda x: x.round())


SIZES: dict[Split, int] = {"train": 90, "val": 60, "test": 70}
