"""The tables of a made-up report (schema of nsys 2024.2) and the names of its kernels."""

from __future__ import annotations

# The columns of each table; "!" stands for NOT NULL, and what has no type of its own is INTEGER.
_OP = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"
_COLUMNS = {
    "StringIds": "id! value:TEXT!",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId! priority globalTid",
    "META_DATA_EXPORT": "name:TEXT! value:TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_OP} demangledName! shortName! mangledName launchType cacheConfig registersPerThread!"
        " gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory!"
        " localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId"
        " sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_OP} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId"
        " dstContextId migrationCause graphNodeId virtualAddress"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_OP} value! bytes! graphNodeId memKind",
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId"
        " domainId uint64Value int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL"
        " jsonTextId jsonText:TEXT"
    ),
    "TARGET_INFO_GPU": "vmId! id! name:TEXT",
}


def _declare(table: str, column: str) -> str:
    declared, needed = column.rstrip("!"), column.endswith("!")
    name, _, kind = declared.partition(":")
    key = " PRIMARY KEY" if (table, name) == ("StringIds", "id") else ""
    return f"{name} {kind or 'INTEGER'}{' NOT NULL' if needed else ''}{key}"


# The body of CREATE TABLE for each table that a report needs.
TABLES = {
    table: ", ".join(_declare(table, column) for column in columns.split()) for table, columns in _COLUMNS.items()
}

# The columns of a kernel that differ from kernel to kernel of the job.
KERNEL_COLUMNS = (
    "demangledName",
    "shortName",
    "mangledName",
    "registersPerThread",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "staticSharedMemory",
    "dynamicSharedMemory",
    "sharedMemoryExecuted",
)
KERNEL_NAMES = (
    "vectorized_elementwise_kernel",
    "elementwise_kernel",
    "reduce_kernel",
    "layer_norm_kernel",
    "softmax_warp_forward",
    "flash_fwd_kernel",
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    "multi_tensor_apply_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "index_select_large_index",
    "cat_array_batched_copy",
    "rope_fused_kernel",
    "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT",
    "triton_poi_fused_add_mul",
    "triton_red_fused__to_copy_mean_rsqrt",
)
