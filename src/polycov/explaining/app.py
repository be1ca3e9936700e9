"""The app: a page where an image is classified, explained and compared with training images, for one run or several."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from polycov.data.image_files import UnreadableImageError, read_image
from polycov.errors import MissingDependencyError, PolycovError
from polycov.explaining import app_html as html
from polycov.explaining.explain import RUNNER_UP, explain
from polycov.explaining.neighbour import Neighbour
from polycov.explaining.training_images import TrainingImages, training_images_of
from polycov.models.model import Model
from polycov.models.model_card import method_name
from polycov.progress import SILENT, Progress
from polycov.system.devices import choose_device

MAX_PIXELS = 64_000_000
NEIGHBOURS = 6
PREDICTED, NOTHING, CLASS = "predicted", "nothing", "class "  # values of the two choices
INSTALL = "Install it with: pip install 'polycov[app]'"


def import_gradio() -> Any:
    """Returns the module gradio, with telemetry off.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError as error:
        raise MissingDependencyError(f"The app needs gradio ({error}). {INSTALL}") from error
    return gradio


@dataclass(frozen=True)
class LoadedRun:
    """A run in the app.

    Attributes:
        name: shown above its results.
        model: of the run.
        training: its training images; None if they are not shown.
    """

    name: str
    model: Model
    training: TrainingImages | None = None

    @property
    def details(self) -> str:
        """Method, size and accuracy."""
        size = self.model.pool.out_features
        parts = [method_name(self.model.pool.spec, size), f"{size} dimensions"]
        if "result" in self.model.about:
            parts.append(f"{self.model.about['result']['test_accuracy']:.1%} on test images")
        return " · ".join(parts)

    def panel(self, image: Image.Image, target: str | None, against: str | None) -> str:
        """Returns what the run says about an image, as HTML; if it cannot, why."""
        try:
            (why,) = explain(self.model, image.copy(), target, against)
            nearest = self._nearest(image)
        except (PolycovError, RuntimeError) as error:  # RuntimeError: out of memory
            return html.heading(self.name, self.details) + html.message(str(error))
        parts = (html.bars(why.probabilities, why.target), html.evidence(why), html.neighbours(nearest, why.target))
        return html.heading(self.name, self.details) + html.body(parts)

    def _nearest(self, image: Image.Image) -> list[Neighbour]:
        """The nearest training images; none if they are not shown."""
        if self.training is None:
            return []
        return self.training.nearest(self.model.preprocessing(image)[None], NEIGHBOURS)[0]


def load_runs(
    runs: Sequence[str | Path], *, device: str = "auto", neighbours: bool = True, progress: Progress = SILENT
) -> list[LoadedRun]:
    """Loads runs for the app.

    Args:
        runs: folders of finished runs or saved models, or names on the hub.
        device: to compute on.
        neighbours: whether to find the nearest training images; a run whose data is not available has none.
        progress: receives messages, and the number of training images embedded.

    Raises:
        PolycovError: if there are no runs, or one cannot be loaded.
    """
    if not runs:
        raise PolycovError("Expected the folder of a run.")
    short = [Path(run).resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run) for run in runs]
    loaded = []
    for run, name in zip(runs, names, strict=True):
        model = Model.from_pretrained(run).to(choose_device(device))
        loaded.append(LoadedRun(name, model, training_images_of(run, model, progress) if neighbours else None))
    return loaded


def answer(runs: Sequence[LoadedRun], upload: dict[str, Any] | None, explained: str, against: str) -> str:
    """Returns what the page shows, as HTML.

    Args:
        runs: to ask.
        upload: the file that was uploaded, as gradio describes it; None for none.
        explained: the class to explain: `PREDICTED`, or `CLASS` followed by a name.
        against: what to compare it with: `NOTHING`, `RUNNER_UP`, or `CLASS` followed by a name.
    """
    if not upload:
        return html.panels([html.heading(run.name, run.details) for run in runs])
    try:
        image = read_image(str(upload.get("path")), "uploaded", max_pixels=MAX_PIXELS)
    except UnreadableImageError as error:
        return html.message(f"This file cannot be read: {error.reason}. Try a JPEG, PNG or WebP file.")
    target = explained.removeprefix(CLASS) if explained.startswith(CLASS) else None
    other = against.removeprefix(CLASS) if against.startswith(CLASS) else RUNNER_UP if against == RUNNER_UP else None
    return html.panels([run.panel(image, target, other) for run in runs])


def make_app(
    runs: Sequence[str | Path], *, device: str = "auto", neighbours: bool = True, progress: Progress = SILENT
) -> Any:
    """Returns the app as a ``gradio.Blocks``; `polycov.explaining.app_server.serve` opens it.

    Args:
        runs: folders of finished runs or saved models, or names on the hub; several are shown side by side.
        device: to compute on.
        neighbours: whether to show the nearest training images.
        progress: receives messages, and the number of training images embedded.

    Raises:
        MissingDependencyError: if gradio is not installed.
        PolycovError: if there are no runs, or one cannot be loaded.
    """
    gradio = import_gradio()
    loaded = load_runs(runs, device=device, neighbours=neighbours, progress=progress)

    def show(upload: dict[str, Any] | None, explained: str, against: str) -> str:
        return answer(loaded, upload, explained, against)

    with gradio.Blocks(title="polycov", analytics_enabled=False, delete_cache=(600, 3600)) as app:
        gradio.HTML(
            '<div class="pc-title"><h1>What does it see?</h1><p>Drop an image, paste one, or use the camera.</p></div>',
            elem_id="title",
        )
        with gradio.Row():
            with gradio.Column(scale=2, min_width=280):
                image, explained, against = _controls(gradio, loaded)
            with gradio.Column(scale=3 + 2 * min(len(loaded), 3), min_width=280):
                results = gradio.HTML(show(None, PREDICTED, NOTHING), elem_id="results")
        image.async_move_resource_to_block_cache = _local_files(gradio, image.async_move_resource_to_block_cache)
        gradio.on(
            [image.input, image.clear, explained.input, against.input],
            show,
            [image, explained, against],
            results,
            preprocess=False,  # gradio would open the file itself, and fail on a broken one before `show` can say so
            trigger_mode="always_last",
            concurrency_limit=1,
            api_visibility="private",
        )
    return app


def _controls(gradio: Any, runs: Sequence[LoadedRun]) -> tuple[Any, Any, Any]:
    """The image, the class to explain, and what to compare it with."""
    classes = dict.fromkeys(name for run in runs for name in run.model.classes)
    names = [(name, CLASS + name) for name in classes]
    image = gradio.Image(
        label="image", sources=["upload", "clipboard", "webcam"], height=320, buttons=[], elem_id="image"
    )
    explained = gradio.Dropdown(
        [("the predicted class", PREDICTED), *names], value=PREDICTED, label="Explain", elem_id="explain"
    )
    against = gradio.Dropdown(
        [("nothing", NOTHING), ("the runner-up", RUNNER_UP), *names], value=NOTHING, label="Against", elem_id="against"
    )
    return image, explained, against


def _local_files(gradio: Any, move: Any) -> Any:
    """Like ``move``, which makes an upload available, but downloads nothing."""

    async def move_local(path: Any) -> Any:
        if path is not None and "://" in str(path):
            raise gradio.Error("Images are not fetched from the web.")
        return await move(path)

    return move_local


def style() -> str:
    """Returns the style sheet of the page."""
    return files("polycov.explaining").joinpath("app.css").read_text("utf-8")
