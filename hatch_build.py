"""The project's URLs, which depend on where it is published and so are read from there when a package is built."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Urls(MetadataHookInterface):
    """Repository, issues, changelog and documentation of the repository that a GitHub workflow builds from.

    Other builds name it in the same variable, GITHUB_REPOSITORY=OWNER/NAME, or have no URLs.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the URLs to the metadata of the project."""
        server, repository = os.environ.get("GITHUB_SERVER_URL", "https://github.com"), os.getenv("GITHUB_REPOSITORY")
        metadata["urls"] = {}
        if repository:
            owner, _, name = repository.partition("/")
            home = f"{server}/{repository}"
            metadata["urls"] = {
                "Documentation": f"https://{owner.lower()}.github.io/{name}/",
                "Source": home,
                "Issues": f"{home}/issues",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
            }
