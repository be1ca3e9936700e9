"""Methods of the literature up to 2019 and polycov's own, each a named spec; later ones: `polycov.pooling.recent`."""

from polycov.errors import positive_int


def average() -> str:
    """Average pooling, the default of most networks. Lin, Chen, Yan, "Network in Network", ICLR 2014."""
    return "average"


def max_() -> str:
    """Max pooling. Tolias, Sicre, Jégou, "Particular Object Retrieval with Integral Max-Pooling", ICLR 2016."""
    return "max"


def gem(p: float = 3) -> str:
    """Generalised-mean pooling with learnable p. Radenović, Tolias, Chum, "Fine-tuning CNN Image Retrieval with No
    Human Annotation", TPAMI 2019.
    """
    return f"gem({p})"


def bilinear() -> str:
    """B-CNN. Lin, RoyChowdhury, Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015."""
    return "bilinear | identity | flatten | signed_sqrt | l2"


def cbp_ts(dim: int = 8192) -> str:
    """CBP, tensor sketch. Gao, Beijbom, Zhang, Darrell, "Compact Bilinear Pooling", CVPR 2016."""
    return f"bilinear | identity | tensor_sketch({dim}) | signed_sqrt | l2"


def cbp_rm(dim: int = 8192) -> str:
    """CBP, random Maclaurin. Gao, Beijbom, Zhang, Darrell, "Compact Bilinear Pooling", CVPR 2016."""
    return f"bilinear | identity | random_maclaurin({dim}) | signed_sqrt | l2"


def improved_bilinear(iterations: int | str = "exact") -> str:
    """Improved B-CNN, with the Lyapunov gradient; the root exact or by Newton–Schulz ``iterations``. Lin, Maji,
    "Improved Bilinear Pooling with CNNs", BMVC 2017.
    """
    root = "sqrt(exact)" if iterations == "exact" else f"sqrt({iterations}, gradient=lyapunov)"
    return f"bilinear | {root} | flatten | signed_sqrt | l2"


def mpn_cov() -> str:
    """MPN-COV. Li, Xie, Wang, Zuo, "Is Second-order Information Helpful for Large-scale Visual Recognition?",
    ICCV 2017.
    """
    return "covariance | sqrt(exact) | triu"


def g2denet() -> str:
    """G²DeNet. Wang, Li, Zhang, "G2DeNet: Global Gaussian Distribution Embedding Network and Its Application to Visual
    Recognition", CVPR 2017.
    """
    return "gaussian | sqrt(exact) | triu"


def monet_ts(dim: int = 8192) -> str:
    """MoNet, tensor sketch. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network", CVPR 2018."""
    return f"gaussian | sqrt(exact) | tensor_sketch({dim})"


def monet_rm(dim: int = 8192) -> str:
    """MoNet, random Maclaurin. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network", CVPR 2018."""
    return f"gaussian | sqrt(exact) | random_maclaurin({dim})"


def monet_2_ts(dim: int = 8192) -> str:
    """MoNet-2 (covariance alone), tensor sketch. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network",
    CVPR 2018.
    """
    return f"covariance | sqrt(exact) | tensor_sketch({dim})"


def monet_2_rm(dim: int = 8192) -> str:
    """MoNet-2 (covariance alone), random Maclaurin. Gou, Xiong, Camps, Sznaier, "MoNet: Moments Embedding Network",
    CVPR 2018.
    """
    return f"covariance | sqrt(exact) | random_maclaurin({dim})"


def isqrt_cov(iterations: int = 5) -> str:
    """iSQRT-COV. Li, Xie, Wang, Gao, "Towards Faster Training of Global Covariance Pooling Networks by Iterative Matrix
    Square Root Normalization", CVPR 2018.
    """
    return f"covariance | sqrt({iterations}) | triu"


def ipccp_ts(dim: int = 8192, iterations: int = 5) -> str:
    """iPCCP, tensor sketch. Mukuta, Machida, Harada, "Compact Approximation for Polynomial of Covariance Feature",
    2019.
    """
    return f"covariance | sqrt({iterations}) | tensor_sketch({dim})"


def ipccp_rm(dim: int = 8192, iterations: int = 5) -> str:
    """iPCCP, random Maclaurin. Mukuta, Machida, Harada, "Compact Approximation for Polynomial of Covariance Feature",
    2019.
    """
    return f"covariance | sqrt({iterations}) | random_maclaurin({dim})"


def ipccp_cs(dim: int = 8192, iterations: int = 5) -> str:
    """The iPCCP feature with a balanced count sketch of the triangle (polycov)."""
    return f"covariance | sqrt({iterations}) | count_sketch({dim})"


def ipccp_rot(dim: int = 8192, iterations: int = 5) -> str:
    """The iPCCP feature by entries of the randomly rotated root, for a fraction of the cost of ipccp-rm (polycov)."""
    return f"covariance | sqrt({iterations}) | rotated({dim})"


def _size(dim: int) -> int:
    """The dimension of a projection; checked here, where it has the name that was given to it."""
    return positive_int("project", "dim", dim)


def ipccp_fit(dim: int = 512, iterations: int = 5, width: int = 8192) -> str:
    """The iPCCP feature, sketched wide and projected onto principal components of training features (polycov)."""
    return f"covariance | sqrt({iterations}) | count_sketch({width}, least={_size(dim)}) | project({dim})"


def mean_cov(iterations: int = 5) -> str:
    """Mean and root of the covariance side by side, the mean with a quarter of the root's variance (polycov)."""
    return f"[average, covariance | sqrt({iterations}) | triu] | balance(1, 2)"


def mean_cov_fit(dim: int = 512, iterations: int = 5, width: int = 8192) -> str:
    """Mean and root of the covariance side by side, projected so that distances tell classes apart (polycov)."""
    parts = f"average, covariance | sqrt({iterations}) | count_sketch({width}, least={_size(dim)})"
    return f"[{parts}] | balance(1, 2) | project({dim}, fit=classes)"


def auto_fit(dim: int = 512, width: int = 32768) -> str:
    """mean-cov-fit with a cheaper root, whose weights of mean and root and whose shrinkage are chosen on the training
    images: the feature to pick blind (polycov).
    """
    parts = f"average, covariance | sqrt_minimax(9) | count_sketch({width}, least={_size(dim)})"
    return f"[{parts}] | balance(fit=classes) | project({dim}, fit=classes, shrinkage=auto)"


CLASSIC = (
    average,
    max_,
    gem,
    bilinear,
    cbp_ts,
    cbp_rm,
    improved_bilinear,
    mpn_cov,
    g2denet,
    monet_ts,
    monet_rm,
    monet_2_ts,
    monet_2_rm,
    isqrt_cov,
    ipccp_ts,
    ipccp_rm,
    ipccp_cs,
    ipccp_rot,
    ipccp_fit,
    mean_cov,
    mean_cov_fit,
    auto_fit,
)
