"""A hook of MkDocs: the pages that are made from the source when the site is built,
and the link to the repository.
"""

import pathlib
import sys
import tomllib
from typing import Any

from mkdocs.structure.files import File, Files

# MkDocs runs hooks outside of the checkout.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tools import algorithm_pages, api_page, packages_page, settings_page

OWNER = pathlib.Path(__file__).resolve().parents[1] / 'owner.toml'


def on_config(config: Any) -> Any:
    """Adds the link to the repository, if the owner has filled in where it is."""
    address = tomllib.loads(OWNER.read_text(encoding='utf-8'))['repository']
    config.repo_url = None if address.startswith('<') else address
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of which docs/ has nothing."""
    for module in (settings_page, api_page, packages_page):
        files.append(File.generated(config, module.PAGE, content=module.page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Completes the pages of algorithms, of which docs/ has what is written by hand."""
    path = pathlib.PurePosixPath(page.file.src_uri)
    if path.as_posix() == 'algorithms.md':
        return algorithm_pages.overview(markdown)
    return algorithm_pages.page(path.name, markdown) if path.parent.name == 'algorithms' else markdown
