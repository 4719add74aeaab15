"""The docs stay short: limits on words and on sentences of README.md and docs/, without code, tables and headings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 16_000  # of all pages together
MOST_WORDS_PER_SENTENCE = 15  # on average over all pages
LONGEST_SENTENCE = 40  # words

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1\s*?$", re.DOTALL | re.MULTILINE)
NO_PROSE = re.compile(r"^ *(\||#|!\[|<|\[!\[).*$", re.MULTILINE)  # rows of tables, headings, pictures, HTML
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)  # says which result a number is, see docs/site/page_numbers.py
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`")
BLOCKS = re.compile(r"\n\s*\n|\n\s*(?:[-*+]|\d+\.)\s+| · ")  # paragraphs, items of lists, links in a row
SENTENCES = re.compile(r"(?<=[.!?])[*_)\"”]*\s+(?=[*_(\"“]*(?:[A-ZΑ-Ω\x00]|heliomesh))")
WORD = re.compile(r"\w")


def sentences(text: str) -> list[str]:
    """Sentences of a page's prose; a piece of code counts as one word, a link as what it shows."""
    shown = COMMENT.sub("", FENCE.sub("\n\n", text))
    prose = LINK.sub(r"\1", CODE.sub("\x00code", NO_PROSE.sub("\n", shown)))
    found = (sentence for block in BLOCKS.split(prose) for sentence in SENTENCES.split(block.strip()))
    return [" ".join(sentence.split()) for sentence in found if words(sentence)]


def words(sentence: str) -> int:
    """Words of a sentence; what has no letter or digit is none."""
    return sum(bool(WORD.search(word)) for word in sentence.split())


def test_what_counts_as_a_sentence():
    page = (
        "# A heading\n\nOne link, [two words](a.md#b). `a b c` acts, e.g. on i.i.d. data.\n"
        "It wraps\nhere.\n\n| a | table |\n|---|---|\n\n- An item\n- **Bold.** More\n\n"
        "```\ncode. Not counted.\n```\n![picture](x.svg)\n"
    )
    counted = [words(sentence) for sentence in sentences(page)]
    assert counted == [4, 6, 3, 2, 1, 1]


def test_the_docs_have_few_words_in_short_sentences():
    counts = [words(sentence) for page in PAGES for sentence in sentences(page.read_text(encoding="utf-8"))]
    assert sum(counts) <= MOST_WORDS
    assert sum(counts) / len(counts) <= MOST_WORDS_PER_SENTENCE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_is_long(page):
    long = [found for found in sentences(page.read_text(encoding="utf-8")) if words(found) > LONGEST_SENTENCE]
    assert long == []
