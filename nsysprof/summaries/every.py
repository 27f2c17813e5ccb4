"""All summaries: a new one is a file beside this one and an entry here."""

from __future__ import annotations

from nsysprof.summaries import calls, copies, gaps, streams
from nsysprof.summaries.summary import Summary

SUMMARIES: tuple[Summary, ...] = (calls.SUMMARY, copies.SUMMARY, streams.SUMMARY, gaps.SUMMARY)
FILES = tuple(table.file for summary in SUMMARIES for table in summary.tables)
