"""The runs behind the answers to open exercises in TEACH.md: python run.py 05 [05.6].

The notebook's cells run first, but for those that only draw; then the cells of 05.py, which are the
notebook's template cells filled in. A number like 05.6 runs that answer alone.
"""

import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

HERE = Path(__file__).parent


def answers(number):
    """The cells of a file of answers, by exercise."""
    _, *parts = re.split(r"^# %% (\d\d\.\d).*\n", (HERE / f"{number}.py").read_text(), flags=re.M)
    return dict(zip(parts[::2], parts[1::2]))


def lesson(number):
    """The notebook's code without pictures and sliders."""
    [path] = (HERE.parents[1] / "notebooks").glob(f"{number}_*.ipynb")
    for cell in nbformat.read(path, as_version=4).cells:
        text = cell.source
        shows = re.search(r"^(show|explore|picture|table|agreement)\(|forest\(", text, re.M)
        if cell.cell_type == "code" and not shows and "summary(" not in text:
            yield new_code_cell(text)


class Told(NotebookClient):
    """Prints what the cells of the answers print, at once: some take minutes."""

    def output(self, outs, msg, display_id, cell_index):
        if self.nb.cells[cell_index].metadata.get("answer"):
            said = msg["content"]
            text = said.get("text") or said.get("data", {}).get("text/plain", "") + "\n"
            print(text, end="", flush=True)
        return super().output(outs, msg, display_id, cell_index)


def main(number, wanted):
    chosen = {k: v for k, v in answers(number).items() if not wanted or k in wanted}
    book = nbformat.v4.new_notebook(cells=list(lesson(number)))
    for name, text in chosen.items():
        said = f"print('---- {name}')\n{text}"
        book.cells.append(new_code_cell(said, metadata={"answer": name}))
    Told(book, timeout=3600, kernel_name="python3").execute()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
