/* The interface between lensd and its CUDA module, lensd_cuda.so.
 *
 * The module is a separate shared object, so that lensd starts on a machine without driver or
 * toolkit. It uses functions that the program exports, and exports one symbol, lensd_cuda_module.
 * engine/runtime (cuda_loader.c, nvml.c) is part of the program, engine/cuda is the module. */
#pragma once

#include "engine/backend/backend.h"

/* Increase it when struct cuda_module changes, or a declaration that program and module share. */
#define CUDA_MODULE_ABI 10

struct cuda_module {
    uint32_t abi;
    const char *version; /* LENSD_VERSION of the build */
    const struct backend_ops *backend;
    /* Lists every GPU; those that cannot be used have a reason. Returns their number, or 0 with a
     * sentence in `reason` if CUDA itself cannot be used. Creates no context, to save memory. */
    size_t (*devices)(struct device_info *ret, size_t max, char *reason, size_t size);
    /* Creates a context on this GPU as a test. Returns false with a sentence on failure. */
    bool (*try_device)(int index, char *reason, size_t size);
};

#define CUDA_MODULE_FILE   "lensd_cuda.so"
#define CUDA_MODULE_SYMBOL "lensd_cuda_module"

/* Loads the module once per process and returns it, or NULL and the reason in *ret_reason (static
 * text; may be NULL). Tries only $LENSD_CUDA_MODULE if that is set. Otherwise, if there is an
 * NVIDIA driver, searches the program's folder, ../lib/lensd and the build tree. Thread-safe. */
const struct cuda_module *cuda_module(const char **ret_reason);
