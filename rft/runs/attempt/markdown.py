"""Tables and numbers as the research log writes them."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; `|` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None) -> str:
    """Four significant digits, `-` for none."""
    return "-" if value is None else f"{value:.4g}"
