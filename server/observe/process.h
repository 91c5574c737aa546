/* Metrics of the process, its host and NVIDIA GPUs: the process_* names that Prometheus' client
 * libraries use, and Triton's nv_*.
 *
 *     process_cpu_seconds_total, process_resident_memory_bytes, process_virtual_memory_bytes,
 *     process_open_fds, process_max_fds, process_threads, process_start_time_seconds
 *     nv_cpu_utilization (0 … 1 since the previous scrape), nv_cpu_memory_total_bytes,
 *     nv_cpu_memory_used_bytes
 *     nv_gpu_utilization, nv_gpu_memory_total_bytes, nv_gpu_memory_used_bytes, nv_gpu_power_usage,
 *     nv_gpu_power_limit, nv_energy_consumption, each with gpu_uuid; absent without NVIDIA's
 *     management library */
#pragma once

#include "server/observe/metrics.h"

/* Sets the series above from /proc and, if it is installed, NVIDIA's management library. A series
 * whose value cannot be read does not change. Any thread. */
void process_metrics_update(struct metrics *metrics);
