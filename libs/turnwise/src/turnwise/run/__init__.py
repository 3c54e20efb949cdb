"""The run folder: what a run leaves on disk, whole whenever it ends.

runs/<method>-<time>/
  config.json       the resolved configuration
  metrics.jsonl     one row per training step and evaluation (`metrics`)
  episodes.jsonl    traces of selected episodes (`traces`, `authors`)
  summary.json      before and after, or an evaluation's result, and what it means (`summary`)
  report.html       made from the above (`turnwise.report`)
  checkpoints/      step_N, complete when manifest.json is there
  logs/
"""
