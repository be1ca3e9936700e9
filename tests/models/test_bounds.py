"""Models from elsewhere ask for no more memory than their tensors take; they are refused before they get it."""

import json
from pathlib import Path
from typing import Any

import pytest

import polycov
from polycov.models import bounds

HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "large images": ({"size": 6000}, "from 8 to 4096 pixels, got 6000"),
    "a giant network": ({"backbone": "vit_giant_patch14_224"}, "does not fit 'vit_giant_patch14_224'"),
    "a wider network": ({"backbone": "test_resnet", "channels": 10**9}, "1000000000 is more than its tensors hold"),
    "many classes": ({"num_classes": 10**9}, "1000000000 is more than its tensors hold"),
    "a wide sketch": ({"pool": "covariance | sqrt(5) | random_maclaurin(100000000)"}, "more than its tensors hold"),
    "wide reductions": ({"pool": "self_cross(60000, heads=60000) | identity | flatten"}, "Cannot rebuild"),
    "a series": ({"pool": "covariance | log(20000) | triu"}, "degree of log to be a positive integer up to 1000"),
    "iterations": ({"pool": "covariance | sqrt(1000000) | triu"}, "iterations of sqrt .* up to 1000"),
    "a deep spec": ({"pool": "[" * 3000 + "average" + "]" * 3000}, "Cannot read"),
    "a long spec": ({"pool": "[" + ",".join(["average"] * 20_000) + "]"}, "at most 10000 characters"),
    "a polynomial": ({"pool": f"covariance | polynomial({','.join('1' * 20_000)}) | triu"}, "at most 10000 characters"),
    "many stages": ({"stage": ",".join(f"{'0' * i}1" for i in range(99))}, "at most 16 stages .* got 99"),
    "many named stages": (
        {"pool": f"[{', '.join(f'stage({i}) | average' for i in range(99))}]"},
        "at most 16 stages .* got 99",
    ),
    "no channels": ({"channels": "²"}, "Expected a number of channels"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_description_is_refused_before_memory_is_taken(
    saved: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    change, message = HOSTILE[case]
    path = saved / "config.json"
    description = json.loads(path.read_text())
    description["model"] |= change
    path.write_text(json.dumps(description))
    if case not in ("a series", "iterations", "wide reductions"):  # refused by the stages, which need a small network
        monkeypatch.setattr("polycov.models.backbones.create_network", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(polycov.PolycovError, match=message) as refused:
        polycov.Model.from_pretrained(saved)
    assert "config.json" in str(refused.value)


def test_large_preprocessing_is_refused(saved: Path) -> None:
    path = saved / "config.json"
    description = json.loads(path.read_text())
    description["preprocessing"] |= {"size": 6000, "resize": 6000}
    path.write_text(json.dumps(description))
    with pytest.raises(polycov.PolycovError, match=r"config\.json .* from 8 to 4096 pixels, got 6000"):
        polycov.Model.from_pretrained(saved)


def test_a_network_beyond_the_memory_of_the_machine_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert polycov.Model.from_pretrained(saved).classes == ["oak", "ash", "elm"]
    monkeypatch.setattr(bounds, "total_memory", lambda: 2**20)
    with pytest.raises(polycov.PolycovError, match=r"'test_resnet' takes 0 GB, more than half of"):
        polycov.Model.from_pretrained(saved)
