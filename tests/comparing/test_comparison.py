"""Whole comparisons, as a user starts them."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pictures import write_classes, write_data
from polycov.bench.tour import kernel_error as kernel_error_of_the_tour
from polycov.commands.main import main
from polycov.comparing.grid import Setting
from polycov.comparing.measure import kernel_error, pack, unpack
from polycov.pooling.methods import create_pool
from polycov.system.files import read_json_lines

TINY = ["--backbone", "test_resnet", "--weights", "none", "--size", "64", "--stage", "2", "--channels", "12"]
TINY += ["--workers", "0", "--methods", "average,isqrt-cov,fewer-channels,ipccp-ts,ipccp-fit", "--dims", "8,16"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=12, test=6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def results(folder: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    rows = list(read_json_lines(folder / "records.jsonl"))
    keys = [(row["method"], row["dim"], row["seed"]) for row in rows]
    assert len(keys) == len(set(keys))  # none twice
    return {key: (row["test_right"], row["val_right"]) for key, row in zip(keys, rows, strict=True)}


def test_a_comparison_is_complete_goes_on_and_grows(
    trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(trees), *TINY, "--out", str(tmp_path / "cmp")]
    main([*arguments, "--seeds", "1"])
    first = results(tmp_path / "cmp")
    assert len(first) == 8
    main([*arguments, "--seeds", "2"])  # only the second seed is left to do
    both = results(tmp_path / "cmp")
    assert len(both) == 16
    assert {key: both[key] for key in first} == first
    for record in read_json_lines(tmp_path / "cmp" / "records.jsonl"):
        assert record["stored"]["float16"] == pytest.approx(record["test_accuracy"], abs=0.06)  # one of 18 pictures
    row = next(iter(read_json_lines(tmp_path / "cmp" / "records.jsonl")))
    for name in ("spec", "seed", "val_accuracy", "test_accuracy", "pool_ms", "bytes", "versions", "hardware", "head"):
        assert row[name] is not None, name
    out = capsys.readouterr().out
    assert "Use " in out
    assert "a quarter of the bytes as int8" in " ".join(out.split())
    assert "report.html" in out
    for file in ("report.html", "tables/comparison.csv", "tables/comparison.tex", "figures/accuracy-dimensions.svg"):
        assert (tmp_path / "cmp" / file).stat().st_size > 500, file
    table = (tmp_path / "cmp" / "tables" / "comparison.csv").read_text().splitlines()
    assert len(table) == 1 + 8
    main(["report", str(tmp_path / "cmp"), "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "report.html").is_file()


def test_a_killed_comparison_goes_on_and_jobs_share_it(trees: Path, tmp_path: Path) -> None:
    arguments = ["compare", str(trees), *TINY, "--seeds", "3"]
    main([*arguments, "--out", str(tmp_path / "whole")])
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "polycov", *arguments, "--out", str(broken)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(read_json_lines(broken / "records.jsonl"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = results(broken)
    assert 5 <= len(done) < 24
    subprocess.run([*command, "--jobs", "2"], check=True, stdout=subprocess.DEVNULL, timeout=240)
    found, expected = results(broken), results(tmp_path / "whole")
    assert found.keys() == expected.keys()
    assert {key: found[key] for key in done} == done  # what was done stayed


@pytest.mark.parametrize("head", ["train", "finetune"])
def test_other_heads_train(trees: Path, tmp_path: Path, head: str) -> None:
    given = [*TINY[:-4], "--methods", "average,ipccp-ts", "--dims", "16", "--seeds", "1", "--epochs", "1"]
    main(["compare", str(trees), *given, "--head", head, "--out", str(tmp_path / "cmp")])
    assert set(results(tmp_path / "cmp")) == {("average", None, 0), ("ipccp-ts", 16, 0)}
    assert all(row["pool_ms"] > 0 for row in read_json_lines(tmp_path / "cmp" / "records.jsonl"))
    assert (tmp_path / "cmp" / "runs" / "ipccp-ts_16_0" / "model.safetensors").is_file()


def test_the_processes_of_accelerate_launch_share_a_comparison(trees: Path, tmp_path: Path) -> None:
    given = [*TINY[:-4], "--methods", "average,gem,ipccp-ts", "--dims", "8,16", "--seeds", "1", "--epochs", "1"]
    several = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    several += ["--dynamo_backend", "no", "--main_process_port", "0"]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", *several, "-m", "polycov"]
    command = [*launcher, "compare", str(trees), *given, "--head", "train", "--out", str(tmp_path / "cmp")]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path / "cmp")) == 4
    assert done.stdout.count("report.html") == 1  # one of them tells


def fails(*arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return str(stopped.value.code)


def test_wrong_input_ends_in_one_sentence_and_leaves_what_was_done(
    trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails("compare", "nowhere").startswith("polycov: There is no folder 'nowhere'")
    write_classes(tmp_path / "one", ["alone"], 4)
    assert "Expected at least two classes" in fails("compare", "one")
    write_classes(tmp_path / "same", ["Robin", "robin "], 4)
    assert "Expected classes of different names" in fails("compare", "same")
    write_classes(tmp_path / "text", ["a", "b"], 4)
    (tmp_path / "text" / "a" / "x.jpg").write_text("no picture")
    assert "1 of 9 pictures cannot be read: a/x.jpg" in fails("compare", "text")
    assert "Expected seeds to be at least 1" in fails("compare", trees, "--seeds", "0")
    assert "Expected channels to be at least 1" in fails("compare", trees, *TINY, "--channels", "-3")
    assert "Expected size of pictures from 8" in fails("compare", trees, *TINY, "--size", "0")
    assert "There are no validation pictures" in fails("compare", trees, *TINY, "--val-fraction", "0")
    assert "GB, and there are" in fails("compare", trees, *TINY, "--dims", "2000000000")
    assert "Nothing is left to compare" in fails("compare", trees, *TINY, "--methods", "ipccp-fit", "--dims", "4096")
    assert "is not a comparison" in fails("report", trees)
    main(["compare", str(trees), *TINY, "--seeds", "1", "--out", "cmp"])
    said = fails("compare", trees, *TINY, "--seeds", "1", "--out", "cmp", "--channels", "10")
    assert "holds a comparison with channels 12, not 10. Choose another --out" in said
    before = results(Path("cmp"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("polycov.comparing.comparison.append_json_lines", full)
    said = fails("compare", trees, *TINY, "--seeds", "2", "--out", "cmp")
    assert said == "polycov: [Errno 28] No space left on device"
    assert results(Path("cmp")) == before


def test_rightness_survives_its_packing() -> None:
    right = torch.rand(37, generator=torch.Generator().manual_seed(0)) > 0.3
    np.testing.assert_array_equal(unpack(pack(right), 37), right.numpy())


def test_the_kernel_error_is_that_of_the_definition() -> None:
    tokens = torch.randn(20, 30, 6, generator=torch.Generator().manual_seed(0))
    compact = create_pool("ipccp-ts", 6, dim=16)(tokens)
    full = create_pool("isqrt-cov", 6)(tokens)
    found = kernel_error(Setting("ipccp-ts", 16, 0), compact, tokens)
    assert found == pytest.approx(kernel_error_of_the_tour(compact, full), rel=1e-6)
    assert kernel_error(Setting("average", None, 0), compact, tokens) is None


def test_the_command_is_in_the_record(trees: Path, tmp_path: Path) -> None:
    main(["compare", str(trees), *TINY, "--seeds", "1", "--out", str(tmp_path / "cmp")])
    config = json.loads((tmp_path / "cmp" / "config.json").read_text())
    assert config["command"].startswith("polycov")
    assert config["counts"] == {"train": 30, "val": 6, "test": 18}


def test_pictures_that_changed_are_not_mixed_with_records_of_others(tmp_path: Path) -> None:
    data = write_data(tmp_path / "trees", train=8, test=4)
    arguments = ["compare", str(data), *TINY, "--seeds", "1", "--out", str(tmp_path / "cmp")]
    main([*arguments, "--methods", "average"])
    main([*arguments, "--methods", "gem", "--val-fraction", "0.20"])
    some = next((data / "test").rglob("*.jpg"))
    some.write_bytes(next((data / "train").rglob("*.jpg")).read_bytes())
    assert "holds a comparison with other pictures" in fails(*arguments, "--methods", "isqrt-cov")
    assert {key[0] for key in results(tmp_path / "cmp")} == {"average", "gem"}


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_stopping_the_first_process_stops_its_helpers(trees: Path, tmp_path: Path, sign: int) -> None:
    command = [sys.executable, "-m", "polycov", "compare", str(trees), *TINY, "--seeds", "400", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "cmp")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(list(read_json_lines(tmp_path / "cmp" / "records.jsonl"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(sign)
    _, said = process.communicate(timeout=60)
    assert said.decode().strip() == "polycov: stopped. The same command goes on where it was."
    done = len(results(tmp_path / "cmp"))
    time.sleep(1.0)
    assert 5 <= len(results(tmp_path / "cmp")) == done < 3200


def test_the_backbone_limits_the_channels_and_few_pictures_the_components(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_data(tmp_path / "trees", train=3, test=2)
    given = [*TINY[:6], "--workers", "0", "--stage", "2", "--seeds", "1", "--out", str(tmp_path / "cmp")]
    main(["compare", str(data), *given, "--methods", "isqrt-cov,fewer-channels,ipccp-fit", "--dims", "10,2000,3000"])
    rows = list(read_json_lines(tmp_path / "cmp" / "records.jsonl"))
    assert {(row["method"], row["dim"]) for row in rows} == {("isqrt-cov", None), ("fewer-channels", 10)}
    assert (
        "left out: ipccp-fit at 10, 2000, 3000: a projection needs as many training pictures" in capsys.readouterr().out
    )
