import json
import os
import platform
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from polycov.system import environment
from polycov.system.environment import hardware, total_memory, versions


def test_versions_are_plain_strings() -> None:
    installed = versions()
    assert installed["python"] == platform.python_version()
    assert installed["torch"] == torch.__version__
    assert {"numpy", "pillow"} <= set(installed)
    assert all(type(version) is str for version in installed.values())
    assert json.loads(json.dumps(installed)) == installed


def test_packages_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "timm":
            raise PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(environment, "version", version)
    assert "timm" not in versions()
    assert versions()["accelerate"] == "1.2"


@pytest.mark.parametrize(("threads", "text"), [(1, "1 thread"), (4, "4 threads")])
def test_the_processor_and_its_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int, text: str
) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast CPU 9000\nmodel name\t: Other\n")
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert hardware() == f"Fast CPU 9000, {text}"
    assert hardware(torch.device("cpu")) == hardware("cpu")


@pytest.mark.parametrize(
    ("name", "text"), [("AMD EPYC", "AMD EPYC family 25 model 17"), ("AMD EPYC 9654", "AMD EPYC 9654")]
)
def test_a_name_without_a_number_says_little(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {name}\n")
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "cpuinfo")
    assert hardware().startswith(f"{text}, ")


@pytest.mark.parametrize("content", [None, "processor : 0\n"])
def test_a_processor_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "cpuinfo").write_text(content)
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert hardware().startswith("arm64, ")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda:1")])
def test_the_name_of_the_gpu(monkeypatch: pytest.MonkeyPatch, device: str | torch.device) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {torch.device(device).index}")
    assert hardware(device) == f"GPU {torch.device(device).index}"


def test_total_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = pytest.importorskip("psutil")
    memory = total_memory()
    assert memory == pytest.approx(psutil.virtual_memory().total, rel=0.01)
    monkeypatch.delattr(os, "sysconf")  # as on Windows
    assert total_memory() == pytest.approx(memory, rel=0.01)
