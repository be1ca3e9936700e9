"""Retrieval: which images look like this one? The nearest by cosine of compact features, in full and in few bytes.

    python examples/retrieval.py

`polycov compare FOLDER --head retrieval` measures the same on your images.
"""

import torch
from digit_tokens import digit_tokens

import polycov
from polycov.data.quantize import dequantize, quantize
from polycov.inference.retrieval import retrieve


@torch.no_grad()
def main() -> dict[str, float]:
    """Prints and returns recall@1 of each feature, and shows what the first digit finds."""
    tokens, labels = digit_tokens()
    channels = tokens.shape[2]
    features = {
        "average": polycov.create_pool("average", channels)(tokens),
        "isqrt-cov": polycov.create_pool("isqrt-cov", channels)(tokens),
        "ipccp-cs, 32": polycov.create_pool("ipccp-cs", channels, dim=32)(tokens),
    }
    features = {name: rows - rows.mean(0) for name, rows in features.items()}
    features["ipccp-cs, 32, int8"] = dequantize(*quantize(features["ipccp-cs, 32"], "int8"))
    scores = {}
    for name, rows in features.items():
        result = retrieve(rows, labels, at=[1, 10])
        scores[name] = result.recall(1)
        print(f"{name:20} {rows.shape[1]:3} numbers  recall@1 {100 * result.recall(1):5.1f} %")
    rows = torch.nn.functional.normalize(features["isqrt-cov"])
    nearest = (rows @ rows[0]).argsort(descending=True)[1:6]
    print(f"a {int(labels[0])} finds", *labels[nearest].tolist())
    return scores


if __name__ == "__main__":
    main()
