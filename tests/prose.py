"""Find sentences that are hard to read in docstrings, comments and pages: python tests/prose.py PATH...

`make lint` runs it on the package and the pages, and fails if more than 2 % of the sentences are found.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS, MOST_SHARE = 32, 0.02
FOUND = {
    "a sentence opens with a relative clause": re.compile(r"^(What|Where|Whoever|Of what|Of which)\b(?!.*\?$)"),
    "a reference to an absent noun": re.compile(r"\b(that|those) of\b|\bthe one (before|after)\b", re.IGNORECASE),
    "a vague person or place": re.compile(r"\b(nobody|somebody|everybody|whoever)\b", re.IGNORECASE),
    "a word that the field does not use": re.compile(
        r"\bto the bit\b|\banew\b|\bunder way\b|\bcomes? of\b|\bgoes? on\b|\bzygote\b|\bdoorbell\b|\bbells?\b",
        re.IGNORECASE,
    ),
}
NOT_PROSE = re.compile(r"^\s*(\||>>>|\.\.\.|#|```|:::|<!--|!\[|Traceback|parenv\.errors)")
EXAMPLE = re.compile(r"^\s*>>>.*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[(])")


def paragraphs_of_page(text: str) -> Iterator[str]:
    """Yield the paragraphs of a Markdown page, without code, tables and generated parts."""
    text = re.sub(r"```.*?```|~~~.*?~~~", "\n\n", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        lines = [line for line in block.splitlines() if not NOT_PROSE.match(line)]
        yield " ".join(lines)


def paragraphs_of_code(text: str) -> Iterator[str]:
    """Yield the paragraphs of docstrings and comments of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            without_examples = EXAMPLE.sub("", ast.get_docstring(node) or "")
            yield from paragraphs_of_page(re.sub(r"\n +(\w+(?:, \w+)*): ", r"\n\n", without_examples))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string and "type:" not in token.string:
            yield token.string.lstrip("# ")


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph, with code and link targets left out."""
    plain = re.sub(r"``?[^`]+``?", "X", re.sub(r"\]\([^)]*\)", "]", paragraph))
    plain = re.sub(r":\w+:`[^`]*`|\[|\]|\*\*", "", plain).strip(" -*")
    yield from (part.strip() for part in END.split(plain) if len(part.split()) > 2)


def problems(sentence: str) -> list[str]:
    """Return what is hard to read in a sentence."""
    words = len(sentence.split())
    long = [f"{words} words"] if words > MOST_WORDS else []
    return long + [name for name, pattern in FOUND.items() if pattern.search(sentence)]


def main(paths: list[str]) -> int:
    """Print what was found in files and folders; return 1 if it is too much."""
    files = [file for path in map(Path, paths) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    total = found = 0
    for file in files:
        if file.suffix not in (".py", ".md") or "results" in file.parts:
            continue
        parts = (paragraphs_of_page if file.suffix == ".md" else paragraphs_of_code)(file.read_text())
        for sentence in (sentence for paragraph in parts for sentence in sentences(paragraph)):
            total += 1
            if wrong := problems(sentence):
                found += 1
                print(f"{file}: {', '.join(wrong)}: {sentence}")
    print(f"{found} of {total} sentences ({found / max(1, total):.1%}), at most {MOST_SHARE:.0%} allowed")
    return int(found > MOST_SHARE * total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
