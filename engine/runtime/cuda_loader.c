/* Finds and loads the CUDA module, once for the process. This file is part of lensd, not of the
 * module. */
#include "engine/backend/cuda_module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lensd_version.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cuda_module *loaded;
static char why_not[256];

/* Loads `path`. Returns false if there is no such file, or, with why_not set, if it is unusable. */
static bool try_path(const char *path)
{
    if (access(path, F_OK) != 0)
        return false;
    /* The module finds the engine's functions in the program; CUDA's symbols stay private to the
     * module. */
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *text = dlerror();
        snprintf(why_not, sizeof why_not, "the CUDA module does not load: %.200s",
                 text ? text : "unknown error");
        return false;
    }
    const struct cuda_module *module = dlsym(handle, CUDA_MODULE_SYMBOL);
    if (!module || module->abi != CUDA_MODULE_ABI || strcmp(module->version, LENSD_VERSION) != 0) {
        snprintf(why_not, sizeof why_not,
                 "%.150s belongs to another version of lensd; install the module of this version",
                 path);
        dlclose(handle);
        return false;
    }
    loaded = module;
    return true;
}

/* Writes the folder of the program's executable; "" if it is unknown. */
static void program_folder(char folder[static PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

static void load_module(void)
{
    static const char *const places[] = {"", "/../lib/lensd", "/../engine/cuda"};
    char folder[PATH_MAX], path[PATH_MAX + 64];
    snprintf(why_not, sizeof why_not,
             "this lensd has no CUDA module (%s); use the CUDA image, or build with -Dcuda=enabled",
             CUDA_MODULE_FILE);
    const char *chosen = getenv("LENSD_CUDA_MODULE");
    if (chosen && *chosen) {
        if (!try_path(chosen) && access(chosen, F_OK) != 0)
            snprintf(why_not, sizeof why_not, "LENSD_CUDA_MODULE names %.120s, which is not there",
                     chosen);
        return;
    }
    /* Without a driver the module is useless, and cuBLASLt would take half a gigabyte. */
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) {
        snprintf(why_not, sizeof why_not, "no NVIDIA driver is installed");
        return;
    }
    dlclose(driver);
    program_folder(folder);
    for (size_t i = 0; i < sizeof places / sizeof *places && folder[0]; i++) {
        snprintf(path, sizeof path, "%s%s/%s", folder, places[i], CUDA_MODULE_FILE);
        if (try_path(path))
            return;
    }
}

const struct cuda_module *cuda_module(const char **ret_reason)
{
    pthread_once(&once, load_module);
    if (ret_reason)
        *ret_reason = loaded ? "" : why_not;
    return loaded;
}
