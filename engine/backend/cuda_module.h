/* The interface between lensd and its CUDA module, lensd_cuda.so.
 *
 * The module is a shared object of its own, so that lensd starts on a machine without driver or
 * toolkit. It finds the functions of the engine in the program that loads it (which exports them),
 * and exports one symbol, lensd_cuda_module. engine/runtime (cuda_loader.c, nvml.c)
 * is part of the program, engine/cuda is the module. */
#pragma once

#include "engine/backend/backend.h"

/* Changes with struct cuda_module and with anything in the engine's headers that both sides use. */
#define CUDA_MODULE_ABI 9

struct cuda_module {
    uint32_t abi;
    const char *version; /* LENSD_VERSION of the build */
    const struct backend_ops *backend;
    /* Lists every GPU; one that cannot be used has a reason. Returns how many; 0 with a sentence in
     * `reason` if CUDA itself cannot be used. Creates no context, which would take memory. */
    size_t (*devices)(struct device_info *ret, size_t max, char *reason, size_t size);
    /* Can a context be made on this GPU? Makes one; false with a sentence. */
    bool (*try_device)(int index, char *reason, size_t size);
};

#define CUDA_MODULE_FILE   "lensd_cuda.so"
#define CUDA_MODULE_SYMBOL "lensd_cuda_module"

/* The module, loaded once for the process; NULL when there is none, with the sentence why in
 * *ret_reason (static). Searched in $LENSD_CUDA_MODULE, beside the program, in ../lib/lensd and in
 * the build tree. Thread-safe. */
const struct cuda_module *cuda_module(const char **ret_reason);
