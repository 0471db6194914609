"""The layout of the package: layers, sizes of files and functions, one name and one body for one thing."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ppmn"
LAYERS = (
    {"config", "distributed", "errors", "files", "images", "presets", "samples", "types"},
    {"data", "model", "phrases"},
    {"baselines"},
    {"convert", "grounding", "synthetic"},
    {"evaluation"},
    {"serve", "training"},
    {"cli", "demo"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
BOTTOM, TOP = 0, len(LAYERS) - 1  # modules of one of these may know each other


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file, ast.parse(file.read_text(encoding="utf-8"))


def room(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module of ppmn that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ppmn":
            if node.module == "ppmn":
                yield from (f"ppmn.{name.name}" for name in node.names)
            yield node.module
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "ppmn")


def test_a_room_knows_only_the_layers_below() -> None:
    wrong = []
    for file, tree in modules():
        mine = room(file)
        if mine == "__init__":
            continue
        for name in imported(tree):
            parts = name.split(".")
            theirs = parts[1] if len(parts) > 1 else ""
            if theirs not in LEVEL or theirs == mine:
                continue
            same = LEVEL[theirs] == LEVEL[mine] not in (BOTTOM, TOP)
            if LEVEL[theirs] > LEVEL[mine] or same:
                wrong.append(f"{file.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    known = {
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f, _ in modules()
    }
    for file, tree in modules():
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name == "ppmn":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in known:
                graph[name] |= {f"{node.module}.{n.name}" for n in node.names} & known or {node.module}
    state: dict[str, int] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert state.get(name) != 1, f"a cycle: {' -> '.join((*path, name))}"
        if name in state:
            return
        state[name] = 1
        for other in sorted(graph[name] - {name, "ppmn"}):
            visit(other, (*path, name))
        state[name] = 2

    for name in sorted(known):
        visit(name, ())


def test_few_files_stand_outside_of_rooms() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_no_file_name_stands_in_two_rooms() -> None:
    places = defaultdict(list)
    for file, _ in modules():
        if file.name not in ("__init__.py", "__main__.py") and room(file) != "cli":
            places[file.name].append(str(file.relative_to(ROOT)))
    assert not (twice := [where for where in places.values() if len(where) > 1]), twice


def test_no_public_name_stands_in_two_modules() -> None:
    places = defaultdict(list)
    for file, tree in modules():
        if room(file) in ("cli", "__init__"):
            continue
        names: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
        for name in names:
            if not name.startswith("_"):
                places[name].append(str(file.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in sorted(twice.items()))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    body = node.body
    return (
        body[1:]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        else body
    )


class Normalise(ast.NodeTransformer):
    """Local names by the order in which they come, so that renamed copies are found too."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.setdefault(node.id, f"v{len(self.names)}"), node.ctx)


def test_no_function_body_stands_twice() -> None:
    bodies = defaultdict(list)
    for file, tree in modules():
        for node in functions(tree):
            body = body_of(node)
            if sum(isinstance(n, ast.stmt) for statement in body for n in ast.walk(statement)) > 5:
                normal = Normalise()
                key = "\n".join(ast.dump(normal.visit(statement)) for statement in body)
                bodies[key].append(f"{file.relative_to(ROOT)}:{node.name}")
    assert not (twice := [where for where in bodies.values() if len(where) > 1]), twice


def test_files_and_functions_are_short() -> None:
    long = []
    for file in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]:
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if lines > 300:
            long.append(f"{file.relative_to(ROOT)} has {lines} lines")
    for file, tree in modules():
        for node in functions(tree):
            body = body_of(node)
            lines = (node.end_lineno or 0) - body[0].lineno + 2 if body else 1  # with its first line
            if lines > 40:
                long.append(f"{file.relative_to(ROOT)}:{node.name} has {lines} lines")
    for file in PACKAGE.rglob("*.js"):
        long += [f"{file.relative_to(ROOT)}:{name} has {n} lines" for name, n in js_functions(file) if n > 40]
    assert not long, "\n".join(long)


def js_functions(file: Path) -> Iterator[tuple[str, int]]:
    """Functions at the top level of a script, by the indentation that its formatting keeps."""
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        found = re.match(r"^(?:export )?(?:async )?function\*? (\w+)", line)
        if found:
            end = next((n for n in range(number, len(lines)) if lines[n].startswith("}")), number)
            yield found[1], end - number + 1
