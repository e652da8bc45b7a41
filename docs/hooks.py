"""Extensions of the documentation build.

Pages link to source files by relative path, which works wherever the repository is browsed. MkDocs
knows only files in docs/, so each linked file becomes a page `source/PATH.md` in the site; a link
to a folder becomes plain text. The page of all results is filled from the stored ones
(`results_site.py`). A mean and its deviation stay on one line in tables. `Doctests` shows the
examples in docstrings as code.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import results_site

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]\n]*)\]\(((?:\.\./)+[^)#\s]+)\)")
DOCTEST = re.compile(r"^( *)(>>> .*(?:\n *\S.*)*)", re.MULTILINE)
TABLE_LINE = re.compile(r"^\|.*$", re.MULTILINE)
NO_BREAK = "\u00a0±\u00a0"
PAGE = """---
search:
  exclude: true
---
# `{path}`

````{language}
{text}
````
"""


class Doctests(griffe.Extension):
    """Puts doctests outside an `Examples:` section into code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)


def _path_in_repository(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each source file that a page links to, and the stored results as JSON."""
    for address, content in results_site.json_files(results_site.stored()[0]).items():
        files.append(File.generated(config, address, content=content))
    for page in list(files.documentation_pages()):
        for _, link in LINK.findall(page.content_string):
            path = _path_in_repository(page.src_uri, link)
            source = f"source/{path}.md"
            if path.startswith("docs/") or source in files.src_uris or not (ROOT / path).is_file():
                continue
            text = (ROOT / path).read_text(encoding="utf-8")
            language = Path(path).suffix.removeprefix(".")
            content = PAGE.format(path=path, language=language, text=text)
            files.append(File.generated(config, source, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links to source files by links to their pages, and fill in the results."""
    if results_site.MARK in markdown:
        filled = results_site.rows_html(*results_site.stored())
        markdown = markdown.replace(results_site.MARK, filled)
    markdown = TABLE_LINE.sub(lambda line: line[0].replace(" ± ", NO_BREAK), markdown)
    folder = posixpath.dirname(page.file.src_uri) or "."

    def replace(match: re.Match[str]) -> str:
        label, link = match.groups()
        path = _path_in_repository(page.file.src_uri, link)
        if (ROOT / path).is_dir():
            return label
        source = f"source/{path}.md"
        return (
            f"[{label}]({posixpath.relpath(source, folder)})"
            if source in files.src_uris
            else match[0]
        )

    return LINK.sub(replace, markdown)
