/* The only symbol that the module exports, and the list of GPUs. */
#include "engine/backend/cuda_module.h"

#include <stdio.h>

#include "engine/base/text.h"
#include "engine/cuda/program/program.h"
#include "lensd_version.h"

extern const struct backend_ops backend_cuda;

/* The lowest compute capability that the kernels support. */
#define LEAST_MAJOR 7
#define LEAST_MINOR 5

/* Compute capabilities for which the build has machine code (code_of) or PTX (ptx_of). 90 stands
 * for 9.0; 0 ends a list. */
static const int code_of[] = {CUDA_CODE}, ptx_of[] = {CUDA_PTX};

/* Queries only devices that have a context already, because a new context takes hundreds of MiB. */
static void ask_memory(int index, struct device_info *ret)
{
    size_t available = 0, total = 0;
    ret->free_bytes = ret->total_bytes;
    if (!device_has_context(index))
        return;
    cudaError_t result = cudaSetDevice(index);
    if (result == cudaSuccess)
        result = cudaMemGetInfo(&available, &total);
    cuda_ignore(result);
    if (result == cudaSuccess) {
        ret->free_bytes = available;
        ret->free_is_known = true;
    }
}

/* Machine code runs on its own compute capability and on later minor versions of the same major
 * version; PTX runs on all later ones. */
static bool has_code(int version)
{
    for (const int *built = code_of; *built; built++)
        if (*built / 10 == version / 10 && *built <= version)
            return true;
    for (const int *built = ptx_of; *built; built++)
        if (*built <= version)
            return true;
    return false;
}

static void say_no_code(struct device_info *ret)
{
    snprintf(ret->reason, sizeof ret->reason, "this build of lensd has no code for %s, but for",
             ret->isa);
    for (const int *built = code_of; *built; built++)
        text_append(ret->reason, sizeof ret->reason, "", " sm_%d", *built);
    for (const int *built = ptx_of; *built; built++)
        text_append(ret->reason, sizeof ret->reason, "", " compute_%d", *built);
}

static void describe_device(int index, struct device_info *ret)
{
    struct cudaDeviceProp properties;
    *ret = (struct device_info){.id = {DEVICE_CUDA, index}, .present = true};
    cudaError_t result = cudaGetDeviceProperties(&properties, index);
    cuda_ignore(result);
    if (result != cudaSuccess) {
        snprintf(ret->name, sizeof ret->name, "NVIDIA GPU");
        snprintf(ret->reason, sizeof ret->reason, "its properties cannot be read: %s",
                 cudaGetErrorString(result));
        return;
    }
    snprintf(ret->name, sizeof ret->name, "%.90s", properties.name);
    snprintf(ret->isa, sizeof ret->isa, "sm_%d%d", properties.major, properties.minor);
    ret->total_bytes = properties.totalGlobalMem;
    snprintf(ret->bus, sizeof ret->bus, "%08x:%02x:%02x.0", (unsigned)properties.pciDomainID,
             (unsigned)properties.pciBusID, (unsigned)properties.pciDeviceID);
    int version = properties.major * 10 + properties.minor;
    ret->bf16 = version >= 80;
    ret->fp16 = ret->int8 = version >= 75;
    if (version < LEAST_MAJOR * 10 + LEAST_MINOR) {
        snprintf(ret->reason, sizeof ret->reason,
                 "its compute capability is %d.%d; lensd needs %d.%d or later", properties.major,
                 properties.minor, LEAST_MAJOR, LEAST_MINOR);
        return;
    }
    if (!has_code(version)) {
        say_no_code(ret);
        return;
    }
    if (device_failure(index)) {
        snprintf(ret->reason, sizeof ret->reason, "it failed: %s; restart lensd to use it again",
                 cudaGetErrorString(device_failure(index)));
        return;
    }
    int mode = cudaComputeModeDefault;
    result = cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, index);
    cuda_ignore(result);
    if (result == cudaSuccess && mode == cudaComputeModeProhibited) {
        snprintf(ret->reason, sizeof ret->reason,
                 "its compute mode is prohibited; nvidia-smi -i %d -c DEFAULT allows it", index);
        return;
    }
    ask_memory(index, ret);
    ret->usable = true;
}

static bool try_device(int index, char *reason, size_t size)
{
    const cudaError_t result = cudaSetDevice(index); /* creates the context since CUDA 12 */
    cudaError_t used = result == cudaSuccess ? cudaFree(NULL) : result;
    cuda_ignore(used);
    if (used == cudaSuccess) {
        device_note_opened(index);
        return true;
    }
    snprintf(reason, size, "it cannot be used: %s", cudaGetErrorString(used));
    return false;
}

static size_t devices(struct device_info *ret, size_t max, char *reason, size_t size)
{
    int count = 0;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) {
        int driver = 0;
        cuda_ignore(cudaDriverGetVersion(&driver));
        if (result == cudaErrorInsufficientDriver && driver == 0)
            snprintf(reason, size, "no NVIDIA driver is installed");
        else if (result == cudaErrorInsufficientDriver)
            snprintf(
                reason, size,
                "the NVIDIA driver supports CUDA %d.%d, and this lensd was built with CUDA %d.%d: "
                "install a newer driver",
                driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                CUDART_VERSION % 1000 / 10);
        else
            snprintf(reason, size, "CUDA cannot be used: %s", cudaGetErrorString(result));
        (void)cudaGetLastError();
        return 0;
    }
    if (count == 0)
        snprintf(reason, size, "there is no NVIDIA GPU");
    for (int i = 0; i < count && (size_t)i < max; i++)
        describe_device(i, &ret[i]);
    return (size_t)count < max ? (size_t)count : max;
}

__attribute__((visibility("default"))) const struct cuda_module lensd_cuda_module = {
    .abi = CUDA_MODULE_ABI,
    .version = LENSD_VERSION,
    .backend = &backend_cuda,
    .devices = devices,
    .try_device = try_device,
};
