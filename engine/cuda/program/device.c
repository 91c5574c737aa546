/* Devices: permanent failures, CUDA's errors as sentences, memory and copies. */
#include <stdatomic.h>

#include "engine/base/text.h"
#include "engine/cuda/program/program.h"

static _Atomic int broken[DEVICE_MAX]; /* by device: its permanent cudaError_t, or 0 */
static _Atomic bool opened[DEVICE_MAX];
static _Atomic unsigned long batches_begun[DEVICE_MAX], batches_ended[DEVICE_MAX];

/* True for errors after which this process can no longer use its context on the device. */
static bool is_lasting(cudaError_t error)
{
    /* cudaErrorContained and cudaErrorTensorMemoryLeak, which have no names in older toolkits. */
    if ((int)error == 226 || (int)error == 721)
        return true;
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorMpsClientTerminated:
        return true;
    default:
        return false;
    }
}

/* Records an error that makes the process's context on the device unusable (an illegal address, an
 * ECC error, a lost card). The process then no longer uses the device. */
static void note_error(int device, cudaError_t error)
{
    int none = 0;
    if (is_lasting(error) && device >= 0 && device < DEVICE_MAX)
        atomic_compare_exchange_strong(&broken[device], &none, (int)error);
}

cudaError_t device_failure(int device)
{
    return device >= 0 && device < DEVICE_MAX ? (cudaError_t)atomic_load(&broken[device])
                                              : cudaSuccess;
}

void device_note_success(int device)
{
    if (device_failure(device) != cudaSuccess)
        atomic_store(&broken[device], 0);
}

struct batch_counts device_note_batches(int device, int begun, int ended)
{
    return (struct batch_counts){
        atomic_fetch_add(&batches_begun[device], (unsigned long)begun) + (unsigned long)begun,
        atomic_fetch_add(&batches_ended[device], (unsigned long)ended) + (unsigned long)ended};
}

void device_note_opened(int device)
{
    if (device >= 0 && device < DEVICE_MAX)
        atomic_store(&opened[device], true);
}

bool device_has_context(int device)
{
    return device >= 0 && device < DEVICE_MAX && atomic_load(&opened[device]);
}

void device_use_any(void)
{
    for (int i = 0; i < DEVICE_MAX; i++) {
        if (!atomic_load(&opened[i]))
            continue;
        cuda_ignore(cudaSetDevice(i));
        return;
    }
}

enum status cuda_check(cudaError_t result, int device, const char *what, struct error *err)
{
    if (result == cudaSuccess)
        return STATUS_OK;
    (void)cudaGetLastError(); /* clears the error, unless it is permanent */
    if (result == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        cuda_ignore(cudaMemGetInfo(&available, &total));
        return error_set(err, STATUS_DEVICE_MEMORY,
                         "cuda:%d is out of memory for %s: %s of %s are free; use a smaller "
                         "--max-batch or --precision bf16",
                         device, what, BYTES_STRING(available), BYTES_STRING(total));
    }
    note_error(device, result);
    return error_set(err, STATUS_DEVICE, "cuda:%d: %s: %s (%s)%s", device, what,
                     cudaGetErrorString(result), cudaGetErrorName(result),
                     device_failure(device) ? "; restart lensd to use it again" : "");
}

enum status device_alloc(const struct cuda_backend *backend, size_t bytes, const char *what,
                         void **ret, struct error *err)
{
    const size_t size = bytes ? bytes : 1;
    const cudaError_t result =
        backend->has_pool ? cudaMallocAsync(ret, size, backend->stream) : cudaMalloc(ret, size);
    if (result != cudaErrorMemoryAllocation)
        return cuda_check(result, backend->device, what, err);
    size_t available = 0, total = 0;
    (void)cudaGetLastError();
    cuda_ignore(cudaMemGetInfo(&available, &total));
    return error_set(err, STATUS_DEVICE_MEMORY,
                     "cuda:%d is out of memory: %s take %s and %s are free, %s are missing; use a "
                     "smaller --max-batch, --precision fp16, or serve fewer models there",
                     backend->device, what, BYTES_STRING(bytes), BYTES_STRING(available),
                     BYTES_STRING(bytes > available ? bytes - available : 0));
}

enum status device_pin(int device, size_t bytes, unsigned flags, const char *what, void **ret,
                       struct error *err)
{
    const cudaError_t result = cudaHostAlloc(ret, bytes ? bytes : 1, flags);
    if (result != cudaErrorMemoryAllocation)
        return cuda_check(result, device, what, err);
    (void)cudaGetLastError();
    return error_set(err, STATUS_NO_MEMORY,
                     "no page-locked memory for %zu bytes of %s; choose a smaller --max-batch, or "
                     "raise the memory (memlock) limit of the container",
                     bytes, what);
}

void device_free(const struct cuda_backend *backend, void *data)
{
    if (data)
        cuda_ignore(backend->has_pool ? cudaFreeAsync(data, backend->stream) : cudaFree(data));
}

/* If the device has a memory pool, access to the pool is granted; otherwise access is enabled for
 * the pair of devices. */
bool device_reads_peer(const struct cuda_backend *backend, int peer)
{
    const struct cudaMemAccessDesc access = {
        .location = {.type = cudaMemLocationTypeDevice, .id = backend->device},
        .flags = cudaMemAccessFlagsProtReadWrite};
    cudaMemPool_t pool;
    int can = 0;
    cudaError_t result = cudaDeviceCanAccessPeer(&can, backend->device, peer);
    if (result == cudaSuccess && can && backend->has_pool) {
        result = cudaDeviceGetDefaultMemPool(&pool, peer);
        if (result == cudaSuccess)
            result = cudaMemPoolSetAccess(pool, &access, 1);
    } else if (result == cudaSuccess && can) {
        result = cudaDeviceEnablePeerAccess(peer, 0);
    }
    cuda_ignore(result); /* CUDA reports access that is already enabled as an error */
    return can && (result == cudaSuccess || result == cudaErrorPeerAccessAlreadyEnabled);
}

/* Avoids cudaMemcpy: it uses the legacy default stream, and non-blocking streams do not wait for
 * that stream. From pageable memory cudaMemcpy may also return before the bytes have arrived. */
enum status device_upload(const struct cuda_backend *backend, void *to, const void *from,
                          size_t bytes, const char *what, struct error *err)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, backend->stream),
                   backend->device, what, err));
    return cuda_check(cudaStreamSynchronize(backend->stream), backend->device, what, err);
}

enum status blas_check(cublasStatus_t result, int device, const char *what, struct error *err)
{
    if (result == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    cudaError_t cause = cudaGetLastError(); /* CUDA's own error is more precise */
    if (cause != cudaSuccess)
        return cuda_check(cause, device, what, err);
    return error_set(err,
                     result == CUBLAS_STATUS_ALLOC_FAILED ? STATUS_DEVICE_MEMORY : STATUS_DEVICE,
                     "cuda:%d: %s: cuBLASLt status %d", device, what, (int)result);
}

enum status use_device(const struct cuda_backend *backend, struct error *err)
{
    return cuda_check(cudaSetDevice(backend->device), backend->device, "selecting the device", err);
}
