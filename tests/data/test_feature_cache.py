import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import fails
from polycov.commands.main import main
from polycov.data.feature_cache import DAY, list_stores, remove_stores, select_stores
from polycov.errors import PolycovError
from polycov.progress import LogProgress
from polycov.system.files import cache_folder
from small_store import COUNT, IDENTITY, SHARD, fill, make_store, open_store, shard_path, stored


def two_stores(cache: Path) -> None:
    """A complete one, and one of another network that was interrupted after a shard."""
    make_store(cache)
    other = open_store(cache, {**IDENTITY, "backbone": "huge"})
    other.write(range(SHARD), stored(open_store(cache))[:SHARD])


def test_stores_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    two_stores(tmp_path)
    stores = {store.what: store for store in list_stores(tmp_path)}
    assert set(stores) == {"features of tiny: 3 × 2 × 2", "features of huge: 3 × 2 × 2"}
    tiny, huge = stores["features of tiny: 3 × 2 × 2"], stores["features of huge: 3 × 2 × 2"]
    assert (tiny.images, tiny.stored, tiny.complete) == (COUNT, COUNT, True)
    assert (huge.images, huge.stored, huge.complete) == (COUNT, SHARD, False)
    assert tiny.bytes == sum(path.stat().st_size for path in tiny.folder.iterdir())
    assert 0 <= tiny.days < 0.1


def test_an_empty_cache_has_no_stores(tmp_path: Path) -> None:
    assert list_stores(tmp_path) == []


def test_the_last_use_is_the_last_time_it_was_opened(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for path in store.folder.iterdir():
        os.utime(path, (time.time() - 10 * DAY,) * 2)
    assert list_stores(tmp_path)[0].days == pytest.approx(10, abs=0.1)
    open_store(tmp_path)
    assert list_stores(tmp_path)[0].days < 0.1


def test_damage_is_found_and_nothing_is_changed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert list_stores(tmp_path)[0].problems() == {}
    content = bytearray(shard_path(store, 1).read_bytes())
    content[-3] ^= 1
    shard_path(store, 1).write_bytes(content)
    shard_path(store, 2).unlink()
    before = sorted(store.folder.iterdir())
    problems = list_stores(tmp_path)[0].problems()
    assert problems["shard-000001.npy"] == "wrong checksum"
    assert "missing" in problems["shard-000002.npy"]
    assert sorted(store.folder.iterdir()) == before


def test_stores_are_chosen(tmp_path: Path) -> None:
    two_stores(tmp_path)
    stores = list_stores(tmp_path)
    tiny = next(store for store in stores if "tiny" in store.what)
    assert select_stores(stores, names=[tiny.name[:8]]) == select_stores(stores, names=["tiny"]) == [tiny]
    assert tiny not in select_stores(stores, incomplete=True)
    assert select_stores(stores, older_than=1) == []
    assert len(select_stores(stores, older_than=-1)) == 2
    with pytest.raises(PolycovError, match="No store matches 'zzz'"):
        select_stores(stores, names=["zzz"])


def test_a_store_in_use_is_never_removed(tmp_path: Path) -> None:
    program = f"""if True:
        import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from small_store import make_store
        store = make_store(Path({str(tmp_path)!r}))
        print("open", flush=True)
        sys.stdin.readline()"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    lines: list[str] = []
    stores = list_stores(tmp_path)
    assert remove_stores(stores, LogProgress(lines.append)) == []
    assert "is in use and is kept" in lines[0]
    assert len(list_stores(tmp_path)) == 1
    child.communicate("\n")
    assert remove_stores(stores) == stores
    assert not [*(tmp_path / "features").iterdir()]
    assert fill(open_store(tmp_path)) == list(range(COUNT))  # and is computed again


def test_a_store_of_unknown_origin_can_be_removed_and_what_a_kill_left_too(tmp_path: Path) -> None:
    (tmp_path / "features" / "odd").mkdir(parents=True)
    (tmp_path / "features" / ".removed-0123").mkdir()
    [store] = list_stores(tmp_path)
    assert not store.complete
    assert store.problems() == {"identity.json": "missing or damaged"}
    assert remove_stores([store]) == [store]
    assert not [*(tmp_path / "features").iterdir()]


def test_the_command_lists_checks_and_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYCOV_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    two_stores(tmp_path)
    main(["cache", "--verify"])
    shown = capsys.readouterr().out
    assert "2 stores" in shown
    assert f"{SHARD} of {COUNT}" in shown
    assert "All files have their checksums." in shown
    assert "Choose what to remove" in fails("cache", "--prune")
    assert "add --yes" in fails("cache", "--prune", "--incomplete")
    main(["cache", "--prune", "--incomplete", "--yes"])
    assert "1 stores removed" in capsys.readouterr().out
    [store] = list_stores(tmp_path)
    assert store.complete
    next(store.folder.glob("shard-*")).write_bytes(b"damaged")
    with pytest.raises(SystemExit) as ended:
        main(["cache", "tiny", "--verify"])
    assert ended.value.code == 1
    assert "1 files are damaged" in capsys.readouterr().out
