from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polycov.errors import PolycovError
from polycov.system import environment
from polycov.system.environment import free_memory, total_memory
from polycov.system.memory_budget import Memory, format_size, parse_size
from polycov.system.rows import Batches, DiskRows, read_blocks


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4 * 2**30), ("1.5g", 3 * 2**29), (" 10 MiB ", 10 * 2**20), ("7", 7), ("2kb", 2048)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0", "-1GB", "4 XB", "1e9", "²GB", "nan", "9" * 400])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(PolycovError, match="such as 4GB or 500MB"):
        parse_size(text)


def test_the_size_to_ask_for_is_enough() -> None:
    with pytest.raises(PolycovError, match=r"needs matrices of 1000 × 1000 numbers") as error:
        Memory(1_000_000).require_matrix(1000, "A probe")
    wanted = str(error.value).partition("--memory ")[2].partition(" ")[0]
    Memory(parse_size(wanted)).require_matrix(1000, "A probe")
    assert parse_size(format_size(2**31 + 1)) > 2**31


def test_half_of_what_is_free_is_used_by_default() -> None:
    assert 0 < Memory.of(None).limit < total_memory()
    assert Memory.of("2GB").part(4).limit == 2**29


def test_a_container_has_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 500000\nactive_file 7\n")
    monkeypatch.setattr(environment, "CONTAINER", ((tmp_path, "memory.max", "memory.current"),))
    assert free_memory() == 1_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 3_000_000


def test_rows_on_disk_are_those_written(tmp_path: Path) -> None:
    expected = torch.randn(10, 3)
    disk = Memory(40, tmp_path).rows(10, 3)
    assert isinstance(disk, DiskRows)
    for begin in (4, 0, 8):
        disk[begin : begin + 4] = expected[begin : begin + 4]
    torch.testing.assert_close(disk[:], expected, rtol=0, atol=0)
    torch.testing.assert_close(disk[torch.tensor([[7, 1], [1, 9]])], expected[torch.tensor([[7, 1], [1, 9]])])
    assert (len(disk), disk.shape, len(disk[20:])) == (10, (10, 3), 0)
    with pytest.raises(ValueError, match="expected"):
        disk[0:2] = expected
    torch.testing.assert_close(torch.cat([*read_blocks([disk, expected], 4)]), torch.cat([expected, expected]))
    assert isinstance(Memory(10_000, tmp_path).rows(10, 3), torch.Tensor)
    assert not [*tmp_path.iterdir()]  # files without a name


def test_a_disk_that_is_too_small_is_noticed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycov.system.rows.shutil.disk_usage", lambda folder: type("Usage", (), {"free": 100}))
    with pytest.raises(PolycovError, match=r"take 0.0 GB, .* Use more --memory"):
        DiskRows((10, 3), tmp_path)


def test_batches_are_made_once_or_anew() -> None:
    made: list[int] = []

    def make() -> Iterator[torch.Tensor]:
        for i in range(3):
            made.append(i)
            yield torch.tensor(i)

    for keep, count in ((True, 3), (False, 6)):
        made.clear()
        batches = Batches(make, keep=keep)
        assert [int(x) for x in batches] == [int(x) for x in batches] == [0, 1, 2]
        assert len(made) == count
