import pytest

from polycov.system.text import printable, spreadsheet_safe


@pytest.mark.parametrize("text", ["plain", "café ½ 鳥", "two\nlines\tand a tab", "", "'quotes'", "[red]markup[/red]"])
def test_ordinary_text_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),  # clears the screen
        ("a\rb", "a\\rb"),
        ("\x9b31m", "\\x9b31m"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),  # reverses the text
        ("caf\udce9", "caf\\udce9"),  # a byte that is not UTF-8
        ("\ud800", "\\ud800"),
        ("\x00\x7f", "\\x00\\x7f"),
    ],
)
def test_what_would_steer_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


def test_numbers_are_no_formulas() -> None:
    assert [spreadsheet_safe(text) for text in ("-1.5", "+2e3", "=2", "-a")] == ["-1.5", "+2e3", "'=2", "'-a"]
