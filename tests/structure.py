"""The shape of a source tree: packages, imports, cycles, sizes, words.

``python tests/structure.py [FOLDER]`` prints the figures of a checkout, by default of the project that it is part of;
with ``--speed`` also how long it takes to import, to show help, to simulate and, as root, to tick.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

# Words that said something private here, where the field has a term; a search for them as names or in prose.
DIALECT = re.compile(
    r"\b(one|ones|found|told|tell|telling|whom|whoever|place|places|course|aside|outlet|dawdles?|granted|worth|silence|"
    r"office|reckon\w*|likewise|asker|asked|stands|lest|pupil|accepted:)\b"
)
LANGUAGES = {".py": "Python", ".go": "Go", ".c": "C", ".h": "C", ".yaml": "YAML", ".sh": "shell"}


class SourceTree:
    """A checkout's parts of `slicepilot`, as the links in ``.links/slicepilot`` name them.

    Attributes:
        parts: names of the folders at the top.
        packages: folder of every package by its dotted name below `slicepilot`.
        modules: file of every module, packages included.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parts = {link.name for link in (root / ".links" / "slicepilot").iterdir() if link.is_dir()}
        files = [file for part in sorted(self.parts) for file in sorted((root / part).rglob("*.py"))]
        self.modules = {
            ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files
        }
        self.packages = {name: file.parent for name, file in self.modules.items() if file.name == "__init__.py"}

    def package_of(self, module: str) -> str:
        """The package that a module is in, or is."""
        return module if module in self.packages else module.rpartition(".")[0]

    def imported(self, module: str) -> set[str]:
        """Modules of ours that a module imports, at its top or inside functions."""
        file = self.modules[module]
        package = file.relative_to(self.root).parent.parts
        result = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                name = (*base, *(node.module.split(".") if node.module else ()))
                if not node.level:
                    if name[0] != "slicepilot":
                        continue
                    name = name[1:]
                named = [".".join((*name, alias.name)) for alias in node.names]
                result |= {item if item in self.modules else ".".join(name) for item in named}
            elif isinstance(node, ast.Import):
                result |= {
                    alias.name.removeprefix("slicepilot.")
                    for alias in node.names
                    if alias.name.startswith("slicepilot.")
                }
        return (result & self.modules.keys()) - {module}

    def file_graph(self) -> dict[str, set[str]]:
        """What each module imports."""
        return {module: self.imported(module) for module in self.modules}

    def package_graph(self) -> dict[str, set[str]]:
        """What each package imports of others."""
        graph: dict[str, set[str]] = {name: set() for name in self.packages}
        for module, others in self.file_graph().items():
            graph[self.package_of(module)] |= {self.package_of(other) for other in others}
        return {name: others - {name} for name, others in graph.items()}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other: strongly connected components of several nodes."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    names = sorted(graph)
    at = {name: index for index, name in enumerate(names)}
    edges = [(at[name], at[other]) for name, others in graph.items() for other in others]
    rows, columns = zip(*edges, strict=True)
    matrix = coo_matrix(([1] * len(edges), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, connection="strong")
    counts = Counter(labels.tolist())
    return [
        [name for name, label in zip(names, labels, strict=True) if label == group]
        for group in counts
        if counts[group] > 1
    ]


def tracked(root: Path) -> list[Path]:
    """Files under version control, links to folders left out."""
    names = subprocess.run(["git", "-C", root, "ls-files"], check=True, capture_output=True, text=True).stdout
    return [file for name in names.splitlines() if (file := root / name).is_file() and not file.is_symlink()]


def part_of(file: Path) -> str:
    """The folder at the top, or "tests" for a test in Go beside what it tests."""
    return "tests" if file.name.endswith("_test.go") else file.parts[0]


def lines_by_part(root: Path) -> dict[tuple[str, str], int]:
    """Lines of every folder at the top by language."""
    lines: Counter[tuple[str, str]] = Counter()
    for file in tracked(root):
        if language := LANGUAGES.get(file.suffix):
            lines[part_of(file.relative_to(root)), language] += len(file.read_bytes().splitlines())
    return dict(lines)


def functions(tree: SourceTree) -> Iterator[tuple[str, int, int]]:
    """Name, lines and positional parameters of each function; commands, whose parameters are options, have 0."""
    for module, file in tree.modules.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                parameters = [*node.args.posonlyargs, *node.args.args]
                command = any("typer" in ast.dump(item.annotation) for item in parameters if item.annotation)
                count = len([item for item in parameters if item.arg not in {"self", "cls"}])
                yield f"{module}.{node.name}", (node.end_lineno or 0) - node.lineno + 1, 0 if command else count


def figures(root: Path) -> dict[str, str]:
    """What can be counted without running anything."""
    tree = SourceTree(root)
    lines = lines_by_part(root)

    def total(language: str, tests: bool = False) -> int:
        return sum(count for (part, of), count in lines.items() if of == language and (part == "tests") == tests)

    code = {part: count for (part, language), count in lines.items() if language == "Python" and part != "tests"}
    sized = list(functions(tree))
    per_package = Counter(tree.package_of(module) for module in tree.modules if module not in tree.packages)
    longest, parameters = (max(sized, key=lambda row, column=column: row[column]) for column in (1, 2))
    files = [file for file in tracked(root) if file.suffix == ".py" and file.relative_to(root).parts[0] != "tests"]
    dialect = Counter(word for file in files for word in DIALECT.findall(file.read_text()))
    commonest = ", ".join(f"{word} {count}" for word, count in dialect.most_common(8))
    words = {file: len(file.read_text().split()) for file in tracked(root) if file.suffix == ".md"}
    return {
        "Python, without tests": f"{total('Python')} ({', '.join(f'{part} {n}' for part, n in sorted(code.items()))})",
        "Python tests": str(total("Python", tests=True)),
        "Go, without tests": str(total("Go")),
        "Go tests": str(total("Go", tests=True)),
        "C, without tests": str(total("C")),
        "files of Python": str(len(files)),
        "packages": str(len(tree.packages)),
        "most files in a package": ", ".join(f"{name} {count}" for name, count in per_package.most_common(3)),
        "longest function": f"{longest[1]} lines ({longest[0]})",
        "median function": f"{statistics.median(row[1] for row in sized):g} lines of {len(sized)} functions",
        "longest parameter list": f"{parameters[2]} ({parameters[0]})",
        "cycles": f"{len(cycles(tree.file_graph()))} of files, {len(cycles(tree.package_graph()))} of packages",
        "words of the dialect": f"{len(dialect)} distinct, {sum(dialect.values())} times ({commonest})",
        "words of documents": f"{sum(words.values())} in {len(words)} files",
    }


def speed(root: Path) -> Iterator[tuple[str, str]]:
    """Figures of a checkout that is set up (``make setup live``), as text, by name; medians of five starts."""
    python = root / ".venv" / "bin" / "python"

    def output(*arguments: str) -> str:
        return subprocess.run([python, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd="/").stdout

    def seconds(*arguments: str) -> str:
        times = []
        for _ in range(5):
            begun_s = time.perf_counter()
            output(*arguments)
            times.append(time.perf_counter() - begun_s)
        return f"{statistics.median(times):.2f} s"

    yield "import slicepilot", seconds("-c", "import slicepilot")
    yield "slicepilot --help", seconds("-m", "slicepilot.cli", "--help")
    simulator = json.loads(output("-m", "slicepilot.cli", "bench", "sim", "--json"))
    yield "bench sim", f"{simulator['vector_env_steps_per_s']:.0f} steps/s"
    if os.geteuid() == 0:
        loop = json.loads(output("-m", "slicepilot.cli", "bench", "loop", "--json"))
        for situation in ("idle", "contended"):
            total_us = loop[situation]["total_us"]
            yield f"bench loop, {situation}", f"p50 {total_us['p50']:.0f} us, p99 {total_us['p99']:.0f} us"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Print the figures of a checkout.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--speed", action="store_true", help="measure speed, too, on a quiet machine")
    options = parser.parse_args()
    root = options.folder.resolve()
    for name, figure in (*figures(root).items(), *(speed(root) if options.speed else ())):
        print(f"{name:<28} {figure}", flush=True)


if __name__ == "__main__":
    main()
