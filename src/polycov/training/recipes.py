"""Recipes: options of published experiments in TOML, in the package or in a file of your own."""

from pathlib import Path

from polycov.errors import PolycovError, known

FOLDER = Path(__file__).parents[1] / "recipes"


def list_recipes() -> list[str]:
    """Returns the names of the recipes in the package.

    Examples:
        >>> "cub-resnet50" in list_recipes()
        True
    """
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_recipe(name: Path) -> Path:
    """Returns the file of a recipe: that of the given path, or one of the package by its bare name.

    Raises:
        PolycovError: if there is no such file and no recipe of that name.

    Examples:
        >>> find_recipe(Path("cub-resnet50")).name
        'cub-resnet50.toml'
    """
    if name.exists():
        return name
    if str(name) in list_recipes():
        return FOLDER / f"{name}.toml"
    raise PolycovError(f"There is no recipe {str(name)!r}, as a file or by name. {known(name.stem, list_recipes())}")
