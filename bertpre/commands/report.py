"""`bertpre report`: write the report of finished runs again, and several runs side by side."""

from pathlib import Path

from bertpre.console import command_line
from bertpre.errors import UserError, is_disk_full, reason
from bertpre.reporting.comparison import printed_metrics, read_facts, write_comparison
from bertpre.reporting.report import write_report
from bertpre.run_directory import load_run, read_results


def report(run_dirs: list[str]) -> None:
    """Write each run's `report.html` from its results and print the path.

    Of several runs, print their metrics side by side, and write `comparison.html` in the first one's directory. Raises
    UserError for a folder that is not a run directory, and for a run without results.
    """
    runs = [load_run(folder) for folder in run_dirs]
    for folder, _ in runs:
        if not read_results(folder):
            raise UserError(f"{folder}: there are no results yet; run `{command_line('run', folder)}` first")
    try:
        for folder, recipe in runs:
            print(f"report: {write_report(folder, recipe)}")
        if len(runs) > 1:
            facts = read_facts(runs)
            print(*printed_metrics(facts), sep="\n")
            print(f"comparison: {write_comparison(facts)}")
    except OSError as error:
        if is_disk_full(error):
            raise
        place = Path(error.filename or runs[0][0]).parent
        raise UserError(f"{place}: cannot be written: {reason(error)}; copy the run to a folder of your own") from None
