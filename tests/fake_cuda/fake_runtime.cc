/* cudart: devices, memory, streams, events and recorded graphs, on threads of the host. */
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cublasLt.h"
#include "fake_control.h"
#include "fake_cuda.h"
#include "fake_device.h"
#include "fake_order.h"

/* One recording of an event, complete or not. */
struct mark {
    bool is_done = false, is_inner = false; /* is_inner: of a recording, and not external */
    std::chrono::steady_clock::time_point time;
    fake_order::clocks vc;
};

struct fake_event {
    int device = 0;
    bool has_time = false;
    std::shared_ptr<mark> last; /* recorded; none at first */
};

/* What a stream does: some work, or the end of a recording, or a wait for one. */
struct operation {
    std::function<void()> work;
    std::shared_ptr<mark> records, awaits;
    fake_order::clocks enqueued; /* the host's clocks then */
};

struct fake_graph {
    int device = 0;
    std::vector<operation> operations;
    bool is_uploaded = false, was_launched = false;
};

/* A stream: a thread and its queue. */
struct fake_stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<operation> queue;
    bool ends = false, busy = false;
    fake_graph *capture = nullptr;
    bool is_invalid = false; /* the recording */
    int device = 0, actor = 0, priority = 0;
    fake_order::clocks vc; /* guarded by lock */
    std::thread thread;
};

namespace
{
constexpr int MAX_DEVICES = 8;
constexpr size_t SHARED_LIMIT = 227 << 10; /* of a block, as Hopper's */

struct state {
    std::mutex lock;
    int devices = 1;
    size_t limit = (size_t)1 << 30;
    size_t used[MAX_DEVICES] = {};
    std::map<void *, std::pair<int, size_t>> allocations;
    int fail_after = -1;
    cudaError_t error = cudaSuccess;
    bool sticky = false, failing = false;
    size_t operations = 0, at_once = 0, graph_launches = 0, cold_launches = 0, first_launches = 0,
           peer_copies = 0;
    size_t copied[MAX_DEVICES][3] = {}; /* bytes by device: in, out, from a peer */
    int skip_wait = -1, skip_sync = -1;
    size_t waits = 0, syncs = 0;
    unsigned delay_us = 0;
    bool peers = true, pools = true;
    size_t pinned = 0, pinned_limit = SIZE_MAX;
    bool opened[MAX_DEVICES][MAX_DEVICES] = {}; /* a device's pool or memory, to another one */
    size_t stalls[MAX_DEVICES] = {};
    bool contexts[MAX_DEVICES] = {};
    int compute_mode = cudaComputeModeDefault;
    int capability = 90;
    fake_order::clocks host;
    std::condition_variable marked; /* a recording is complete */
} the;

thread_local int current_device;
thread_local cudaError_t last_error;
thread_local fake_stream *recording; /* what this thread captures */

/* Whether the call that asks is to fail; remembers it as cudaGetLastError would. It makes a context
 * on the thread's device. */
cudaError_t answer()
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.contexts[current_device] = true;
    if (the.failing)
        return last_error = the.error;
    cudaError_t ordered = fake_control_error(current_device);
    if (ordered != cudaSuccess)
        return last_error = ordered;
    if (the.fail_after >= 0 && the.fail_after-- == 0) {
        the.failing = the.sticky;
        return last_error = the.error;
    }
    return cudaSuccess;
}

cudaError_t fail(cudaError_t error)
{
    return last_error = error;
}

/* What may not be called while the thread captures a stream (mode: thread local) spoils it. */
bool spoils_recording()
{
    if (!recording)
        return false;
    recording->is_invalid = true;
    last_error = cudaErrorStreamCaptureUnsupported;
    return true;
}

/* Streams and graphs belong to the device that was current when they were made. */
bool is_elsewhere(int device)
{
    return device != current_device;
}

/* Memory of a program that CUDA knows nothing of. */
bool is_pageable(const void *data)
{
    return !fake_order::is_ours(data);
}

/* As calls answer that cannot fail themselves: what the device has suffered before. */
cudaError_t answer_of_device()
{
    std::lock_guard<std::mutex> guard(the.lock);
    return the.failing ? the.error : fake_control_error(current_device);
}

void enqueue(cudaStream_t stream, operation operation)
{
    {
        std::lock_guard<std::mutex> guard(the.lock);
        operation.enqueued = the.host;
    }
    std::lock_guard<std::mutex> guard(stream->lock);
    if (stream->capture) {
        stream->capture->operations.push_back(std::move(operation));
        return;
    }
    stream->queue.push_back(std::move(operation));
    stream->changed.notify_all();
}

void enqueue(cudaStream_t stream, std::function<void()> work)
{
    operation operation;
    operation.work = std::move(work);
    enqueue(stream, std::move(operation));
}

/* So long that what is not ordered does not happen to run in order. */
void dawdle(unsigned &state)
{
    unsigned most;
    {
        std::lock_guard<std::mutex> guard(the.lock);
        most = the.delay_us;
    }
    state = state * 1664525u + 1013904223u;
    if (most)
        std::this_thread::sleep_for(std::chrono::microseconds((state >> 8) % (most + 1)));
}

/* Joins what the operation is ordered after into its stream's clocks; returns these. */
fake_order::clocks order(fake_stream *stream, const operation &operation)
{
    fake_order::clocks awaited;
    if (operation.awaits) {
        std::unique_lock<std::mutex> guard(the.lock);
        the.marked.wait(guard, [&] { return operation.awaits->is_done; });
        awaited = operation.awaits->vc;
    }
    std::lock_guard<std::mutex> guard(stream->lock);
    fake_order::join(stream->vc, operation.enqueued);
    fake_order::join(stream->vc, awaited);
    if (stream->vc.size() <= (size_t)stream->actor)
        stream->vc.resize((size_t)stream->actor + 1);
    stream->vc[(size_t)stream->actor]++;
    return stream->vc;
}

void perform(fake_stream *stream, const operation &operation)
{
    fake_order::clocks vc = order(stream, operation);
    if (operation.work) {
        fake_order::begin(stream->actor, vc);
        operation.work();
        fake_order::end();
    }
    std::lock_guard<std::mutex> guard(the.lock);
    the.operations += operation.work != nullptr;
    the.at_once += operation.work && stream->priority < 0;
    if (operation.records) {
        operation.records->vc = vc;
        operation.records->time = std::chrono::steady_clock::now();
        operation.records->is_done = true;
        the.marked.notify_all();
    }
}

void serve(fake_stream *stream)
{
    unsigned delays = (unsigned)stream->actor * 2654435761u;
    std::unique_lock<std::mutex> guard(stream->lock);
    for (;;) {
        stream->changed.wait(guard, [&] { return stream->ends || !stream->queue.empty(); });
        if (stream->queue.empty())
            return;
        operation next = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        guard.unlock();
        dawdle(delays);
        perform(stream, next);
        guard.lock();
        stream->busy = false;
        stream->changed.notify_all();
    }
}

/* The host has seen the end of what `vc` says. */
void host_joins(const fake_order::clocks &vc)
{
    std::lock_guard<std::mutex> guard(the.lock);
    fake_order::join(the.host, vc);
}

/* Work of the host itself. */
void on_host(const std::function<void()> &work)
{
    fake_order::clocks vc;
    {
        std::lock_guard<std::mutex> guard(the.lock);
        if (the.host.empty())
            the.host.resize(1);
        the.host[fake_order::HOST]++;
        vc = the.host;
    }
    fake_order::begin(fake_order::HOST, vc);
    work();
    fake_order::end();
}

void copy(void *to, const void *from, size_t size)
{
    fake_order::touch(from, size, false);
    fake_order::touch(to, size, true);
    memmove(to, from, size);
}

/* `n`-th of its kind (0: the next) to be left out; counts. */
bool is_skipped(int &n, size_t &count)
{
    std::lock_guard<std::mutex> guard(the.lock);
    count++;
    return n >= 0 && n-- == 0;
}

void count_copy(int device, cudaMemcpyKind kind, size_t size)
{
    std::lock_guard<std::mutex> guard(the.lock);
    if (kind == cudaMemcpyHostToDevice)
        the.copied[device][0] += size;
    else if (kind == cudaMemcpyDeviceToHost)
        the.copied[device][1] += size;
}
} // namespace

/* CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; but for GRID_MOST.
 */
static bool is_launchable(dim3 grid, dim3 block)
{
    const size_t threads = (size_t)block.x * block.y * block.z;
    return grid.x && grid.x <= INT32_MAX && grid.y && grid.y <= GRID_MOST && grid.z &&
           grid.z <= GRID_MOST && threads && threads <= 1024 && block.z <= 64;
}

void fake_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, bool has_barriers,
                 std::function<void()> body)
{
    if (answer() != cudaSuccess)
        return;
    if (is_elsewhere(stream->device)) {
        last_error = cudaErrorInvalidResourceHandle;
        return;
    }
    if (!is_launchable(grid, block)) {
        last_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (shared > SHARED_LIMIT) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    enqueue(stream, [=] { fake_run_kernel(grid, block, shared, has_barriers, body); });
}

extern "C" {

cudaError_t fake_cuda_try_launch(const unsigned grid[3], const unsigned block[3], size_t shared,
                                 cudaStream_t stream)
{
    fake_launch(dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared, stream,
                false, [] {});
    return cudaGetLastError();
}

void fake_cuda_reset(int devices, size_t bytes_per_device)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.devices = devices;
    the.limit = bytes_per_device;
    the.fail_after = -1;
    the.failing = the.sticky = false;
    the.skip_wait = the.skip_sync = -1;
    the.delay_us = 0;
    the.peers = the.pools = true;
    the.pinned_limit = SIZE_MAX;
    for (auto &opened : the.opened)
        for (bool &to : opened)
            to = false;
    the.compute_mode = cudaComputeModeDefault;
    the.capability = 90;
    for (bool &context : the.contexts)
        context = false;
    last_error = cudaSuccess;
}

void fake_cuda_compute_mode(int mode)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.compute_mode = mode;
}

void fake_cuda_capability(int capability)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.capability = capability;
}

void fake_cuda_delay(unsigned most_us)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.delay_us = most_us;
}

void fake_cuda_peers(int can)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.peers = can != 0;
}

void fake_cuda_pinned_limit(size_t bytes)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.pinned_limit = bytes;
}

void fake_cuda_pools(int have)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.pools = have != 0;
}

void fake_cuda_check_order(int on)
{
    fake_order::forget();
    fake_order::check(on != 0);
}

size_t fake_cuda_races(char *text, size_t size)
{
    return fake_order::races(text, size);
}

void fake_cuda_skip(enum fake_cuda_skipped what, int n)
{
    std::lock_guard<std::mutex> guard(the.lock);
    (what == FAKE_CUDA_WAIT ? the.skip_wait : the.skip_sync) = n;
}

size_t fake_cuda_count(enum fake_cuda_counter what, int device)
{
    std::lock_guard<std::mutex> guard(the.lock);
    switch (what) {
    case FAKE_CUDA_WAITS:
        return the.waits;
    case FAKE_CUDA_SYNCS:
        return the.syncs;
    case FAKE_CUDA_BYTES_IN:
        return the.copied[device][0];
    case FAKE_CUDA_BYTES_OUT:
        return the.copied[device][1];
    case FAKE_CUDA_BYTES_FROM_PEERS:
        return the.copied[device][2];
    case FAKE_CUDA_CONTEXTS:
        return the.contexts[device];
    case FAKE_CUDA_OPERATIONS_AT_ONCE:
        return the.at_once;
    case FAKE_CUDA_COLD_LAUNCHES:
        return the.cold_launches;
    case FAKE_CUDA_FIRST_LAUNCHES:
        return the.first_launches;
    case FAKE_CUDA_STALLS:
        return the.stalls[device];
    }
    return 0;
}

void fake_cuda_fail(int after, cudaError_t error, int sticky)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.fail_after = after;
    the.error = error;
    the.sticky = sticky != 0;
}

size_t fake_cuda_used(int device)
{
    std::lock_guard<std::mutex> guard(the.lock);
    return the.used[device];
}

size_t fake_cuda_operations(void)
{
    std::lock_guard<std::mutex> guard(the.lock);
    return the.operations;
}

size_t fake_cuda_graph_launches(void)
{
    std::lock_guard<std::mutex> guard(the.lock);
    return the.graph_launches;
}

/* What is asked without a context: a device that broke is still told of. */
static cudaError_t answer_without_context()
{
    std::lock_guard<std::mutex> guard(the.lock);
    if (the.failing)
        return last_error = the.error;
    if (the.fail_after >= 0 && the.fail_after-- == 0) {
        the.failing = the.sticky;
        return last_error = the.error;
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = answer_without_context();
    fake_control_read(&the.devices, &the.limit, &the.delay_us);
    if (error == cudaSuccess)
        *count = the.devices;
    return error;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (device < 0 || device >= the.devices)
        return fail(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "Fake GPU %d", device);
    properties->totalGlobalMem = the.limit;
    properties->major = the.capability / 10;
    properties->minor = the.capability % 10;
    properties->multiProcessorCount = 8;
    properties->sharedMemPerBlockOptin = SHARED_LIMIT;
    properties->pciBusID = 16 + device;
    return answer_without_context();
}

cudaError_t cudaDeviceGetAttribute(int *ret, cudaDeviceAttr attribute, int device)
{
    if (device < 0 || device >= the.devices)
        return fail(cudaErrorInvalidDevice);
    std::lock_guard<std::mutex> guard(the.lock);
    *ret = attribute == cudaDevAttrComputeMode ? the.compute_mode : (int)the.pools;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= the.devices)
        return fail(cudaErrorInvalidDevice);
    current_device = device;
    fake_control_read(&the.devices, &the.limit, &the.delay_us);
    return answer();
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.contexts[current_device] = true;
    *total = the.limit;
    *available = the.limit - the.used[current_device];
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    std::lock_guard<std::mutex> guard(the.lock);
    if (!the.failing || !the.sticky) /* those that last are not forgotten */
        last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation     ? "cudaErrorMemoryAllocation"
           : error == cudaErrorIllegalAddress     ? "cudaErrorIllegalAddress"
           : error == cudaErrorECCUncorrectable   ? "cudaErrorECCUncorrectable"
           : error == cudaErrorInvalidDevice      ? "cudaErrorInvalidDevice"
           : error == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver"
                                                  : "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation   ? "out of memory"
           : error == cudaErrorIllegalAddress   ? "an illegal memory access was encountered"
           : error == cudaErrorECCUncorrectable ? "uncorrectable ECC error encountered"
           : error == cudaErrorInvalidDevice    ? "invalid device ordinal"
                                                : "unknown error";
}

cudaError_t cudaMalloc(void **ret, size_t size)
{
    if (spoils_recording())
        return last_error;
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    std::lock_guard<std::mutex> guard(the.lock);
    if (the.used[current_device] + size > the.limit)
        return fail(cudaErrorMemoryAllocation);
    void *data = fake_order::allocate(current_device, size);
    if (!data)
        return fail(cudaErrorMemoryAllocation);
    memset(data, 0xFB, size); /* NaN: whoever reads before writing shows */
    the.used[current_device] += size;
    the.allocations[data] = {current_device, size};
    *ret = data;
    return cudaSuccess;
}

/* Removes an allocation from the table; returns its size. */
static size_t forget(void *data)
{
    std::lock_guard<std::mutex> guard(the.lock);
    auto found = the.allocations.find(data);
    if (found == the.allocations.end() || found->second.first == fake_order::HOST_MEMORY) {
        fprintf(stderr, "fake_cuda: memory is freed that is not allocated\n");
        abort();
    }
    const size_t size = found->second.second;
    the.used[found->second.first] -= size;
    the.allocations.erase(found);
    return size;
}

cudaError_t cudaMallocAsync(void **ret, size_t size, cudaStream_t stream)
{
    return is_elsewhere(stream->device) ? fail(cudaErrorInvalidResourceHandle)
                                        : cudaMalloc(ret, size);
}

/* Frees the memory after the work on the stream, so that a later use is an error. */
cudaError_t cudaFreeAsync(void *data, cudaStream_t stream)
{
    enqueue(stream, [=] {
        const size_t size = forget(data);
        fake_order::touch(data, size, true);
        fake_order::release(data, size);
    });
    return answer();
}

struct fake_pool {
    int device;
};

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *ret, int device)
{
    static fake_pool pools[MAX_DEVICES];
    if (device < 0 || device >= the.devices)
        return fail(cudaErrorInvalidDevice);
    pools[device].device = device;
    *ret = &pools[device];
    return answer();
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc *accesses,
                                 size_t count)
{
    const cudaError_t error = answer();
    std::lock_guard<std::mutex> guard(the.lock);
    for (size_t i = 0; i < count && error == cudaSuccess; i++)
        the.opened[pool->device][accesses[i].location.id] = true;
    return error;
}

cudaError_t cudaFree(void *data)
{
    if (!data)
        return answer();
    if (spoils_recording())
        return last_error;
    {
        std::lock_guard<std::mutex> guard(the.lock);
        the.contexts[current_device] = true;
        the.stalls[current_device]++;
    }
    const size_t size = forget(data);
    /* Whoever still uses it should not. */
    on_host([=] { fake_order::touch(data, size, true); });
    fake_order::release(data, size);
    return answer_of_device();
}

cudaError_t cudaHostAlloc(void **ret, size_t size, unsigned)
{
    if (spoils_recording())
        return last_error;
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    std::lock_guard<std::mutex> guard(the.lock);
    if (size > the.pinned_limit || the.pinned > the.pinned_limit - size)
        return fail(cudaErrorMemoryAllocation);
    *ret = fake_order::allocate(fake_order::HOST_MEMORY, size);
    if (!*ret)
        return fail(cudaErrorMemoryAllocation);
    memset(*ret, 0xFB, size);
    the.pinned += size;
    the.allocations[*ret] = {fake_order::HOST_MEMORY, size};
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data)
{
    if (spoils_recording())
        return last_error;
    std::unique_lock<std::mutex> guard(the.lock);
    the.contexts[current_device] = true;
    auto found = the.allocations.find(data);
    if (found == the.allocations.end() || found->second.first != fake_order::HOST_MEMORY) {
        fprintf(stderr, "fake_cuda: cudaFreeHost of what is not allocated\n");
        abort();
    }
    size_t size = found->second.second;
    the.pinned -= size;
    the.allocations.erase(found);
    guard.unlock();
    on_host([=] { fake_order::touch(data, size, true); });
    fake_order::release(data, size);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *ret, int device, int peer)
{
    cudaError_t error = answer_without_context();
    if (error == cudaSuccess)
        *ret = the.peers && device != peer;
    return error;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned)
{
    const cudaError_t error = answer();
    std::lock_guard<std::mutex> guard(the.lock);
    if (error == cudaSuccess && !the.pools) /* memory of pools stays closed */
        the.opened[peer][current_device] = true;
    return error;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    {
        std::lock_guard<std::mutex> guard(the.lock);
        if (!the.opened[from_device][to_device])
            return fail(cudaErrorInvalidValue);
        the.copied[to_device][2] += size;
    }
    enqueue(stream, [=] { copy(to, from, size); });
    return cudaSuccess;
}

/* From pageable memory: the bytes are read before the call returns, and arrive later. */
static cudaError_t copy_staged(void *to, const void *from, size_t size, cudaStream_t stream)
{
    if (spoils_recording())
        return last_error;
    const char *bytes = (const char *)from;
    auto staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
    enqueue(stream, [=] { copy(to, staged->data(), size); });
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    if (is_pageable(kind == cudaMemcpyHostToDevice ? to : from) && kind != cudaMemcpyHostToDevice)
        return fail(cudaErrorInvalidValue);
    count_copy(stream->device, kind, size);
    if (kind == cudaMemcpyHostToDevice && is_pageable(from))
        return copy_staged(to, from, size, stream);
    enqueue(stream, [=] { copy(to, from, size); });
    /* To pageable memory nothing is asynchronous. */
    return kind == cudaMemcpyDeviceToHost && is_pageable(to) ? cudaStreamSynchronize(stream)
                                                             : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t size, cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error == cudaSuccess)
        enqueue(stream, [=] {
            fake_order::touch(data, size, true);
            memset(data, value, size);
        });
    return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return answer();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned, int priority)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    fake_stream *stream = new fake_stream;
    stream->device = current_device;
    stream->priority = priority;
    stream->actor = fake_order::new_actor();
    stream->thread = std::thread(serve, stream);
    *ret = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    {
        std::lock_guard<std::mutex> guard(stream->lock);
        stream->ends = true;
        stream->changed.notify_all();
    }
    stream->thread.join();
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    std::unique_lock<std::mutex> guard(stream->lock);
    if (stream->capture) {
        stream->is_invalid = true;
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    stream->changed.wait(guard, [&] { return stream->queue.empty() && !stream->busy; });
    fake_order::clocks vc = stream->vc;
    guard.unlock();
    host_joins(vc);
    return answer();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    cudaError_t error = answer();
    if (error == cudaSuccess) {
        *ret = new fake_event;
        (*ret)->device = current_device;
        (*ret)->has_time = !(flags & cudaEventDisableTiming);
    }
    return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* External: each launch of what is recorded records the event anew; not for other streams. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    if (flags == cudaEventRecordExternal && !stream->capture)
        return fail(cudaErrorInvalidValue);
    if (event->device != stream->device)
        return fail(cudaErrorInvalidResourceHandle);
    operation operation;
    operation.records = event->last = std::make_shared<mark>();
    event->last->is_inner = stream->capture && flags != cudaEventRecordExternal;
    enqueue(stream, std::move(operation));
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t error = answer();
    if (error != cudaSuccess || is_skipped(the.skip_wait, the.waits) || !event->last)
        return error;
    if (stream->capture) { /* of what is not part of the recording */
        stream->is_invalid = true;
        return fail(cudaErrorStreamCaptureIsolation);
    }
    operation operation;
    operation.awaits = event->last;
    enqueue(stream, std::move(operation));
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    std::lock_guard<std::mutex> guard(the.lock);
    for (cudaEvent_t event : {start, end})
        if (!event->has_time || !event->last || event->last->is_inner)
            return fail(cudaErrorInvalidResourceHandle);
    if (!start->last->is_done || !end->last->is_done)
        return fail(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(end->last->time - start->last->time).count();
    return cudaSuccess;
}

/* Says only whether: the host's clocks learn nothing from it, so that what relies on it alone is
 * found to be without an order. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    {
        std::lock_guard<std::mutex> guard(the.lock);
        if (event->last && !event->last->is_done)
            return last_error = cudaErrorNotReady;
    }
    return answer();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->last && !is_skipped(the.skip_sync, the.syncs)) {
        std::unique_lock<std::mutex> guard(the.lock);
        the.marked.wait(guard, [&] { return event->last->is_done; });
        fake_order::join(the.host, event->last->vc);
    }
    return answer();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    cudaError_t error = answer();
    if (error == cudaSuccess) {
        std::lock_guard<std::mutex> guard(stream->lock);
        stream->capture = new fake_graph;
        stream->capture->device = stream->device;
        stream->is_invalid = false;
        recording = stream;
    }
    return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret)
{
    std::lock_guard<std::mutex> guard(stream->lock);
    *ret = stream->capture;
    stream->capture = nullptr;
    recording = nullptr;
    if (!stream->is_invalid)
        return answer();
    delete *ret;
    *ret = nullptr;
    return fail(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long)
{
    cudaError_t error = answer();
    if (error == cudaSuccess)
        *ret = new fake_graph(*graph);
    return error;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    if (graph->device != stream->device)
        return fail(cudaErrorInvalidResourceHandle);
    const cudaError_t error = answer();
    graph->is_uploaded = graph->is_uploaded || error == cudaSuccess;
    return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    if (graph->device != stream->device || is_elsewhere(stream->device))
        return fail(cudaErrorInvalidResourceHandle);
    for (const operation &recorded : graph->operations)
        enqueue(stream, recorded);
    std::lock_guard<std::mutex> guard(the.lock);
    the.graph_launches++;
    the.first_launches += !graph->was_launched;
    the.cold_launches += !graph->was_launched && !graph->is_uploaded;
    graph->was_launched = true;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    delete graph;
    return cudaSuccess;
}

} // extern "C"
