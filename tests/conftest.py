from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsers import open_browser
from fake_images import write_data
from polycov.training.train import train


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A real browser on a busy machine now and then loses a click: such a test may try once more."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=6, test=3)


@pytest.fixture(scope="session")
def finished(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a probe on a small random backbone."""
    folder = tmp_path_factory.mktemp("runs") / "probe"
    small: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2, "size": 64, "workers": 0}
    return train(
        trees, folder, cache=folder.parent / "cache", probe=True, pool="ipccp-ts", dim=32, channels=8, **small
    ).folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()
