"""The package's Python code in two trees, without docstrings, comments and blank lines.

python -m bench.code_size OLD NEW

OLD and NEW are folders that hold `ppmn/`, or git revisions. Counted are lines with code on them, tokens, and
the characters of tokens: tokens depend neither on how lines are wrapped nor on the length of names.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path

WHITESPACE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


@dataclass(frozen=True)
class CodeSize:
    """What a tree holds."""

    files: int
    lines: int
    tokens: int
    characters: int


def docstring_lines(source: str) -> set[int]:
    """The lines that docstrings stand on."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def measure_source(source: str) -> tuple[int, int, int]:
    """Lines, tokens and characters of code."""
    skipped, lines, tokens, characters = docstring_lines(source), set(), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in WHITESPACE or token.start[0] in skipped:
            continue
        lines |= set(range(token.start[0], token.end[0] + 1)) if token.string else set()
        tokens += 1
        characters += len(token.string)
    return len(lines), tokens, characters


def measure_tree(tree: str) -> CodeSize:
    """A folder, or a revision of the repository here."""
    if Path(tree).is_dir():
        return measure_package(Path(tree) / "ppmn")
    archive = subprocess.run(["git", "archive", tree, "ppmn"], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as content:
            content.extractall(folder, filter="data")
        return measure_package(Path(folder) / "ppmn")


def measure_package(package: Path) -> CodeSize:
    """All Python files below a folder."""
    sizes = [measure_source(file.read_text(encoding="utf-8")) for file in package.rglob("*.py")]
    lines, tokens, characters = map(sum, zip(*sizes, strict=True))
    return CodeSize(len(sizes), lines, tokens, characters)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD", help="folder that holds ppmn/, or a git revision")
    parser.add_argument("new", metavar="NEW", help="folder that holds ppmn/, or a git revision")
    args = parser.parse_args()
    old, new = measure_tree(args.old), measure_tree(args.new)
    print(f"{'':12}{'old':>10}{'new':>10}{'new / old':>11}")
    for name in ("files", "lines", "tokens", "characters"):
        before, after = getattr(old, name), getattr(new, name)
        print(f"{name:12}{before:>10,}{after:>10,}{after / before:>11.3f}")


if __name__ == "__main__":
    main()
