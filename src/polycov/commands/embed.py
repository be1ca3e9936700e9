"""``polycov embed``."""

from polycov.commands.parsing import parse
from polycov.commands.terminal import Terminal
from polycov.inference.embed import embed
from polycov.inference.embedder import EmbedOptions


def run(arguments: list[str]) -> None:
    """Embeds images."""
    positional = {"source": "RUN|METHOD|SPEC", "paths": "IMAGE…"}
    options = parse(EmbedOptions, "embed", arguments, positional=positional)
    terminal = Terminal()
    terminal.write(str(embed(options, progress=terminal.progress)))
