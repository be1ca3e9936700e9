"""Methods of the literature since 2020, each a named spec; `polycov.pooling.methods` has the others."""


def taylor_sqrt(degree: int = 11) -> str:
    """Root by a matrix Taylor polynomial, with Lyapunov gradient. Song, Sebe, Wang, "Fast Differentiable Matrix Square
    Root", ICLR 2022.
    """
    return f"covariance | sqrt_taylor({degree}) | triu"


def pade_sqrt(order: int = 5) -> str:
    """Root by matrix Padé approximants, with Lyapunov gradient. Song, Sebe, Wang, "Fast Differentiable Matrix Square
    Root", ICLR 2022.
    """
    return f"covariance | sqrt_pade({order}) | triu"


def svd_pade() -> str:
    """SVD-Padé. Song, Sebe, Wang, "Why Approximate Matrix Square Root Outperforms Accurate SVD in Global Covariance
    Pooling?", ICCV 2021. It approximates 1/(1 − x) in the gradient of an eigendecomposition by a Padé approximant,
    which is 1/(1 − x) itself; so this is the exact root with its exact gradient, which divides by no difference.
    """
    return "covariance | sqrt(exact) | triu"


def dropcov() -> str:
    """DropCov. Wang, Gao, Zhang, Xie, Li, Hu, "DropCov: A Simple yet Effective Method for Improving Deep
    Architectures", NeurIPS 2022.
    """
    return "dropcov | identity | triu"


def deep_bdc(t: float = -5.3) -> str:
    """DeepBDC. Xie, Long, Lv, Wang, Li, "Joint Distribution Matters: Deep Brownian Distance Covariance for Few-Shot
    Classification", CVPR 2022.
    """
    return f"bilinear | brownian({t}) | triu"


def isice(steps: int = 5, rate: float = 1, sparsity: float = 0.01) -> str:
    """iSICE, sparse inverse covariance. Rahman, Koniusz, Wang, Zhou, Moghadam, Sun, "Learning Partial Correlation based
    Deep Visual Representation for Image Classification", CVPR 2023.
    """
    return f"covariance | sparse_inverse({steps}, rate={rate}, sparsity={sparsity}) | triu"


def log_euclidean() -> str:
    """The matrix logarithm, a classifier in log-Euclidean geometry (Log-EMLR). Chen, Song, Wu, Liu, Sebe,
    "Understanding Matrix Function Normalizations in Covariance Pooling through the Lens of Riemannian Geometry", ICLR
    2025; in networks since Ionescu, Vantzos, Sminchisescu, "Matrix Backpropagation", ICCV 2015.
    """
    return "covariance | log(exact) | triu"


def power_euclidean(exponent: float = 0.5) -> str:
    """The tangent space of power-Euclidean geometry at the identity (Pow-TMLR). Chen, Song, Wu, Liu, Sebe,
    "Understanding Matrix Function Normalizations in Covariance Pooling through the Lens of Riemannian Geometry", ICLR
    2025. Their classifier in the same geometry (Pow-EMLR) is ``mpn-cov`` or a power.
    """
    return f"covariance | tangent({exponent}) | triu"


def log_cholesky() -> str:
    """The Cholesky logarithm, the tangent space of log-Cholesky geometry (Cho-TMLR). Chen, Song, Wu, Liu, Sebe,
    "Understanding Matrix Function Normalizations in Covariance Pooling through the Lens of Riemannian Geometry", ICLR
    2025.
    """
    return "covariance | log_cholesky | triu"


SECOND_ORDER = (
    taylor_sqrt,
    pade_sqrt,
    svd_pade,
    dropcov,
    deep_bdc,
    isice,
    log_euclidean,
    power_euclidean,
    log_cholesky,
)


def attentive_probe(heads: int = 8) -> str:
    """Attention with one learned query, without the perceptron of V-JEPA's. Bardes et al., "Revisiting Feature
    Prediction for Learning Visual Representations from Video", TMLR 2024; Chen et al., "Context Autoencoder for
    Self-Supervised Representation Learning", IJCV 2024.
    """
    return f"attentive_probe({heads})"


def efficient_probe(queries: int = 32) -> str:
    """Attention with several learned queries. Psomas et al., "Attention, Please! Revisiting Attentive Probing Through
    the Lens of Efficiency", arXiv 2025, ICLR 2026.
    """
    return f"efficient_probe({queries})"


def simpool(gamma: float = 2) -> str:
    """Attention by the mean, without parameters. Psomas, Kakogeorgiou, Karantzalos, Avrithis, "Keep It SimPool: Who
    Said Supervised Transformers Suffer from Attention Deficit?", ICCV 2023.
    """
    return f"simpool({gamma})"


FIRST_ORDER = (attentive_probe, efficient_probe, simpool)
