"""Named methods of two inputs; listed by `polycov.pooling.methods`."""


def cross_bilinear() -> str:
    """B-CNN of two networks. Lin, RoyChowdhury, Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV
    2015.
    """
    return "cross | identity | flatten | signed_sqrt | l2"


def mcb(dim: int = 16000) -> str:
    """MCB. Fukui, Park, Yang, Rohrbach, Darrell, Rohrbach, "Multimodal Compact Bilinear Pooling for Visual Question
    Answering and Visual Grounding", EMNLP 2016.
    """
    return f"cross | identity | tensor_sketch({dim}) | signed_sqrt | l2"


def cross_root(iterations: int | str = "exact") -> str:
    """The cross-covariance of two inputs with the roots of its singular values, exact or by Newton–Schulz
    ``iterations``. Xie, Zeng, Wang, Zhou, Li, "SoT: Delving Deeper into Classification Head for Transformer", 2021.
    """
    return f"cross(covariance) | sqrt({iterations}) | flatten"


TWO_INPUTS = (cross_bilinear, mcb, cross_root)
