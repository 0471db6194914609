"""The captions of tests/phrases/cases.txt."""

from pathlib import Path


def read_cases() -> list[tuple[str, list[str]]]:
    """Captions, each with its phrases."""
    cases = []
    for line in (
        (Path(__file__).parents[1] / "phrases" / "cases.txt").read_text(encoding="utf-8").splitlines()
    ):
        if not line or line.startswith("# "):
            continue
        caption, phrases = line.replace(r"\n", "\n").replace(r"\r", "\r").split("=>")
        cases.append((caption.rstrip(" "), [part.strip(" ") for part in phrases.split("|") if part.strip()]))
    return cases


CASES = read_cases()
