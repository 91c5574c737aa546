/* NVIDIA GPUs in /metrics, under Triton's names: nv_gpu_utilization, nv_gpu_memory_total_bytes,
 * nv_gpu_memory_used_bytes, nv_gpu_power_usage, nv_gpu_power_limit, nv_energy_consumption, each
 * with gpu_uuid. Read on each scrape of /metrics; absent without NVIDIA's management library. */
#pragma once

struct metrics;

void gpu_metrics_update(struct metrics *metrics);
