"""A hook of MkDocs: each notebook of this folder is a page of the site, and links to the notebooks lead to these."""

import json
import pathlib
from typing import Any

from mkdocs.structure.files import File, Files


def page(notebook: pathlib.Path) -> str:
    """Returns the Markdown of a notebook that is stored without outputs."""
    parts = [f'[The notebook itself]({notebook.name}), to be opened in Jupyter.']
    for cell in json.loads(notebook.read_text(encoding='utf-8'))['cells']:
        source = ''.join(cell['source'])
        parts.append(source if cell['cell_type'] == 'markdown' else f'```python\n{source}\n```')
    parts[:2] = parts[1::-1]  # The title comes first.
    return '\n\n'.join(parts) + '\n'


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages."""
    for notebook in [file for file in files if file.src_uri.endswith('.ipynb')]:
        markdown = page(pathlib.Path(notebook.abs_src_path))
        files.append(File.generated(config, notebook.src_uri.replace('.ipynb', '.md'), content=markdown))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads from a page of the documents to the page of a notebook."""
    return markdown if page.file.generated_by else markdown.replace('.ipynb)', '.md)')
