"""Format versions: every file and folder that is kept says which format it has."""

from polycov.errors import PolycovError


def require_format(found: object, expected: int, what: str, remedy: str) -> None:
    """Refuses a format other than the one this version reads.

    Args:
        found: the format that a file says it has.
        expected: the format that this version reads and writes.
        what: what has the format, as the subject of a sentence.
        remedy: how to get it in the expected format, as a sentence.

    Raises:
        PolycovError: on another format; the sentence says whether a newer version of polycov wrote it.

    Examples:
        >>> require_format(3, 2, "The run 'birds'", "Train it again.")
        Traceback (most recent call last):
        polycov.errors.PolycovError: The run 'birds' has format 3; expected 2: a newer version of polycov wrote it. \
Update polycov to read it.
    """
    if isinstance(found, int) and not isinstance(found, bool):
        if found == expected:
            return
        if found > expected:
            raise PolycovError(
                f"{what} has format {found}; expected {expected}: a newer version of polycov wrote it. "
                "Update polycov to read it."
            )
    raise PolycovError(
        f"{what} has format {found!r}; expected {expected}: an earlier version wrote it, or it is damaged. {remedy}"
    )
