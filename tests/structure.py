"""The shape of a source tree: packages, imports, cycles, sizes.

``python tests/structure.py [FOLDER]`` prints the figures of a checkout, this one unless another is named.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path


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
        found = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                name = (*base, *(node.module.split(".") if node.module else ()))
                if not node.level:
                    if name[0] != "slicepilot":
                        continue
                    name = name[1:]
                named = [".".join((*name, alias.name)) for alias in node.names]
                found |= {one if one in self.modules else ".".join(name) for one in named}
            elif isinstance(node, ast.Import):
                found |= {
                    alias.name.removeprefix("slicepilot.")
                    for alias in node.names
                    if alias.name.startswith("slicepilot.")
                }
        return (found & self.modules.keys()) - {module}

    def file_graph(self) -> dict[str, set[str]]:
        """What each module imports."""
        return {module: self.imported(module) for module in self.modules}

    def package_graph(self) -> dict[str, set[str]]:
        """What each package imports of others."""
        graph: dict[str, set[str]] = {name: set() for name in self.packages}
        for module, others in self.file_graph().items():
            graph[self.package_of(module)] |= {self.package_of(other) for other in others}
        return {name: others - {name} for name, others in graph.items()}

    def longest_parameter_list(self) -> tuple[int, str]:
        """The most positional parameters of a function that is no command, and where."""
        longest = (0, "")
        for module, file in self.modules.items():
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                names = [*node.args.posonlyargs, *node.args.args]
                options = any("typer" in ast.dump(one.annotation) for one in names if one.annotation)
                count = len([one for one in names if one.arg not in {"self", "cls"}])
                if not options and count > longest[0]:
                    longest = (count, f"{module}.{node.name}")
        return longest


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other: strongly connected components of more than one."""
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
        [name for name, label in zip(names, labels, strict=True) if label == one] for one in counts if counts[one] > 1
    ]


def main(root: Path) -> None:
    """Print the figures."""
    tree = SourceTree(root)
    per_package = Counter(tree.package_of(module) for module in tree.modules if module not in tree.packages)
    lines = sum(len(file.read_text().splitlines()) for file in tree.modules.values())
    most = ", ".join(f"{name} {count}" for name, count in per_package.most_common(3))
    count, where = tree.longest_parameter_list()
    for what, figure in {
        "packages with files": len(per_package),
        "files": sum(per_package.values()),
        "most files in a package": most,
        "lines": lines,
        "cycles of files": len(cycles(tree.file_graph())),
        "cycles of packages": len(cycles(tree.package_graph())),
        "longest positional list": f"{count} ({where})",
    }.items():
        print(f"{what:<24} {figure}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve())
