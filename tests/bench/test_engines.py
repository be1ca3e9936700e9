import pytest

from polycov.bench.engines import measure_owner
from polycov.engines.engine import EngineOptions


def test_the_rate_of_the_owner_is_in_images_and_bytes() -> None:
    images, rest = measure_owner(EngineOptions(), shards=2).split(" images/s, ")
    assert float(rest.removesuffix(" MB/s")) == pytest.approx(float(images) * 0.064, rel=0.05, abs=1)
