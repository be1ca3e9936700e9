"""Text from outside, such as file and class names, made safe for the place it is shown in."""

import unicodedata

UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode categories: control, format, lone surrogates, line breaks


def printable(text: str) -> str:
    r"""Returns a text that a terminal shows as it is: control characters, which could move its cursor, and characters
    that change the direction of writing appear as escapes; so do bytes of file names that are not UTF-8.

    Example:
        >>> printable("tit\x1b[2Jmouse\n"), printable("café \udce9")
        ('tit\\x1b[2Jmouse\n', 'café \\udce9')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if c not in "\n\t" and unicodedata.category(c) in UNSAFE else c for c in text)


def _escaped(character: str) -> str:
    return repr(character)[1:-1]


def valid_utf8(text: str) -> str:
    r"""Returns a text that can be written as UTF-8: bytes of file names that are not become replacement characters.

    Example:
        >>> valid_utf8("caf\udce9")
        'caf�'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def spreadsheet_safe(text: str) -> str:
    """Returns the text of a CSV cell, with an apostrophe first if a spreadsheet would run it as a formula.

    Example:
        >>> spreadsheet_safe("=HYPERLINK(0)"), spreadsheet_safe("-1.5"), spreadsheet_safe("ash")
        ("'=HYPERLINK(0)", '-1.5', 'ash')
    """
    if not text.lstrip().startswith(("=", "+", "-", "@")) and not text.startswith(("\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
