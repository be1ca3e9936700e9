import base64
import io

import pytest
from PIL import Image

from polycov.system.pages import data_url


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("RGBA", "PNG")])
def test_a_data_url_holds_an_image_that_is_reduced_but_never_enlarged(mode: str, kind: str) -> None:
    image = Image.new(mode, (40, 20), "white")
    for side, size in ((None, (40, 20)), (10, (10, 5)), (100, (40, 20))):
        prefix, _, content = data_url(image, side=side).partition(",")
        decoded = Image.open(io.BytesIO(base64.b64decode(content)))
        assert (prefix, decoded.format, decoded.size) == (f"data:image/{kind.lower()};base64", kind, size)
    assert image.size == (40, 20)
