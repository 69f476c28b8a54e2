"""Size budget: keeps files and functions small enough to read.

Limits: files of 500 lines, functions of 60 lines and 8 parameters, 100 columns, and ceilings for
the package's Python as a whole and for the dashboard's files. Prints the largest files, and every
breach; exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
MAX_COLUMNS = 100
MAX_TOTAL_LINES = 36_000
MAX_PAGE_LINES = 4_500
PAGE_FILES = (".html", ".css", ".js")


def breaches(path: Path) -> Iterator[str]:
    """Every limit that one Python file of the package breaks."""
    yield from file_breaches(path)
    name = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from function_breaches(f"{name}:{node.lineno}: {node.name}", node)


def file_breaches(path: Path) -> Iterator[str]:
    """Limits that hold for a file in any language."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{name}: {len(lines)} lines, limit {MAX_FILE_LINES}"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"{name}:{number}: {len(line)} columns, limit {MAX_COLUMNS}"


def function_breaches(where: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Every limit that one function breaks; ``self`` and ``cls`` are no parameters."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length > MAX_FUNCTION_LINES:
        yield f"{where} has {length} lines, limit {MAX_FUNCTION_LINES}"
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = len([name for name in names if name not in ("self", "cls")])
    if count > MAX_PARAMETERS:
        yield f"{where} has {count} parameters, limit {MAX_PARAMETERS}"


def main() -> int:
    """Checks the whole package."""
    paths = sorted((ROOT / "octavo").rglob("*.py"))
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    total = sum(sizes.values())
    found = [breach for path in paths for breach in breaches(path)]
    if total > MAX_TOTAL_LINES:
        found.append(f"octavo: {total} lines in all, limit {MAX_TOTAL_LINES}")
    pages = [path for path in (ROOT / "octavo").rglob("*") if path.suffix in PAGE_FILES]
    found += [breach for path in pages for breach in file_breaches(path)]
    page_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in pages)
    if page_lines > MAX_PAGE_LINES:
        found.append(f"dashboard: {page_lines} lines in all, limit {MAX_PAGE_LINES}")
    for path in sorted(paths, key=sizes.__getitem__, reverse=True)[:5]:
        print(f"{sizes[path]:5} {path.relative_to(ROOT)}")
    print(f"{total:5} lines in {len(paths)} files (ceiling {MAX_TOTAL_LINES})")
    print(f"{page_lines:5} lines in {len(pages)} files of pages (ceiling {MAX_PAGE_LINES})")
    for breach in found:
        print(f"over budget: {breach}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
