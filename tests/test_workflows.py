"""The workflows run commands that exist, on the versions of Python that the package names. They are not run here."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_exists(name: str) -> None:
    commands = re.findall(r"- run: (.+)", WORKFLOWS[name])
    assert commands
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in commands:
        program, *words = command.split()
        if program == "make":
            assert re.search(rf"^{words[0]}:", makefile, re.M), command
        else:
            assert (ROOT / program).is_file(), command


def test_the_versions_of_python_are_those_of_the_package() -> None:
    versions = set(re.findall(r'"(3\.\d+)"', re.findall(r"python: (\[.*\])", WORKFLOWS["ci"])[0]))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {text.rpartition(" ")[2] for text in project["classifiers"] if ":: Python :: 3." in text}
    assert versions == named
    assert project["requires-python"] == f">={min(named)}"


def test_changelog_citation_and_package_have_one_version() -> None:
    (version,) = re.findall(r'__version__ = "(.+)"', (ROOT / "src" / "polycov" / "__init__.py").read_text("utf-8"))
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
