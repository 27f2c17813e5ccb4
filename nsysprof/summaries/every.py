"""All summaries: a new one is a file beside this one and an entry here."""

from __future__ import annotations

from nsysprof.summaries import copies, gaps, memory, streams, unified
from nsysprof.summaries.summary import Summary

SUMMARIES: tuple[Summary, ...] = (
    copies.SUMMARY,
    memory.SUMMARY,
    unified.SUMMARY,
    streams.SUMMARY,
    gaps.SUMMARY,
)
FILES = tuple(table.file for summary in SUMMARIES for table in summary.tables)
