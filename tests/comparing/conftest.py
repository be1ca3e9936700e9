from pathlib import Path

import pytest

from fake_images import write_data


@pytest.fixture(scope="session")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More images than `trees` has: enough to fit a few components."""
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=12, test=6)
