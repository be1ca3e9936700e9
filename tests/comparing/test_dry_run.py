from pathlib import Path

import pytest

from polycov.commands.main import main
from polycov.comparing.dry_run import plan_comparison
from polycov.comparing.options import CompareOptions
from polycov.data.read import read_data
from polycov.training.config import NetworkOptions, replace_options
from polycov.training.features import build_backbone

TINY = {"backbone": "test_resnet", "weights": "none", "size": 64, "stage": 2, "channels": 12, "workers": 0}


def options(trees: Path, **changes: object) -> CompareOptions:
    chosen: CompareOptions = replace_options(CompareOptions(str(trees), dims=(8, 16), seeds=3), {**TINY, **changes})
    return chosen


def test_the_plan_of_a_probe_has_the_settings_and_the_disk_of_the_comparison(trees: Path, tmp_path: Path) -> None:
    methods = ("average", "average-last", "isqrt-cov", "ipccp-ts", "ipccp-fit")
    plan = plan_comparison(options(trees, methods=methods, out=tmp_path / "cmp"))
    assert len(plan.settings) == 3 * (3 + 2 * 2)
    assert plan.seconds > 0
    backbone = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    images = len(read_data(trees).all_samples())
    assert plan.bytes == 2 * images * backbone.num_features * backbone.locations(64)
    assert not (tmp_path / "cmp").exists()
    words = plan.words()
    assert words[0].startswith("data: trees, 3 classes, images: ")
    assert words[1] == f"settings: 21, of {', '.join(methods)} at 8, 15, 16 dimensions, 3 seeds"  # fitted to 15 images


@pytest.mark.parametrize("head", ["probe", "train"])
def test_methods_with_fits_are_planned(trees: Path, tmp_path: Path, head: str) -> None:
    spec = "[average | project(2), covariance | sqrt(5) | triu | balance] | l2 | balance | signed_sqrt | project(3)"
    methods = ("mean-cov", "mean-cov-fit", "auto-fit", spec)
    plan = plan_comparison(options(trees, methods=methods, head=head, seeds=1, out=tmp_path / "cmp"))
    assert {setting.method for setting in plan.settings} == set(methods)
    assert plan.seconds > 0


@pytest.mark.parametrize("head", ["train", "finetune"])
def test_the_plan_of_training_counts_its_steps(trees: Path, head: str) -> None:
    plan = plan_comparison(options(trees, methods=("isqrt-cov", "ipccp-fit"), head=head, epochs=4, seeds=1))
    assert [line.partition(",")[0] for line in plan.steps] == [
        "isqrt-cov: 1 runs × 4 epochs",
        f"ipccp-fit: {len(plan.settings) - 1} runs × 4 epochs",
    ]
    assert plan.seconds > 0
    assert plan.bytes > 0


def test_the_command_only_says_what_it_would_do(
    trees: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(trees), "--dry-run", "--methods", "average", "isqrt-cov", "--out", str(tmp_path / "cmp")]
    for name, value in TINY.items():
        words += [f"--{name}", str(value)]
    main(words)
    shown = capsys.readouterr().out
    assert "settings: 10, of average, isqrt-cov, 5 seeds" in shown
    assert "disk: about" in shown
    assert not (tmp_path / "cmp").exists()
