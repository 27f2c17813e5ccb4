"""The list of all summaries. A new summary needs a file in this folder and an entry in this list."""

from nsysprof.summaries import backward, calls, collectives, copies, gaps, gpu_metrics, memory, streams, unified
from nsysprof.summaries.summary import Summary

SUMMARIES: tuple[Summary, ...] = tuple(
    room.SUMMARY for room in (calls, copies, collectives, memory, unified, streams, gaps, gpu_metrics, backward)
)
FILES = tuple(table.file for summary in SUMMARIES for table in summary.tables)
