"""Explanation: which regions of an image speak for a class? The contributions add up to the score, exactly.

    python examples/explanation.py page.html

The model is a nearest-mean classifier of three typefaces on a frozen backbone; yours is a run of `polycov train`, as
in `polycov.explain("RUN", "image.jpg")`.
"""

import sys

import torch

import polycov
from polycov.data.typefaces import read_typefaces
from polycov.explaining.page import write_explanation_page

FACES, EACH = 3, 4


@torch.no_grad()
def fitted_model() -> polycov.Model:
    """A classifier whose weights are the mean features of the classes."""
    data = read_typefaces()
    samples, names = data.splits["train"], data.classes[:FACES]
    model = polycov.create_model(pool="isqrt-cov", num_classes=FACES, channels=0, size=160, stage=3).eval()
    first = len(samples) // len(data.classes)
    images = [samples.source.open(samples.items[face * first + i]) for face in range(FACES) for i in range(EACH)]
    features = model.embed(torch.stack([model.preprocessing(image) for image in images]))
    means = features.unflatten(0, (FACES, EACH)).mean(1)
    centred = means - means.mean(0)
    model.classifier.load_state_dict({"weight": centred, "bias": -(centred * means).sum(1) / 2})
    model.classes = names
    return model


def main(page: str | None = None) -> polycov.Explanation:
    """Explains one image, prints where the evidence is, and returns the explanation."""
    samples = read_typefaces().splits["test"]
    image = samples.source.open(samples.items[0])
    why = polycov.explain(fitted_model(), image, against="runner-up")[0]
    regions = why.regions.sum().item()
    print(why.question)
    print(f"score {why.score:.3f} = constant {why.constant:.3f} + regions {regions:.3f}")
    row, column = divmod(int(why.regions.argmax()), why.regions.shape[1])
    print(f"the strongest region is in row {row}, column {column}")
    if page is not None:
        write_explanation_page(page, [why])
    return why


if __name__ == "__main__":
    main(*sys.argv[1:2])
