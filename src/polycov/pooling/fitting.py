"""Which dimension of a fitted projection the data supports."""

from dataclasses import replace

from polycov.pooling.methods import create_pool, method_options, method_spec
from polycov.pooling.spec import Spec, parse_spec


def supported_size(
    name: str, dim: int | None = None, *, samples: int, channels: int | None = None
) -> tuple[str, int | None]:
    """Returns a method and dimension whose projection can be fitted to so many samples.

    A projection that is too large is reduced to the number of samples, or of features before it if there are fewer:
    the dimension of a method, or ``project(…)`` in a spec. Everything else is returned as it is.

    Args:
        name: a method or a spec.
        dim: the dimension of the result, if the method lets one choose.
        samples: the number of samples to fit to.
        channels: C, before the pool; None to consider the samples alone.

    Example:
        >>> supported_size("ipccp-fit", 512, samples=300), supported_size("ipccp-ts", 512, samples=300)
        (('ipccp-fit', 300), ('ipccp-ts', 512))
        >>> supported_size("average | project(64)", samples=300, channels=48)
        ('average | project(48)', None)
    """
    spec = parse_spec(method_spec(name, dim=dim))
    index = next((i for i, stage in enumerate(spec.post) if stage.stage.name == "project"), None)
    if index is None:
        return name, dim
    most = samples
    if channels is not None:
        most = min(most, create_pool(Spec(spec.aggregation, spec.post[:index]), channels).out_features)
    arguments = dict(spec.post[index].arguments)
    if arguments["dim"] <= most:
        return name, dim
    if "dim" in method_options(name):
        return name, most
    smaller = replace(spec.post[index], arguments=tuple((arguments | {"dim": most}).items()))
    return str(replace(spec, post=(*spec.post[:index], smaller, *spec.post[index + 1 :]))), dim
