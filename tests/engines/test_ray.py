"""A real Ray cluster of three nodes on this machine: results as of one process, a killed node, a resumed run."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.counting_work import Squares
from fake_images import make_image, write_data
from polycov.comparing.compare import compare
from polycov.data import read_data
from polycov.data.transforms import Preprocessing
from polycov.engines.engine import Engine, EngineOptions
from polycov.errors import PolycovError
from polycov.inference.embed import embed
from polycov.progress import LogProgress
from polycov.system.json_files import read_json_lines
from polycov.training.config import NetworkOptions
from polycov.training.features import build_backbone, extract_features

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

NETWORK: dict[str, Any] = {"backbone": "test_resnet", "weights": "none", "stage": 2, "size": 64, "workers": 0}
VOLATILE = ("seconds", "pool_ms")
SMALL: dict[str, Any] = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
PATIENCE = 150  # seconds after which a test that hangs is ended


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, which computes nothing, and two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    signal.alarm(PATIENCE)
    before = dict(os.environ)
    tests = str(Path(__file__).parents[1])
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_enable_metrics_collection": "0"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, before.get("PYTHONPATH", "")]))
    head = {"num_cpus": 0, "_system_config": {"health_check_period_ms": 500, "health_check_failure_threshold": 4}}
    running = Cluster(initialize_head=True, head_node_args={**head, **SMALL})
    try:
        for _ in range(2):
            running.add_node(num_cpus=1, **SMALL)
        os.environ["RAY_ADDRESS"] = running.address
        ray.init(address=running.address, log_to_driver=False, logging_level="error")
        signal.alarm(0)
        yield running
    finally:
        signal.alarm(0)
        ray.shutdown()
        running.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "trees", train=12, test=6)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the tasks have, so that sums are in the same order
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Ends a test that hangs."""

    def give_up(*_: object) -> None:
        raise TimeoutError("The cluster hangs.")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def records(folder: Path) -> dict[Any, Any]:
    rows = list(read_json_lines(folder / "records.jsonl"))
    for row in rows:
        for name in VOLATILE:
            row.pop(name, None)
            row["measurement"].pop(name, None)
    return {(row["method"], row["dim"], row["seed"]): row for row in rows}


@pytest.mark.usefixtures("cluster")
def test_tasks_run_on_the_nodes_and_an_actor_that_dies_is_replaced(tmp_path: Path) -> None:
    with Engine(EngineOptions(engine="ray")) as engine:
        found = list(engine.run(Squares(tmp_path, deadly=5), range(9)))
        assert sorted(value for value, _ in found) == sorted([*range(9), *(number**2 for number in range(9))])
        assert len({pid for _, pid in found}) >= 2
        again = list(engine.run(Squares(tmp_path), range(4)))
        assert {pid for _, pid in again} & {pid for _, pid in found}  # actors stay for other work
        with pytest.raises(PolycovError, match="2 is wrong"):
            list(engine.run(Squares(tmp_path, wrong=2), range(4)))
    with Engine(EngineOptions(engine="ray", task_cpus=2.0)) as engine:
        sentence = "No machine of the Ray cluster has 2 CPUs and 0 GPUs"
        with pytest.raises(PolycovError, match=sentence):
            list(engine.run(Squares(tmp_path), range(2)))


@pytest.mark.usefixtures("cluster")
def test_embeddings_are_those_of_one_process_and_resume(data: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for i in range(20):
        make_image(i % 3, i).save(images / f"{i:02d}.png")
    (images / "07.png").write_text("not an image")
    options = {**NETWORK, "shard_size": 4, "batch_size": 3, "broken": "skip", "format": "npz", "dtype": "int8"}
    alone = embed("ipccp-ts", images, tmp_path / "alone", dim=32, **options)
    shared = embed("ipccp-ts", images, tmp_path / "shared", dim=32, engine="ray", **options)
    assert shared.skipped == alone.skipped
    assert [Path(name).name for name in shared.skipped] == ["07.png"]
    for one, other in zip(alone, shared, strict=True):
        assert one.names == other.names
        assert np.array_equal(one.features, other.features)
        assert np.array_equal(one.scales, other.scales)  # type: ignore[arg-type]
    parts = sorted((tmp_path / "shared").glob("part-*"))
    content = parts[2].read_bytes()
    moments = [part.stat().st_mtime_ns for part in parts]
    parts[2].unlink()
    assert embed("ipccp-ts", images, tmp_path / "shared", dim=32, engine="ray", **options) == shared
    assert parts[2].read_bytes() == content
    assert [part.stat().st_mtime_ns == moment for part, moment in zip(parts, moments, strict=True)].count(False) == 1


@pytest.mark.usefixtures("cluster")
def test_features_are_those_of_one_process(data: Path, tmp_path: Path) -> None:
    images = read_data(str(data))
    backbone = build_backbone(NetworkOptions("test_resnet", "none", 2), 64)
    alone, shared = (
        extract_features(backbone, images, Preprocessing(64, 64), tmp_path / name, channels=7, workers=0, engine=engine)
        for name, engine in (("alone", None), ("shared", Engine(EngineOptions(engine="ray"))))
    )
    assert shared.basis is not None
    samples = images.all_samples()
    indices = range(len(samples))
    assert torch.equal(alone.coordinates.features(samples, indices), shared.coordinates.features(samples, indices))
    assert next(shared.folder.glob("shard-*")).read_bytes() == next(alone.folder.glob("shard-*")).read_bytes()


TINY: dict[str, Any] = {**NETWORK, "channels": 12, "explain": False, "quantize": False}


def test_a_node_killed_in_the_middle_costs_time_only(cluster: Any, data: Path, tmp_path: Path) -> None:
    """A comparison loses one of two nodes, and has the records of one process; a second run only adds to them."""
    options = {**TINY, "methods": ("average", "isqrt-cov", "ipccp-ts", "ipccp-rm"), "dims": (8, 16, 32), "seeds": 5}
    compare(data, out=tmp_path / "alone", cache=tmp_path / "cache", **options)
    lines: list[str] = []
    done_before: list[int] = []

    def kill_a_node() -> None:
        while len(records(tmp_path / "shared")) < 6:
            time.sleep(0.02)
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        done_before.append(len(records(tmp_path / "shared")))

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    progress = LogProgress(lines.append, seconds=0.0)
    compare(data, out=tmp_path / "shared", cache=tmp_path / "other", engine="ray", progress=progress, **options)
    killer.join()
    assert 6 <= done_before[0] < 40
    assert records(tmp_path / "shared") == records(tmp_path / "alone")
    assert any(line.startswith("settings: ") for line in lines)  # one process speaks
    before = (tmp_path / "shared" / "records.jsonl").read_bytes()
    more = {**options, "seeds": 6}
    assert len(compare(data, out=tmp_path / "shared", cache=tmp_path / "other", engine="ray", **more).records) == 48
    assert (tmp_path / "shared" / "records.jsonl").read_bytes().startswith(before)


def test_an_embedding_loses_a_node_in_the_middle(cluster: Any, tmp_path: Path) -> None:
    for i in range(400):
        make_image(i % 3, i).save(tmp_path / f"{i:03}.png")
    options: dict[str, Any] = {**NETWORK, "shard_size": 4, "dim": 32, "format": "npz"}
    alone = embed("ipccp-ts", tmp_path, tmp_path / "alone", **options).load()
    node = cluster.add_node(num_cpus=1, **SMALL)
    cluster.wait_for_nodes()
    done_before: list[int] = []

    def kill_a_node() -> None:
        while len(list((tmp_path / "shared").glob("part-*.npz"))) < 5:
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        done_before.append(len(list((tmp_path / "shared").glob("part-*.npz"))))

    killer = threading.Thread(target=kill_a_node)
    killer.start()
    shared = embed("ipccp-ts", tmp_path, tmp_path / "shared", engine="ray", **options)
    killer.join()
    assert 5 <= done_before[0] < 100
    assert shared.shards == 100
    assert shared.load()[0] == alone[0]
    assert np.array_equal(shared.load()[1], alone[1])


@pytest.mark.usefixtures("cluster")
def test_a_trained_setting_comes_back_with_its_run(data: Path, tmp_path: Path) -> None:
    options = {**TINY, "methods": ("average",), "dims": (8,), "seeds": 1, "head": "train", "epochs": 1}
    compare(data, out=tmp_path / "alone", cache=tmp_path / "cache", **options)
    compare(data, out=tmp_path / "shared", cache=tmp_path / "other", engine="ray", **options)
    runs = {name: tmp_path / name / "runs" / "average_own_0" for name in ("alone", "shared")}
    one, other = ((run / "predictions.json").read_bytes() for run in runs.values())
    assert one == other
    assert (runs["shared"] / "model.safetensors").is_file()
    (alone,), (shared,) = (records(tmp_path / name).values() for name in ("alone", "shared"))
    assert shared["measurement"].pop("run") == str(runs["shared"])
    alone["measurement"].pop("run")
    assert shared == alone
