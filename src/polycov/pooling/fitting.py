"""Which dimension of a fitted projection the data supports."""

from dataclasses import replace

from polycov.pooling.methods import fitted_dim, method_options, parse_method
from polycov.pooling.side_by_side import build_pool
from polycov.pooling.source import Channels
from polycov.pooling.spec import Spec


def supported_size(
    name: str, dim: int | None = None, *, samples: int, channels: Channels | None = None
) -> tuple[str, int | None]:
    """Returns a method and dimension whose projection can be fitted to this many samples.

    A projection that is too large is reduced to the number of samples, or of features before it if there are fewer:
    the dimension of a method, or ``project(…)`` in a spec. Everything else is returned as it is.

    Args:
        name: a method or a spec.
        dim: the dimension of the result, if the method lets one choose.
        samples: the number of samples to fit to.
        channels: C, before the pool, or those of each stage by its name; None to consider the samples alone.

    Example:
        >>> supported_size("ipccp-fit", 512, samples=300), supported_size("ipccp-ts", 512, samples=300)
        (('ipccp-fit', 300), ('ipccp-ts', 512))
        >>> supported_size("average | project(64)", samples=300, channels=48)
        ('average | project(48)', None)
    """
    spec = parse_method(name, dim=dim)
    smaller = _reduced(spec, samples, channels)
    if smaller == spec:
        return name, dim
    return (name, fitted_dim(str(smaller))) if "dim" in method_options(name) else (str(smaller), dim)


def _reduced(spec: Spec, samples: int, channels: Channels | None) -> Spec:
    """The spec with projections no larger than the samples, and than the features before them."""
    spec = replace(spec, blocks=tuple(_reduced(block, samples, channels) for block in spec.blocks))
    index = next((i for i, stage in enumerate(spec.post) if stage.name == "project"), None)
    if index is None:
        return spec
    before = replace(spec, post=spec.post[:index])
    most = samples if channels is None else min(samples, _out_features(before, channels))
    arguments = dict(spec.post[index].arguments)
    arguments["dim"] = min(arguments["dim"], most)
    smaller = replace(spec.post[index], arguments=tuple(arguments.items()))
    return replace(spec, post=(*spec.post[:index], smaller, *spec.post[index + 1 :]))


def _out_features(spec: Spec, channels: Channels) -> int:
    """The dimension of the feature of a spec, or of a part of one."""
    return build_pool(channels, spec, seed=0, route="auto", check_finite=True).out_features
