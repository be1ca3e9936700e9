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


def moment_probing(width: int = 31, heads: int = 3) -> str:
    """The mean and cross-covariances of learned reductions side by side. Gao, Wang, Lin, Zhu, Hu, Zhou, "Tuning
    Pre-trained Model via Moment Probing", ICCV 2023.
    """
    return f"[average, self_cross({width}, heads={heads}) | identity | flatten | l2]"


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


def class_token() -> str:
    """The class token of a transformer. Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image
    Recognition at Scale", ICLR 2021.
    """
    return "class_token"


def class_token_mean() -> str:
    """Class token and mean of the other tokens side by side, as in the linear probes of DINOv2. Oquab et al., "DINOv2:
    Learning Robust Visual Features without Supervision", TMLR 2024.
    """
    return "[class_token, average]"


FIRST_ORDER = (attentive_probe, efficient_probe, simpool, class_token, class_token_mean)
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
    moment_probing,
)
