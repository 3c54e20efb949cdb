"""The report of a run: one HTML file, made from the run folder alone."""

from turnwise.report.page import write_eval_report, write_report

__all__ = ["write_eval_report", "write_report"]
