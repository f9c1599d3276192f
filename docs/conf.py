# Sphinx: the pages of docs/, and the headers as Doxygen read them (tools/docs.sh).
import os
import pathlib
import re
import sys

root = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(root / "docs/api"))
sys.path.insert(0, str(root / "python"))
from headers import Headers  # noqa: E402

project = "libkda"
copyright = "the libkda authors"
version = release = os.environ["KDA_VERSION"]
doxygen = os.environ["KDA_DOXYGEN"]  # the folder with what Doxygen wrote

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
# libkda is read, not run: torch is not needed, nor the file with the operators.
autodoc_mock_imports = ["torch", "typing_extensions", "libkda._library"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
breathe_projects = {name: f"{doxygen}/{name}/xml" for name in ("c", "cpp")}
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_include = False
primary_domain = None
highlight_language = "text"
html_theme = "furo"
html_title = f"libkda {version}"
html_copy_source = False
exclude_patterns = ["api"]


def header(match):
    language = "c" if match[1].endswith(".h") else "cpp"
    return Headers(language, root, breathe_projects[language]).markdown(f"include/kda/{match[1]}")


def prepare(app, docname, source):
    # Links of the pages to files of the repository become the files' names.
    text = re.sub(r"\[[^\]\n]*\]\(\.\./([^)\n]*)\)", r"`\1`", source[0])
    source[0] = re.sub(r"<!-- header: (\S+) -->", header, text)


def setup(app):
    app.connect("source-read", prepare)
