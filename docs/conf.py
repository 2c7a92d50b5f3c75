"""How Sphinx makes the book: `make docs`."""

import os
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for _book

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow is imported to read docstrings

project = "tfperf"
author = "tfperf's authors"
release = metadata.version("tfperf")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design", "_book"]
exclude_patterns = ["_build", "_book"]
suppress_warnings = ["myst.header"]  # pages of recipes have short sections
highlight_language = "none"
default_role = "code"  # docstrings name code in single backticks
smartquotes = False  # which would make one dash of the two of an option
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True

locale_dirs = ["locales"]
gettext_compact = True
gettext_location = False

html_theme = "furo"
html_title = "tfperf"
html_static_path = ["_static"]
html_css_files = ["book.css"]
templates_path = ["_templates"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/languages.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_context = {"languages": {"en": "English", "zh_CN": "中文"}}
