import pytest
import torch

from polycov.bench.backends import PLAIN, backends
from polycov.data.transforms import Preprocessing
from polycov.models.backbones import Backbone
from polycov.models.backends.frozen import TOLERANCE


@pytest.mark.slow
def test_every_way_has_a_rate_and_a_distance() -> None:
    torch.manual_seed(0)
    network = Backbone("test_resnet", weights="none", size=64)
    pixels = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    rows = {row["backend"]: row for row in backends(network, Preprocessing(64, 64), pixels, 1)}
    assert rows[PLAIN]["distance"] == 0
    assert rows[PLAIN]["of_plain"] == 1
    for name in ("torch, channels last", "torch, BatchNorm folded", "onnxruntime", "openvino"):
        assert rows[name]["images_per_second"] > 0
        assert rows[name]["distance"] < TOLERANCE
    assert rows["torch, BatchNorm folded, bfloat16"]["distance"] > TOLERANCE
