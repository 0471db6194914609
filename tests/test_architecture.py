"""The table of docs/architecture.md: each equation of the paper on the line that it names."""

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (\d+) \| .* \| `(ppmn/[\w/]+\.py):(\d+)` \| `(.+)` \|$", re.MULTILINE)
MARK = re.compile(r"\beq\. (\d+)")
EQUATIONS = {*range(1, 17)}


def equations(line: str) -> set[int]:
    """The equations that a line's comment names."""
    return {int(number) for number in MARK.findall(line.partition("#")[2])}


def marked_lines() -> dict[int, list[str]]:
    """Each equation with the lines of ppmn/model that carry its mark."""
    lines: dict[int, list[str]] = {}
    for file in sorted((PROJECT / "ppmn" / "model").glob("*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for equation in equations(line):
                place = f"{file.relative_to(PROJECT).as_posix()}:{number}"
                lines.setdefault(equation, []).append(f"{place}  {line.strip()}")
    return lines


def test_table_names_the_line_of_every_equation() -> None:
    rows = ROW.findall((PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    wrong = {int(equation) for equation, *_ in rows} ^ EQUATIONS
    for equation, file, number, code in rows:
        lines = (PROJECT / file).read_text(encoding="utf-8").splitlines()
        line = lines[int(number) - 1] if int(number) <= len(lines) else ""
        if code not in line or int(equation) not in equations(line):
            wrong.add(int(equation))
    marked = marked_lines()
    current = [
        f"eq. {n}: {place}" for n in sorted(wrong) for place in marked.get(n, ["no line has its mark"])
    ]
    assert not wrong, "docs/architecture.md should name these lines:\n" + "\n".join(current)
