"""Settings of Sphinx for the documentation; ``make docs`` builds it into build/site.

The pages are those of the repository, at their places in it, so that a link holds in both.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# A build makes millions of objects, ends soon, and would look for garbage a fifth of its time.
gc.disable()

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import reference  # noqa: E402 -- in the same folder

from offsetmgr.service import version as _version  # noqa: E402

project = "offsetmgr"
version = release = _version()
author = project_copyright = "the offsetmgr authors"
html_title = f"offsetmgr {version}"
html_theme = "furo"
html_theme_options = {
    "source_repository": "https://github.com/offsetmgr/offsetmgr/",
    "source_branch": "main",
    "source_directory": "",
}
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_show_sphinx = False
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/README.md", "examples/shop/README.md"]
# Nothing below these is looked through for pages.
exclude_patterns = [".*", "build", "actors", "benchmarks", "offsetmgr", "tests"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.xref_missing",  # links to folders; tests/spark/test_documents.py checks those
    "misc.highlighting_failure",  # settings in a text that shortens them
    "ref.python",  # a built-in type may have the name of an attribute, such as bytes
]
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseException,Exception,tuple,int,IntEnum,Enum,Generic,Protocol",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 90

reference.write(Path(__file__).parent / "reference")


def setup(app: Sphinx) -> None:
    """Offer no edit of generated pages."""

    def hide_edit(_: Sphinx, page: str, __: str, context: dict[str, object], ___: object) -> None:
        if page.startswith("docs/reference/"):
            context["page_source_suffix"] = ""

    app.connect("html-page-context", hide_edit)
