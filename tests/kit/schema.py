"""The tables of an nsys SQLite export, as far as this project meets them, in three generations.

`TABLES` are the columns and types of an export by 2025.3; `STYLES` says what older exports have instead.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Column(NamedTuple):
    """One column: its declared type, and whether the exporter declares it NOT NULL."""

    type: str
    required: bool


_GPU_OP = "start!, end!, deviceId!, contextId!, greenContextId, streamId!, correlationId, globalPid"

_MPI_CALL = "start!, end, globalTid, textId"
_OPENACC = (
    "start!, end!, nameId!, globalTid, eventKind!, DeviceType!, lineNo!, cuDeviceId!, cuContextId!, cuStreamId!,"
    " srcFile, funcName"
)

_DECLARED = {
    "MPI_P2P_EVENTS": f"{_MPI_CALL}, commHandle, tag, remoteRank, size, requestHandle",
    "MPI_COLLECTIVES_EVENTS": f"{_MPI_CALL}, commHandle, rootRank, size, recvSize, requestHandle",
    "MPI_START_WAIT_EVENTS": f"{_MPI_CALL}, requestHandle",
    "MPI_OTHER_EVENTS": _MPI_CALL,
    "CUPTI_ACTIVITY_KIND_OPENACC_DATA": f"{_OPENACC}, bytes, varName",
    "CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH": f"{_OPENACC}, numGangs, numWorkers, vectorLength, kernelName",
    "CUPTI_ACTIVITY_KIND_OPENACC_OTHER": _OPENACC,
    "StringIds": "id!, value!:TEXT",
    "ANALYSIS_DETAILS": "globalVid!, duration!, startTime!, stopTime!",
    "ANALYSIS_FILE": "id!, filename:TEXT, contentId, globalPid!",
    "ProcessStreams": "globalPid!, filenameId!, contentId!",
    "TARGET_INFO_SYSTEM_ENV": "globalVid, devStateName!:TEXT, name!:TEXT, nameEnum!, value!:TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs, utcTime:TEXT, localTime:TEXT",
    "PROCESSES": "globalPid, pid, name:TEXT",
    "ThreadNames": "nameId!, priority, globalTid",
    "META_DATA_CAPTURE": "name!:TEXT, value:TEXT",
    "META_DATA_EXPORT": "name!:TEXT, value:TEXT",
    "EXPORT_META_DATA": "name!:TEXT, value:TEXT",
    "DIAGNOSTIC_EVENT": "timestamp!, timestampType!, source!, severity!, text!:TEXT, globalPid",
    "OSRT_API": "start!, end!, eventClass!, globalTid, nameId!, returnValue!, nestingLevel, callchainId",
    "PROFILER_OVERHEAD": "start!, end!, globalTid, nameId!, returnValue!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start!, end!, eventClass!, globalTid, correlationId, nameId!, returnValue!, callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_GPU_OP}, demangledName!, shortName!, mangledName, launchType, cacheConfig, registersPerThread!,"
        " gridX!, gridY!, gridZ!, blockX!, blockY!, blockZ!, staticSharedMemory!, dynamicSharedMemory!,"
        " localMemoryPerThread!, localMemoryTotal!, gridId!, sharedMemoryExecuted, graphNodeId,"
        " sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_GPU_OP}, bytes!, copyKind!, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId,"
        " dstDeviceId, dstContextId, migrationCause, graphNodeId, virtualAddress, copyCount"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU_OP}, value!, bytes!, graphNodeId, memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_GPU_OP}, graphId!, graphExecId!",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_GPU_OP}, deprecatedSyncType, syncType!, eventId!, eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "deviceId!, contextId!, greenContextId, streamId!, correlationId, globalPid, eventId!, eventSyncId"
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start!, globalPid!, deviceId!, contextId!, address!, pc!, bytes!, memKind!, memoryOperationType!,"
        " name:TEXT, correlationId, streamId, localMemoryPoolAddress, localMemoryPoolReleaseThreshold,"
        " localMemoryPoolSize, localMemoryPoolUtilizedSize, importedMemoryPoolAddress,"
        " importedMemoryPoolProcessId"
    ),
    "CUDA_GRAPH_NODE_EVENTS": "start!, end!, globalTid!, graphNodeId!, originalGraphNodeId, graphId, nameId!",
    "CUDA_GRAPH_EVENTS": "start!, end!, globalTid!, graphId!, originalGraphId, graphExecId, nameId!",
    "NVTX_EVENTS": (
        "start!, end, eventType!, rangeId, category, color, text:TEXT, globalTid, endGlobalTid, textId,"
        " domainId, uint64Value, int64Value, doubleValue:REAL, uint32Value, int32Value, floatValue:REAL,"
        " jsonTextId, jsonText:TEXT, binaryData:TEXT"
    ),
    "TARGET_INFO_GPU": (
        "vmId!, id!, name:TEXT, busLocation:TEXT, isDiscrete, l2CacheSize, totalMemory, memoryBandwidth,"
        " clockRate, smCount, pwGpuId, uuid:TEXT, luid, chipName:TEXT, cuDevice, ctxswDevPath:TEXT,"
        " ctrlDevPath:TEXT, revision, nodeMask, constantMemory, maxIPC, maxRegistersPerBlock,"
        " maxShmemPerBlock, maxShmemPerBlockOptin, maxShmemPerSm, maxRegistersPerSm, threadsPerWarp,"
        " asyncEngines, maxWarpsPerSm, maxBlocksPerSm, maxThreadsPerBlock, maxBlockDimX, maxBlockDimY,"
        " maxBlockDimZ, maxGridDimX, maxGridDimY, maxGridDimZ, computeMajor, computeMinor, smMajor, smMinor"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId!, pid!",
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        "nullStreamId!, hwId!, vmId!, processId!, deviceId!, contextId!, parentContextId, isGreenContext"
    ),
    "TARGET_INFO_CUDA_STREAM": "streamId!, hwId!, vmId!, processId!, contextId!, priority!, flag!",
}


def _column(text: str) -> tuple[str, Column]:
    declared, _, kind = text.strip().partition(":")
    return declared.rstrip("!"), Column(kind or "INTEGER", declared.endswith("!"))


TABLES: dict[str, dict[str, Column]] = {
    table: dict(_column(part) for part in text.split(",")) for table, text in _DECLARED.items()
}

_OLDER_COLUMNS = {
    **{table: ("greenContextId",) for table, text in _DECLARED.items() if "greenContextId" in text},
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("greenContextId", "copyCount"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("greenContextId", "deprecatedSyncType", "eventSyncId"),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": ("greenContextId", "eventSyncId"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": ("streamId",),
    "NVTX_EVENTS": ("binaryData",),
}
_OLDEST_COLUMNS = {
    **_OLDER_COLUMNS,
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("eventClass", "callchainId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("greenContextId", "mangledName", "graphNodeId", "sharedMemoryExecuted", "sharedMemoryLimitConfig"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *("greenContextId", "graphNodeId", "virtualAddress", "migrationCause", "copyCount"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("greenContextId", "graphNodeId"),
    "NVTX_EVENTS": ("binaryData", "jsonTextId"),
    "DIAGNOSTIC_EVENT": ("globalPid",),
}
_NEWER_TABLES = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_CUDA_DEVICE", "CUDA_GRAPH_NODE_EVENTS")
_NEWER_THAN_OLDEST = (
    *_NEWER_TABLES,
    *("EXPORT_META_DATA", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUDA_GRAPH_EVENTS"),
    *("CUDA_GPU_MEMORY_USAGE_EVENTS", "PROCESSES"),
)


class Style(NamedTuple):
    """One generation of the export.

    `export_table` and `capture_table` hold its metadata (None: it writes none), `lacks_*` is what it does not
    have, `renames` columns that had another name, `integer` the type it declares whole numbers with.
    """

    version: str
    schema: str
    export_table: str | None
    capture_table: str | None
    lacks_tables: tuple[str, ...] = ()
    lacks_columns: Mapping[str, tuple[str, ...]] = {}
    renames: Mapping[str, Mapping[str, str]] = {}
    integer: str = "INTEGER"

    def columns(self, table: str) -> dict[str, Column]:
        """The columns of a table in this generation; `KeyError` where the table is not known at all."""
        lacks = self.lacks_columns.get(table, ())
        new_names = self.renames.get(table, {})
        return {
            new_names.get(name, name): Column(self.integer, column.required) if column.type == "INTEGER" else column
            for name, column in TABLES[table].items()
            if name not in lacks
        }


STYLES = {
    "2025.3": Style("2025.3.2.0", "3.20.3", "META_DATA_EXPORT", "META_DATA_CAPTURE", ("EXPORT_META_DATA",)),
    "2022.4": Style(
        "2022.4.2.1",
        "3.0.0",
        "EXPORT_META_DATA",
        None,
        _NEWER_TABLES,
        _OLDER_COLUMNS,
        # until 2023.4 this table held the graphs' nodes
        {"CUDA_GRAPH_EVENTS": {"graphId": "graphNodeId", "originalGraphId": "originalGraphNodeId"}},
    ),
    "2019": Style(
        "2019.6.1", "", None, None, _NEWER_THAN_OLDEST, _OLDEST_COLUMNS, {"TARGET_INFO_GPU": {"id": "deviceId"}}, "INT"
    ),
}
