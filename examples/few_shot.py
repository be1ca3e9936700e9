"""Few-shot: classes that nothing was trained on, from one or five images each, by the nearest prototype.

    python examples/few_shot.py

Every episode draws five digits and a few labelled images of each, and classifies others by the nearest mean of
unit-length features. `polycov compare FOLDER --head fewshot` does the same on your images, with intervals.
"""

import torch
from digit_tokens import digit_tokens

import polycov
from polycov.inference.episodes import draw_episodes, prototype_accuracy


@torch.no_grad()
def main(episodes: int = 200) -> dict[tuple[str, int], float]:
    """Prints and returns the accuracy by method and number of labelled images."""
    tokens, labels = digit_tokens()
    scores = {}
    for method in ("average", "isqrt-cov", "log-euclidean"):
        features = polycov.create_pool(method, tokens.shape[2])(tokens)
        for shots in (1, 5):
            drawn = draw_episodes(labels, ways=5, shots=shots, count=episodes)
            scores[method, shots] = prototype_accuracy(drawn, features - features.mean(0)).mean().item()
            print(f"{method:14} {shots} labelled  {100 * scores[method, shots]:5.1f} %")
    return scores


if __name__ == "__main__":
    main()
