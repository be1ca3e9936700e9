"""Installs the built wheel with each extra into a clean environment outside the checkout, and uses it there.

    make test-package                        # all extras: about ten minutes, and 2 GB of disk at a time
    make test-package EXTRAS="train export"  # some; "core" is torch alone

An environment is made in a temporary folder and removed after its commands. Versions are those of constraints.txt.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMALL = "--backbone test_resnet --weights none --size 64 --workers 0"
TRAIN = f"polycov train images --probe {SMALL} --pool isqrt-cov --cache cache -o run"
POOL = 'python -c "import polycov, torch; print(polycov.create_pool({pool!r}, 8)(torch.rand(2, 8, 5, 5)).shape)"'
MAKE_IMAGES = (
    "from pathlib import Path; from PIL import Image\n"
    "for split in ('train', 'test'):\n"
    "    for colour in ('red', 'green'):\n"
    "        folder = Path('images', split, colour); folder.mkdir(parents=True)\n"
    "        for i in range(6): Image.new('RGB', (64 + i, 64), colour).save(folder / f'{i}.png')\n"
)
IMAGES = f"python -c {shlex.quote(MAKE_IMAGES)}"
SIGNALS = (
    "import numpy as np; from polycov.sklearn import SecondOrderTransformer as T\n"
    "print(T('log-euclidean', layout='signals').fit_transform(np.random.default_rng(0).normal(size=(5, 3, 50))).shape)"
)
COMMANDS: dict[str, list[str]] = {
    "core": [
        "polycov --version",
        POOL.format(pool="isqrt-cov"),
        "python -W ignore -m polycov.commands.tour",
        "! polycov train",
    ],
    "cli": ["polycov list", "polycov bench --what dims --rounds 1 --methods ipccp-ts --out bench"],
    "train": [
        IMAGES,
        TRAIN,
        "polycov evaluate run",
        "polycov predict run images/test/red/0.png",
        "polycov explain run images/test/red/0.png -o page.html --neighbours 0",
        "polycov embed run images -o features --format npz",
        "polycov search features images/test/red/0.png",
        "polycov compare images --methods average isqrt-cov --seeds 1 --no-explain --cache cache -o comparison "
        + SMALL,
        "polycov train typefaces --recipe cub-resnet50 --help",
        "! polycov export run -o model.onnx",
    ],
    "export": [
        IMAGES,
        TRAIN,
        "polycov export run -o model.onnx",
        "polycov predict model.onnx images/test/red/0.png",
        "polycov export run -o model.pt2",
    ],
    "fast": [IMAGES, TRAIN + " --backend openvino"],
    "sklearn": [f"python -c {shlex.quote(SIGNALS)}"],
    "search": [
        IMAGES,
        "polycov compare images --methods average isqrt-cov --seeds 1 --no-explain --cache cache -o comparison "
        + SMALL,
    ],
    "ray": [IMAGES, "polycov embed average images -o features --engine ray " + SMALL],
    "data": [IMAGES, TRAIN, 'python -c "import datasets, pyarrow, scipy"'],
    "stores": [IMAGES, "polycov embed isqrt-cov file://$PWD/images -o features " + SMALL.replace("--workers 0", "")],
    "app": [IMAGES, TRAIN, "python -c \"from polycov.explaining.app import make_app; print(make_app(['run']))\""],
}


def install(extra: str, folder: Path) -> None:
    """Makes an environment in a folder, with the wheel and an extra."""
    venv.create(folder / "env", with_pip=True)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    wanted = str(wheel) if extra == "core" else f"{wheel}[{extra}]"
    pip = [str(folder / "env/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), wanted], check=True, stderr=subprocess.DEVNULL)


def failures(extra: str, folder: Path) -> list[str]:
    """The commands of an extra that fail in its environment; those that begin with "!" have to fail."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"PATH": f"{folder / 'env/bin'}:{variables['PATH']}", "HF_HUB_OFFLINE": "1"}
    failed = []
    for command in COMMANDS[extra]:
        text = command.removeprefix("! ")
        done = subprocess.run(text, shell=True, cwd=folder, env=variables, capture_output=True, text=True)
        expected = (done.returncode == 0) != command.startswith("!") and "Traceback" not in done.stderr
        print(f"  {'ok    ' if expected else 'FAILED'} {text.splitlines()[0][:100]}", flush=True)
        if not expected:
            print(done.stdout[-2000:], done.stderr[-2000:])
            failed.append(text)
    return failed


def main(extras: list[str]) -> None:
    """Installs and uses each extra, and ends with an error if anything failed."""
    failed = []
    for extra in extras or COMMANDS:
        begin = time.monotonic()
        print(extra, flush=True)
        with tempfile.TemporaryDirectory(prefix="polycov-") as name:
            install(extra, Path(name))
            failed += failures(extra, Path(name))
        print(f"  {time.monotonic() - begin:.0f} s", flush=True)
    sys.exit(f"{len(failed)} commands failed" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
