import sys

import pytest
import torch

from polycov.comparing.protocols.classifiers import ProbeProtocol
from polycov.comparing.protocols.neighbours import RetrievalProtocol
from polycov.comparing.protocols.protocol import FrozenProtocol, Pooled
from polycov.comparing.storage import measure_stored, stored_in_all
from polycov.data.images import SPLITS


def pooled(seed: int) -> Pooled:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, 160, generator=torch.Generator().manual_seed(0))
    labels = {split: torch.arange(160) % 8 for split in SPLITS}
    features = {s: centres[labels[s]] + 4.0 * torch.randn(160, 160, generator=generator) for s in SPLITS}
    return Pooled(features, labels, 8, seed)


@pytest.mark.parametrize("protocol", [ProbeProtocol(), RetrievalProtocol()])
def test_the_curve_goes_from_float32_to_64_bytes(protocol: FrozenProtocol) -> None:
    points = stored_in_all([measure_stored(pooled(seed), protocol) for seed in (1, 0)])
    assert [(point.code, point.bytes) for point in points] == [
        ("float32", 640),
        ("float16", 320),
        ("int8", 164),
        ("product", 64),  # 128 bytes would need 256 dimensions
    ]
    exact = [float(protocol.judge(pooled(seed)).test.double().mean()) for seed in (0, 1)]
    assert points[0].scores == pytest.approx(exact)
    assert points[2].scores == pytest.approx(exact, abs=0.05)
    assert all(0.3 < score <= 1 for score in points[3].scores)


def test_without_faiss_there_are_no_product_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    found = measure_stored(pooled(0), RetrievalProtocol())
    assert [point.code for point in stored_in_all([found])] == ["float32", "float16", "int8"]
    assert "polycov[search]" in found.missing
