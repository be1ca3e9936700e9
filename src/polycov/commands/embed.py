"""``polycov embed``."""

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.inference.embed import EmbedOptions, embed


def run(arguments: list[str]) -> None:
    """Embeds images."""
    positional = {"source": "RUN|METHOD|SPEC", "paths": "IMAGE…"}
    options = parse(EmbedOptions, "embed", arguments, positional=positional)
    terminal = Terminal()
    terminal.write(str(embed(options, progress=terminal.progress)))
