"""The book is built in both languages without a warning, its links lead somewhere, and its Chinese is whole."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from babel.messages.pofile import read_po

from tests.book.conftest import ROOT
from tfperf.cookbook import list_recipes

DEADLINE = 280
LANGUAGES = ("en", "zh_CN")
CATALOGS = ROOT / "docs" / "locales" / "zh_CN" / "LC_MESSAGES"
NO_WORDS = re.compile(r"\{\w+\}`[^`]*`|`[^`]*`|\[\]\([^)]*\)|^\*?\d{3}(?:-\d+ · |, |: ).*")
"""What needs no translation: references, code, and headings of the sources."""


def build(docs, builder, target, *options):
    """Run Sphinx as `make docs` does; the finished process."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, *options, docs, target]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE)


class Page(HTMLParser):
    """The links, anchors and images of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.images, self.language = [], {""}, [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values.get("id") or "", values.get("name") or ""}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "img":
            self.images.append(values)
        elif tag == "html":
            self.language = values.get("lang")


@pytest.fixture(scope="module")
def site(whole_docs):
    """The folder with one folder of pages for each language."""
    target = whole_docs / "_build"
    for language in LANGUAGES:
        process = build(whole_docs, "html", target / language, "-D", f"language={language}")
        assert process.returncode == 0, process.stderr[-3000:]
    return target


@pytest.fixture(scope="module")
def pages(site):
    """Path -> page, of all pages in both languages."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.glob("*/**/*.html")}


@pytest.mark.timeout(2 * DEADLINE)
def test_every_recipe_has_a_page_in_both_languages(site, pages):
    for language in LANGUAGES:
        for name in list_recipes():
            assert pages[site / language / "recipes" / f"{name}.html"].language == language.replace("_", "-")


def test_every_link_and_every_anchor_leads_somewhere(site, pages):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target not in pages and target.is_dir():
                target /= "index.html"
            is_there = target.exists() and (target not in pages or unquote(parts.fragment) in pages[target].anchors)
            if not is_there:
                lost.append(f"{path.relative_to(site)}: {link}")
    assert lost == []


def test_every_page_leads_to_its_twin_in_the_other_language(site, pages):
    for name in ("index", "recipes/hybridize", "concordance/000", "reference/api/tfperf"):
        for language, other in zip(LANGUAGES, reversed(LANGUAGES), strict=True):
            path = site / language / f"{name}.html"
            targets = {(path.parent / link).resolve() for link in pages[path].links if "#" not in link}
            assert (site / other / f"{name}.html").resolve() in targets


def test_every_image_says_what_it_shows(pages):
    images = [image for page in pages.values() for image in page.images]
    assert all(image.get("alt") for image in images), images


def test_the_keyboard_reaches_what_scrolls_and_every_column_has_a_name(pages):
    """Where a page is narrow, wide tables and code scroll; accessibility asks for both."""
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert "<pre>" not in text, path
        assert '<div class="table-wrapper' not in text, path
        assert '<th class="head"><p></p></th>' not in text, path


@pytest.mark.timeout(2 * DEADLINE)
def test_a_link_to_nowhere_fails_the_build(docs, tmp_path):
    (docs / "start.md").write_text("# Start\n\n[nowhere](no_such_page.md)\n", encoding="utf-8")
    process = build(docs, "dummy", tmp_path / "built")
    assert process.returncode != 0
    assert "no_such_page.md" in process.stderr


@pytest.mark.timeout(2 * DEADLINE)
def test_no_string_of_the_translated_pages_lacks_its_chinese(whole_docs, tmp_path):
    process = build(whole_docs, "gettext", tmp_path)
    assert process.returncode == 0, process.stderr[-3000:]
    lacking = []
    for file in sorted(CATALOGS.glob("*.po")):
        chinese = {message.id: message for message in read_po(file.read_bytes().splitlines(keepends=True))}
        for message in read_po((tmp_path / f"{file.stem}.pot").read_bytes().splitlines(keepends=True)):
            if re.search("[A-Za-z]{2}", NO_WORDS.sub("", message.id)):
                translated = chinese.get(message.id)
                if translated is None or not translated.string or translated.fuzzy:
                    lacking.append(f"{file.stem}: {message.id[:80]}")
    assert lacking == [], f"{len(lacking)} untranslated; make translations, then fill docs/locales"


def test_the_pages_that_readers_begin_with_are_translated():
    made = next(
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "TRANSLATED :=" in line
    )
    assert {path.stem for path in CATALOGS.glob("*.po")} == set(made.partition(":=")[2].split())
