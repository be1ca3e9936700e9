from pathlib import Path

import pytest
from PIL import Image

import polycov
from polycov.models.model_card import method_name, model_card


def test_the_snippet_of_a_card_runs(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (saved / "README.md").read_text(encoding="utf-8")
    Image.new("RGB", (80, 60)).save(tmp_path / "image.jpg")
    monkeypatch.chdir(tmp_path)
    snippet = card.partition("```python\n")[2].partition("```")[0].replace("THIS_MODEL", str(saved))
    names: dict[str, object] = {}
    exec(snippet, names)
    assert tuple(names["probabilities"].shape) == (3,)  # type: ignore[attr-defined]


def test_a_card_states_what_is_known(model: polycov.Model) -> None:
    description = model.describe()
    text = str(model_card(description))
    assert "| data | unknown |" in text
    assert "| test accuracy | not measured |" in text
    assert "license: unknown" in text
    data = {"name": "trees", "images": {"train": 18, "val": 6, "test": 12}}
    result = {"test_accuracy": 0.75, "low": 0.4677, "high": 0.9111, "images": 12}
    text = str(model_card(description | {"data": data, "result": result, "license": "mit"}))
    assert "license: mit" in text
    assert "value: 0.75" in text
    assert "| data | trees: 3 classes; images: 18 train, 6 val, 12 test |" in text
    assert "75.00% on 12 test images (95 % interval: 46.8% to 91.1%)" in text
    assert "`ipccp-fit`" in text
    assert r"covariance \| sqrt(5) \| count_sketch(8192, least=8) \| project(8)" in text
    assert "8 dimensions from 12 channels, seed 0" in text
    assert "Classes: oak, ash, elm" in text


def test_values_of_another_form_are_not_stated(model: polycov.Model) -> None:
    wrong = {"data": {"name": "trees"}, "result": {"test_accuracy": "high"}, "license": 3}
    assert str(model_card(model.describe() | wrong)).count("unknown") == 3  # data, and the licence twice


def test_class_names_cannot_break_the_markdown(model: polycov.Model) -> None:
    text = str(model_card(model.describe() | {"classes": ["a|b", "new\nline <b> \udcff", *map(str, range(300))]}))
    assert r"Classes: a\|b, new line &lt;b>" in text
    assert "197 …" in text


def test_names_cannot_put_links_or_images_into_a_card(model: polycov.Model) -> None:
    names = [
        "![x](http://example.org/x.png)",
        "[click](javascript:1)",
        "<img src=x>",
        "https://example.org",
        "www.x.org",
    ]
    data = {"name": names[0], "images": {names[1]: 3}}
    text = str(model_card(model.describe() | {"classes": names, "data": data, "license": names[3]}))
    body = text.partition("\n---\n")[2]
    for pattern in ("![x]", "[click]", "<img", "http://", "https://", "www.x"):
        assert pattern not in body, pattern
    assert r"\!\[x\](http&#58;//example.org/x.png)" in body


def test_the_method_of_a_spec_is_found_by_its_dimension() -> None:
    for name in ("average", "isqrt-cov", "ipccp-cs", "ipccp-fit"):
        pool = polycov.create_pool(name, 12)
        assert method_name(pool.spec, pool.out_features) == name
    assert method_name("covariance | log(16) | triu", 78) == "covariance | log(16) | triu"
