"""The study of planted faults: its table and its findings are those of its CSV."""

import csv
import re
from pathlib import Path

STUDY = Path(__file__).parents[2] / "analysis" / "planted-faults"


def test_the_table_and_the_findings_are_those_of_the_verdicts() -> None:
    """Each dose with its figures, how many were named, how many agree, and that no clean run is blamed."""
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    with (STUDY / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text[text.index("| fault | dose |") :].split("\n\n")[0].splitlines()[2:]
    ]
    names = ("step_ms", "window_ms", "added_ms", "named_ms")
    expected = [
        [row["fault"], row["dose"], *(f"{float(row[name]):.2f}" for name in names), row["named"] or "–", row["verdict"]]
        for row in rows
        if row["dose"] != "0"
    ]
    assert shown == expected
    assert {row["verdict"] for row in rows if row["dose"] == "0"} == {"silent, rightly"}
    verdicts = [row["verdict"] for row in rows]
    named, near = (sum(verdict.startswith(word) for verdict in verdicts) for word in ("named", "named, within"))
    [claim] = re.findall(r"In (\d+) of the (\d+)\scases", text)
    assert claim == (str(near), str(named))
    assert len({row["fault"] for row in rows}) == int(re.findall(r"Of the (\d+) faults", text)[0])
    assert verdicts.count("missed") == 1
    assert "blames something else" not in verdicts
