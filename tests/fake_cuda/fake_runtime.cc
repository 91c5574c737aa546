#include <condition_variable>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <ucontext.h>
#include <vector>

#include "cublasLt.h"
#include "fake_cuda.h"
#include "fake_device.h"

using operation = std::function<void()>;

struct fake_graph {
    std::vector<operation> operations;
};

/* A stream: a thread and its queue. */
struct fake_stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<operation> queue;
    bool ends = false, busy = false;
    fake_graph *capture = nullptr;
    std::thread thread;
};

namespace
{
constexpr int MAX_DEVICES = 8;

struct state {
    std::mutex lock;
    int devices = 1;
    size_t limit = (size_t)1 << 30;
    size_t used[MAX_DEVICES] = {};
    std::map<void *, std::pair<int, size_t>> allocations;
    int fail_after = -1;
    cudaError_t error = cudaSuccess;
    bool sticky = false, failing = false;
    size_t operations = 0, graph_launches = 0;
} the;

thread_local int current_device;
thread_local cudaError_t last_error;

/* Whether the call that asks is to fail; remembers it as cudaGetLastError would. */
cudaError_t answer()
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

cudaError_t fail(cudaError_t error)
{
    return last_error = error;
}

void enqueue(cudaStream_t stream, operation work)
{
    std::lock_guard<std::mutex> guard(stream->lock);
    if (stream->capture) {
        stream->capture->operations.push_back(std::move(work));
        return;
    }
    stream->queue.push_back(std::move(work));
    stream->changed.notify_all();
}

void count_operation()
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.operations++;
}

void serve(fake_stream *stream)
{
    std::unique_lock<std::mutex> guard(stream->lock);
    for (;;) {
        stream->changed.wait(guard, [&] { return stream->ends || !stream->queue.empty(); });
        if (stream->queue.empty())
            return;
        operation work = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        guard.unlock();
        work();
        count_operation();
        guard.lock();
        stream->busy = false;
        stream->changed.notify_all();
    }
}

/* ---- blocks whose threads wait for each other: fibers ---- */

constexpr size_t STACK = 64 * 1024;

/* ucontext makes a fiber; from then on jumps switch, which need no system call. */
struct fiber {
    ucontext_t context;
    jmp_buf place;
    bool begun, done;
    dim3 index;
};

struct block_state {
    ucontext_t unused;
    jmp_buf scheduler;
    std::vector<fiber> fibers;
    std::vector<char> stacks;
    std::vector<float> exchanged;
    const std::function<void()> *body;
    size_t running;
    unsigned long arrivals = 0;
};

thread_local block_state *block_now;

void fiber_main()
{
    (*block_now->body)();
    fiber &self = block_now->fibers[block_now->running];
    self.done = true;
    _longjmp(block_now->scheduler, 1);
}

/* Runs fiber t to its next barrier, or its end. */
void resume(block_state &block, size_t t)
{
    fiber &f = block.fibers[t];
    if (_setjmp(block.scheduler))
        return;
    if (f.begun)
        _longjmp(f.place, 1);
    f.begun = true;
    swapcontext(&block.unused, &f.context);
}

/* Runs every fiber to its next barrier, again and again. All must come to the same ones. */
void run_block_with_barriers(block_state &block, dim3 size, const std::function<void()> &body)
{
    size_t count = (size_t)size.x * size.y * size.z;
    block.body = &body;
    block_now = &block;
    for (size_t t = 0; t < count; t++) {
        fiber &f = block.fibers[t];
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = block.stacks.data() + t * STACK;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        f.begun = f.done = false;
        f.index = dim3((unsigned)(t % size.x), (unsigned)(t / size.x % size.y),
                       (unsigned)(t / size.x / size.y));
        makecontext(&f.context, fiber_main, 0);
    }
    for (size_t left = count; left;) {
        size_t ended = 0, waiting = 0;
        for (size_t t = 0; t < count; t++) {
            fiber &f = block.fibers[t];
            if (f.done)
                continue;
            block.running = t;
            threadIdx = f.index;
            resume(block, t);
            ended += f.done;
            waiting += !f.done;
        }
        left -= ended;
        if (ended && waiting) {
            fprintf(stderr, "fake_cuda: some threads of a block ended while others wait\n");
            abort();
        }
    }
    block_now = nullptr;
}

void run_kernel(dim3 grid, dim3 size, bool has_barriers, const std::function<void()> &body)
{
    size_t count = (size_t)size.x * size.y * size.z;
    block_state block;
    if (has_barriers) {
        block.fibers.resize(count);
        block.stacks.resize(count * STACK);
        block.exchanged.resize(count);
    }
    gridDim = grid;
    blockDim = size;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                if (has_barriers) {
                    run_block_with_barriers(block, size, body);
                    continue;
                }
                for (size_t t = 0; t < count; t++) {
                    threadIdx = dim3((unsigned)(t % size.x), (unsigned)(t / size.x % size.y),
                                     (unsigned)(t / size.x / size.y));
                    body();
                }
            }
}
} // namespace

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads()
{
    if (!block_now) {
        fprintf(stderr, "fake_cuda: a kernel with a barrier was started with LAUNCH\n");
        abort();
    }
    block_state &block = *block_now;
    fiber &self = block.fibers[block.running];
    if (!_setjmp(self.place))
        _longjmp(block.scheduler, 1);
}

float __shfl_xor_sync(unsigned, float value, int lane_mask)
{
    block_state &block = *block_now;
    size_t self = block.running, other = self ^ (size_t)lane_mask;
    block.exchanged[self] = value;
    __syncthreads();
    float got = other < block.exchanged.size() ? block.exchanged[other] : value;
    __syncthreads();
    return got;
}

void fake_launch(dim3 grid, dim3 block, cudaStream_t stream, bool has_barriers,
                 std::function<void()> body)
{
    if (answer() != cudaSuccess)
        return;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
        (size_t)block.x * block.y * block.z > 1024) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    enqueue(stream, [=] { run_kernel(grid, block, has_barriers, body); });
}

extern "C" {

void fake_cuda_reset(int devices, size_t bytes_per_device)
{
    std::lock_guard<std::mutex> guard(the.lock);
    the.devices = devices;
    the.limit = bytes_per_device;
    the.fail_after = -1;
    the.failing = the.sticky = false;
    last_error = cudaSuccess;
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

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = answer();
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
    properties->major = 9;
    return answer();
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
    return answer();
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    std::lock_guard<std::mutex> guard(the.lock);
    *total = the.limit;
    *available = the.limit - the.used[current_device];
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
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
           : error == cudaErrorEccUncorrectable   ? "cudaErrorECCUncorrectable"
           : error == cudaErrorInvalidDevice      ? "cudaErrorInvalidDevice"
           : error == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver"
                                                  : "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation   ? "out of memory"
           : error == cudaErrorIllegalAddress   ? "an illegal memory access was encountered"
           : error == cudaErrorEccUncorrectable ? "uncorrectable ECC error encountered"
           : error == cudaErrorInvalidDevice    ? "invalid device ordinal"
                                                : "unknown error";
}

cudaError_t cudaMalloc(void **ret, size_t size)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    std::lock_guard<std::mutex> guard(the.lock);
    if (the.used[current_device] + size > the.limit)
        return fail(cudaErrorMemoryAllocation);
    void *data = aligned_alloc(256, (size + 255) / 256 * 256);
    if (!data)
        return fail(cudaErrorMemoryAllocation);
    memset(data, 0xFB, size); /* NaN: whoever reads before writing shows */
    the.used[current_device] += size;
    the.allocations[data] = {current_device, size};
    *ret = data;
    return cudaSuccess;
}

cudaError_t cudaFree(void *data)
{
    if (!data)
        return cudaSuccess;
    std::lock_guard<std::mutex> guard(the.lock);
    auto found = the.allocations.find(data);
    if (found == the.allocations.end()) {
        fprintf(stderr, "fake_cuda: cudaFree of what is not allocated\n");
        abort();
    }
    the.used[found->second.first] -= found->second.second;
    the.allocations.erase(found);
    free(data);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t size, unsigned)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    *ret = malloc(size);
    return *ret ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *data)
{
    free(data);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind)
{
    cudaError_t error = answer();
    if (error == cudaSuccess)
        memcpy(to, from, size);
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error == cudaSuccess)
        enqueue(stream, [=] { memmove(to, from, size); });
    return error;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error == cudaSuccess && (width > to_pitch || width > from_pitch))
        error = fail(cudaErrorInvalidValue);
    if (error == cudaSuccess)
        enqueue(stream, [=] {
            for (size_t i = 0; i < height; i++)
                memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
        });
    return error;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t size, cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error == cudaSuccess)
        enqueue(stream, [=] { memset(data, value, size); });
    return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    fake_stream *stream = new fake_stream;
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
    if (stream->capture)
        return fail(cudaErrorStreamCaptureUnsupported);
    stream->changed.wait(guard, [&] { return stream->queue.empty() && !stream->busy; });
    guard.unlock();
    return answer();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    cudaError_t error = answer();
    if (error == cudaSuccess) {
        std::lock_guard<std::mutex> guard(stream->lock);
        stream->capture = new fake_graph;
    }
    return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret)
{
    std::lock_guard<std::mutex> guard(stream->lock);
    *ret = stream->capture;
    stream->capture = nullptr;
    return answer();
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long)
{
    cudaError_t error = answer();
    if (error == cudaSuccess)
        *ret = new fake_graph(*graph);
    return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    cudaError_t error = answer();
    if (error != cudaSuccess)
        return error;
    for (const operation &work : graph->operations)
        enqueue(stream, work);
    std::lock_guard<std::mutex> guard(the.lock);
    the.graph_launches++;
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
