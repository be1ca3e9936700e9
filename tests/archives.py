"""Tar and Parquet files of small images, for tests."""

import io
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fake_images import make_image


def jpeg(label: int, index: int) -> bytes:
    file = io.BytesIO()
    make_image(label, index).save(file, "jpeg")
    return file.getvalue()


def tar_bytes(members: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def parquet_bytes(images: list[bytes | None], rows: int = 3, plain: bool = False, column: str = "image") -> bytes:
    """The layout of Hugging Face, or with ``plain`` a column of bytes; with a label beside it."""
    structured = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(images)]
    kind = pa.binary() if plain else pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = {"label": pa.array(range(len(images))), column: pa.array(images if plain else structured, kind)}
    file = io.BytesIO()
    pq.write_table(pa.table(table), file, row_group_size=rows)
    return file.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
