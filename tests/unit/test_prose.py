"""Check that the check of prose finds the listed patterns, and nothing in plain sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import main, paragraphs_of_code, paragraphs_of_page, problems, sentences


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("Where workers act, each keeps its rows.", ["a sentence opens with a relative clause"]),
        ("What does a rollout contain?", []),
        ("The results are those of one process.", ["a reference to an absent noun"]),
        ("So nobody waits for the slowest.", ["a vague person or place"]),
        ("The run repeats to the bit.", ["a word that the field does not use"]),
        ("word " * 33, ["33 words"]),
        ("Each worker runs the policy on the full batch and keeps its own rows.", []),
    ],
)
def test_a_sentence_has_these_problems(sentence: str, wrong: list[str]) -> None:
    assert problems(sentence) == wrong


def test_code_tables_and_links_of_pages_are_left_out() -> None:
    page = "# Title\n\nOne `nobody` and [two](nobody.md) words.\n\n```python\nnobody = 1\n```\n\n| nobody | waits |\n"
    assert [s for paragraph in paragraphs_of_page(page) for s in sentences(paragraph)] == ["One X and two words."]


def test_docstrings_and_comments_are_read_without_their_examples() -> None:
    docstring = '"""Return one.\n\n    >>> nobody()\n    """'
    code = f"def f():\n    {docstring}\n    # A comment has words.\n    return 1  # noqa: nobody\n"
    assert [s for paragraph in paragraphs_of_code(code) for s in sentences(paragraph)] == ["A comment has words."]


def test_too_many_sentences_are_a_failure(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Each worker has rows. " * 60)
    assert main([str(page)]) == 0
    page.write_text("Each worker has rows. " * 30 + "Where it is, nobody waits. ")
    assert main([str(page)]) == 1
