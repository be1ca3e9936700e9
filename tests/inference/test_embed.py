import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import polycov
from fake_images import make_image
from polycov.data.transforms import Preprocessing
from polycov.errors import PolycovError
from polycov.inference.embed import embed
from polycov.inference.embedder import EmbedOptions
from polycov.inference.embedding_folder import EmbeddingFolder
from polycov.models.backbones import Backbone
from polycov.progress import LogProgress

SPEC = "covariance | sqrt(5) | tensor_sketch(32)"
SMALL: dict[str, Any] = {"size": 64, "stage": 2, "workers": 0}
RANDOM: dict[str, Any] = {**SMALL, "backbone": "test_resnet", "weights": "none"}


def test_embedding_a_spec_is_the_pool_on_the_backbone(trees: Path, tmp_path: Path) -> None:
    embeddings = embed(SPEC, trees / "test", tmp_path / "features", format="npz", shard_size=4, **SMALL)
    names, features = embeddings.load()
    assert features.shape == (9, 32)
    assert (embeddings.images, embeddings.dimensions, embeddings.shards) == (9, 32, 3)
    backbone = Backbone(stage=2).eval()
    pool = polycov.create_pool(SPEC, backbone.num_features)
    for name, feature in list(zip(names, features, strict=True))[:2]:
        x = Preprocessing(64, 64)(Image.open(name))
        expected = pool(backbone(x[None]))[0].detach().numpy()
        np.testing.assert_allclose(feature, expected, rtol=1e-3, atol=1e-4)


def test_a_pool_that_needs_fitting_says_how(trees: Path, tmp_path: Path) -> None:
    with pytest.raises(PolycovError, match=r"Fit it first, by polycov train FOLDER --probe --pool auto-fit, and embed"):
        embed("auto-fit", trees / "test", tmp_path / "features", **SMALL)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_int8_keeps_a_scale_per_image(trees: Path, tmp_path: Path, kind: str) -> None:
    exact = embed(SPEC, trees / "test", tmp_path / "exact", format=kind, **RANDOM).load()[1]
    (shard,) = embed(SPEC, trees / "test", tmp_path / "small", format=kind, dtype="int8", **RANDOM)
    assert shard.features.dtype == np.int8
    assert shard.scales is not None
    np.testing.assert_allclose(shard.values(), exact, atol=0.501 * float(shard.scales.max()), rtol=0)
    if kind == "parquet":
        table = pq.read_table(tmp_path / "small")
        assert table.column_names == ["name", "feature", "scale"]


@pytest.mark.slow
def test_an_engine_and_processes_that_read_give_the_features_of_plain_torch(tmp_path: Path) -> None:
    for i in range(150):
        make_image(i % 3, i).save(tmp_path / f"{i:03}.png")
    (tmp_path / "017.png").write_text("not an image")
    options: dict[str, Any] = {**RANDOM, "broken": "skip", "shard_size": 40, "batch_size": 7}
    expected = embed(SPEC, tmp_path, tmp_path / "plain", **options, backend="torch").load()
    messages: list[str] = []
    progress = LogProgress(messages.append)
    found = embed(SPEC, tmp_path, tmp_path / "fast", **{**options, "workers": 2}, progress=progress).load()
    assert any("with the pool" in message for message in messages), messages
    assert found[0] == expected[0]
    assert len(found[0]) == 149
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_a_shard_without_readable_images_is_read_back(tmp_path: Path, kind: str) -> None:
    for i in range(5):
        (tmp_path / f"{i}.png").write_text("not an image")
    make_image(0, 0).save(tmp_path / "5.png")
    options: dict[str, Any] = {**RANDOM, "broken": "skip", "shard_size": 3, "format": kind}
    first = embed(SPEC, tmp_path, tmp_path / "features", **options)
    assert [shard.features.shape for shard in first] == [(0, 32), (1, 32)]
    again = embed(SPEC, tmp_path, tmp_path / "features", **options).load()
    assert [Path(name).name for name in again[0]] == ["5.png"]


@pytest.mark.slow
def test_a_method_on_a_random_backbone_resumes_in_another_process(trees: Path, tmp_path: Path) -> None:
    out = tmp_path / "features"
    first = embed("average", trees, out, shard_size=5, **RANDOM).load()[1]
    shard = sorted(out.glob("part-*"))[1]
    shard.unlink()  # as if interrupted
    flags = ["--size", "64", "--stage", "2", "--workers", "0", "--backbone", "test_resnet", "--weights", "none"]
    command = [sys.executable, "-m", "polycov", "embed", "average", str(trees), "-o", str(out), "--shard-size", "5"]
    subprocess.run([*command, *flags], check=True, timeout=120)
    again = embed("average", trees, out, shard_size=5, **RANDOM).load()[1]
    np.testing.assert_allclose(again, first, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_embedding_a_run_resumes_and_helper_processes_share_the_work(
    finished: Path, trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "features"
    names, first = embed(str(finished), trees, out, shard_size=5, workers=0).load()
    assert len(first) == pq.read_table(out).num_rows == 27
    shards = sorted(out.glob("part-*.parquet"))
    for path in (shards[1], shards[3], shards[4]):
        path.unlink()
    kept = shards[0].stat().st_mtime_ns
    again = embed(str(finished), trees, out, shard_size=5, workers=0, jobs=2).load()
    assert again[0] == names
    np.testing.assert_allclose(again[1], first, rtol=1e-3, atol=1e-5)
    assert shards[0].stat().st_mtime_ns == kept
    with pytest.raises(PolycovError, match="another shard_size: 5, not 7"):
        embed(str(finished), trees, out, shard_size=7, workers=0)


def test_a_second_process_on_the_same_folder_is_told_who_writes_it(trees: Path, tmp_path: Path) -> None:
    out = tmp_path / "features"
    with (
        EmbeddingFolder(out).writing(),
        pytest.raises(PolycovError, match=rf"features' is being written by process {os.getpid()}\. Wait"),
    ):
        embed("average", trees / "test", out, **RANDOM)
    assert embed("average", trees / "test", out, **RANDOM).images == 9


def test_unreadable_images_stop_it_or_are_skipped_and_remembered(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        make_image(0, i).save(tmp_path / "in" / f"{i}.png")
    (tmp_path / "in" / "text.png").write_text("not an image")
    options = EmbedOptions(str(finished), (str(tmp_path / "in"),), tmp_path / "out", format="npz", dtype="float16")
    with pytest.raises(PolycovError, match="Skip such images with --broken skip"):
        embed(options, workers=0)
    embeddings = embed(options, workers=0, broken="skip")
    (shard,) = embeddings
    assert [Path(name).name for name in shard.names] == ["0.png", "1.png", "2.png"]
    assert shard.features.dtype == np.float16
    assert [Path(name).name for name in embeddings.skipped] == ["text.png"]
    assert embeddings.images == 3
    assert str(embeddings).startswith("3 images, ")
    assert str(embeddings).endswith("text.png'")
    lines: list[str] = []
    again = embed(options, workers=0, broken="skip", progress=LogProgress(lines.append))
    assert again == embeddings  # the second time too
    assert lines == [f"already complete: {tmp_path / 'out'}"]


def test_the_skipped_images_are_on_disk_before_the_shard(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    make_image(0, 0).save(tmp_path / "in" / "0.png")
    (tmp_path / "in" / "text.png").write_text("not an image")
    options = EmbedOptions(str(finished), (str(tmp_path / "in"),), tmp_path / "out", format="npz")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polycov.inference.embedding_folder.fill_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        embed(options, workers=0, broken="skip")
    assert [Path(name).name for name in EmbeddingFolder(tmp_path / "out").skipped()] == ["text.png"]


def test_damage_and_other_embeddings_are_named(trees: Path, tmp_path: Path) -> None:
    out = tmp_path / "features"
    embed("average", trees / "test", out, format="npz", **RANDOM)
    with pytest.raises(PolycovError, match="another spec: 'average', not 'max'"):
        embed("max", trees / "test", out, format="npz", **{**RANDOM})
    (shard,) = out.glob("part-*.npz")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(PolycovError, match=r"Cannot read the shard .*part-000000\.npz"):
        EmbeddingFolder(out).shards().__next__()
    manifest = json.loads((out / "_embedding.json").read_text())
    (out / "_embedding.json").write_text(json.dumps(manifest | {"images": 2}))
    with pytest.raises(PolycovError, match=r"The image list in .* is damaged"):
        embed("average", trees / "test", out, format="npz", **RANDOM)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_shards_of_another_embedding_are_named_and_made_again(trees: Path, tmp_path: Path, kind: str) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    options: dict[str, Any] = {"format": kind, "shard_size": 5, **RANDOM}
    expected = embed(SPEC, trees / "test", ours, **options).load()
    embed(SPEC, trees / "test", theirs, seed=1, **options)
    (theirs / f"part-000001.{kind}").replace(ours / f"part-000001.{kind}")  # the same names, shape and dtype
    lines: list[str] = []
    again = embed(SPEC, trees / "test", ours, progress=LogProgress(lines.append), **options).load()
    assert lines[0] == f"'{ours / f'part-000001.{kind}'}' is made again: it is of another embedding"
    assert again[0] == expected[0]
    np.testing.assert_array_equal(again[1], expected[1])


def test_a_folder_that_lost_its_description_gives_no_features_of_another_embedding(trees: Path, tmp_path: Path) -> None:
    out = tmp_path / "features"
    embed(SPEC, trees, out, seed=1, format="npz", shard_size=5, **RANDOM)
    (out / "_embedding.json").unlink()
    lines: list[str] = []
    _, features = embed(
        SPEC, trees / "test", out, format="npz", shard_size=5, progress=LogProgress(lines.append), **RANDOM
    ).load()
    expected = embed(SPEC, trees / "test", tmp_path / "new", format="npz", shard_size=5, **RANDOM).load()[1]
    np.testing.assert_array_equal(features, expected)
    assert sorted(path.name for path in out.glob("part-*")) == ["part-000000.npz", "part-000001.npz"]
    assert f"'{out / 'part-000005.npz'}' is removed: it is of another embedding" in lines


def test_an_image_that_was_replaced_is_embedded_again(finished: Path, tmp_path: Path) -> None:
    images, out = tmp_path / "in", tmp_path / "out"
    images.mkdir()
    for i in range(4):
        make_image(0, i).save(images / f"{i}.png")
        os.utime(images / f"{i}.png", (1e9, 1e9))
    os.utime(images / "0.png", (4e9, 4e9))  # the clock of a camera may be wrong
    lines: list[str] = []

    def features() -> Any:
        return embed(str(finished), images, out, shard_size=2, workers=0, progress=LogProgress(lines.append)).load()[1]

    before = features()
    lines.clear()
    assert np.array_equal(features(), before)
    assert lines == [f"already complete: {out}"]
    for part in out.glob("part-*"):
        os.utime(part, (1.1e9, 1.1e9))
    make_image(2, 9).save(images / "3.png")
    lines.clear()
    after = features()
    assert np.array_equal(after[:3], before[:3])
    assert not np.array_equal(after[3], before[3])
    assert [line for line in lines if "made again" in line] == [
        f"{str(out / 'part-000001.parquet')!r} is made again: {str(images / '3.png')!r} has changed since"
    ]


def test_images_that_came_later_are_named(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines: list[str] = []
    for i in range(3):
        make_image(0, i).save(tmp_path / "in" / f"{i}.png")
        if i:
            embed(str(finished), tmp_path / "in", tmp_path / "out", workers=0, progress=LogProgress(lines.append))
    assert lines[0] == (
        f"note: the images have changed since they were listed, first at '{tmp_path / 'in' / '2.png'}'; the embedding "
        "is of those listed. Choose another --out for the images as they are now."
    )
    assert lines[1:] == [f"already complete: {tmp_path / 'out'}"]
