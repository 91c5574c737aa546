/* What stands between lensd and its CUDA module, lensd_cuda.so.
 *
 * The module is a shared object of its own, so that lensd starts on a machine without driver or
 * toolkit. It finds the functions of the engine in the program that loads it (which exports them),
 * and exports one symbol, lensd_cuda_module. loader.c is part of the program; everything else in
 * this folder is part of the module. */
#pragma once

#include "engine/backend.h"

/* Changes with struct cuda_module and with anything in the engine's headers that both sides use. */
#define CUDA_MODULE_ABI 8

struct cuda_module {
    uint32_t abi;
    const char *version; /* LENSD_VERSION of the build */
    const struct backend_ops *backend;
    /* Every GPU; a GPU that is there but cannot be used is an entry with its reason. Returns how
     * many; 0 with a sentence in `reason` when CUDA itself is not usable here. Makes no context, so
     * that asking takes no memory of GPUs that others use. */
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
