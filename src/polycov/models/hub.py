"""The Hugging Face hub: the one place where huggingface_hub is imported, and the download of models."""

from pathlib import Path
from typing import Any

from polycov.errors import MissingDependencyError, PolycovError
from polycov.models.model_folder import ModelFolder

try:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin, hf_hub_download
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )
except ImportError as error:
    raise MissingDependencyError(
        f"Models need huggingface_hub ({error}). Install it with: pip install 'polycov[train]'"
    ) from error

__all__ = ["EvalResult", "ModelCard", "ModelCardData", "ModelHubMixin", "find_model_folder"]


def find_model_folder(name: str | Path, **options: Any) -> ModelFolder:
    """Returns the folder of a model: the one given, or a download of the model with this name on the hub.

    Args:
        name: a folder, or a name on the hub such as "me/birds".
        options: options of the download.

    Raises:
        PolycovError: if there is no such folder or model.
    """
    path, name = Path(name), str(name)
    if path.is_dir():
        return ModelFolder(path)
    nested = str(path.parent) != "." and path.parent.is_dir()
    if path.exists() or nested or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise PolycovError(f"There is no folder {name!r}. Expected a folder, or a name on the hub such as 'me/birds'.")
    try:
        files = [hf_hub_download(name, file, **options) for file in (ModelFolder.CONFIG, ModelFolder.WEIGHTS)]
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PolycovError(f"There is no folder {name!r}, and no such model on the hub: {reason}") from error
    return ModelFolder(Path(files[0]).parent)
