from pathlib import Path

import pytest

from polycov.bench.memory import CLASSES, SPECS, generate_store, judge, memory
from polycov.system import rows
from polycov.system.memory_budget import UNBOUNDED, Memory


def without_time(steps: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in step.items() if key not in ("seconds", "peak")} for step in steps]


def test_little_memory_judges_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, int]] = []
    original = rows.DiskRows.__init__

    def watched(self: rows.DiskRows, shape: tuple[int, int], folder: Path | None = None) -> None:
        used.append(shape)
        original(self, shape, folder)

    monkeypatch.setattr(rows.DiskRows, "__init__", watched)
    count = 12 * CLASSES
    generate_store(tmp_path, count)
    plenty = without_time(list(judge(tmp_path, count, UNBOUNDED)))
    assert not used
    monkeypatch.setattr("polycov.system.memory_budget.FEATURES", 0.001)
    little = without_time(list(judge(tmp_path, count, Memory(4 * 2**20, tmp_path))))
    assert used
    assert little == plenty


@pytest.mark.slow
def test_a_process_with_a_limit_does_it(tmp_path: Path) -> None:
    found = list(memory(0.0, tmp_path))
    assert [str(row["what"]).partition(",")[0] for row in found] == ["generate", *SPECS]
    assert found[-1]["test_accuracy"] > 0.5
    assert 100 < found[-1]["peak_mib"] < 2048
    assert not [*tmp_path.iterdir()]
