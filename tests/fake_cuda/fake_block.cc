/* A kernel's blocks, one after the other. Threads of a kernel with barriers are fibers: a warp's
 * lanes run one after the other from one warp operation to the next, warps one after the other from
 * one __syncthreads() to the next. The order of warps, and of lanes, is reversed with every phase,
 * so that what one thread leaves for another without a barrier is seen too early or too late. */
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

#include "fake_device.h"
#include "fake_order.h"
#include "fake_warp.h"

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
thread_local unsigned char *fake_dynamic_shared;

namespace
{
constexpr size_t STACK = 128 * 1024, LANES = 32, PAYLOAD = 64;

struct pending_copy {
    void *shared;
    const void *global;
    int bytes;
    bool has;
    size_t group;
};

/* ucontext makes a fiber; from then on jumps switch, which need no system call. */
struct fiber {
    ucontext_t context;
    jmp_buf place;
    enum { READY, AT_WARP, AT_BLOCK, DONE } state;
    bool begun;
    dim3 index;
    std::vector<pending_copy> copies;
    size_t groups;     /* committed */
    unsigned exchange; /* how many warp operations so far */
};

/* What the lanes of a warp hand each other: two sets, so that the next operation does not overwrite
 * what a slow lane still reads. */
struct warp_mail {
    alignas(16) unsigned char set[2][LANES][PAYLOAD];
};

struct block_state {
    ucontext_t unused;
    jmp_buf scheduler;
    std::vector<fiber> fibers;
    std::vector<warp_mail> mail;
    std::vector<void *> stacks;
    const std::function<void()> *body;
    size_t count, running;
    ~block_state()
    {
        for (void *stack : stacks)
            free(stack);
    }
};

thread_local block_state *block_now;

[[noreturn]] void wrong(const char *what)
{
    fprintf(stderr, "fake_cuda: %s\n", what);
    abort();
}

void fiber_main()
{
    (*block_now->body)();
    fiber &self = block_now->fibers[block_now->running];
    self.state = fiber::DONE;
    _longjmp(block_now->scheduler, 1);
}

/* Runs fiber t to where it waits next, or its end. */
void resume(block_state &block, size_t t)
{
    fiber &f = block.fibers[t];
    block.running = t;
    threadIdx = f.index;
    if (_setjmp(block.scheduler))
        return;
    if (f.begun)
        _longjmp(f.place, 1);
    f.begun = true;
    swapcontext(&block.unused, &f.context);
}

void wait_at(decltype(fiber::state) place)
{
    if (!block_now)
        wrong("a kernel whose threads wait for each other was started with LAUNCH");
    block_state &block = *block_now;
    fiber &self = block.fibers[block.running];
    self.state = place;
    if (!_setjmp(self.place))
        _longjmp(block.scheduler, 1);
}

/* Runs a warp until all its lanes wait at the block's barrier, or have ended. */
void run_warp(block_state &block, size_t first, bool backwards)
{
    size_t lanes = block.count - first < LANES ? block.count - first : LANES;
    for (;;) {
        size_t at_warp = 0, at_rest = 0;
        for (size_t i = 0; i < lanes; i++) {
            fiber &f = block.fibers[first + (backwards ? lanes - 1 - i : i)];
            if (f.state == fiber::READY)
                resume(block, first + (backwards ? lanes - 1 - i : i));
            at_warp += f.state == fiber::AT_WARP;
            at_rest += f.state == fiber::AT_BLOCK || f.state == fiber::DONE;
        }
        if (at_rest == lanes)
            return;
        if (at_warp != lanes)
            wrong("the lanes of a warp wait at different places");
        for (size_t i = 0; i < lanes; i++)
            block.fibers[first + i].state = fiber::READY;
    }
}

__attribute__((noinline)) void make_context(fiber &f, void *stack)
{
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, fiber_main, 0);
}

void prepare(block_state &block, dim3 size)
{
    for (size_t t = 0; t < block.count; t++) {
        fiber &f = block.fibers[t];
        make_context(f, block.stacks[t]);
        f.begun = false;
        f.state = fiber::READY;
        f.copies.clear();
        f.groups = f.exchange = 0;
        f.index = dim3((unsigned)(t % size.x), (unsigned)(t / size.x % size.y),
                       (unsigned)(t / size.x / size.y));
    }
}

/* All threads must come to the same barriers. */
void run_block_with_barriers(block_state &block, dim3 size, const std::function<void()> &body)
{
    block.body = &body;
    block_now = &block;
    prepare(block, size);
    const size_t warps = (block.count + LANES - 1) / LANES;
    for (bool backwards = false;; backwards = !backwards) {
        for (size_t w = 0; w < warps; w++)
            run_warp(block, (backwards ? warps - 1 - w : w) * LANES, backwards);
        size_t ended = 0;
        for (size_t t = 0; t < block.count; t++)
            ended += block.fibers[t].state == fiber::DONE;
        if (ended == block.count)
            break;
        if (ended)
            wrong("some threads of a block ended while others wait");
        for (size_t t = 0; t < block.count; t++)
            block.fibers[t].state = fiber::READY;
    }
    for (size_t t = 0; t < block.count; t++)
        if (!block.fibers[t].copies.empty())
            wrong("a thread ended with asynchronous copies in flight");
    block_now = nullptr;
}

/* Fibers and shared memory of this stream's thread, kept from kernel to kernel. */
block_state &workers(size_t count)
{
    static thread_local block_state block;
    block.count = count;
    if (block.fibers.size() < count)
        block.fibers.resize(count);
    while (block.stacks.size() < count)
        block.stacks.push_back(aligned_alloc(64, STACK));
    block.mail.resize((count + LANES - 1) / LANES);
    return block;
}
} // namespace

void fake_run_kernel(dim3 grid, dim3 size, size_t shared, bool has_barriers,
                     const std::function<void()> &body)
{
    size_t count = (size_t)size.x * size.y * size.z;
    std::vector<unsigned char> memory(shared + 1024);
    size_t offset = (1024 - (size_t)memory.data() % 1024) % 1024;
    fake_dynamic_shared = memory.data() + offset;
    gridDim = grid;
    blockDim = size;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                if (has_barriers) {
                    memset(fake_dynamic_shared, 0xFF, shared); /* NaN */
                    run_block_with_barriers(workers(count), size, body);
                    continue;
                }
                for (size_t t = 0; t < count; t++) {
                    threadIdx = dim3((unsigned)(t % size.x), (unsigned)(t / size.x % size.y),
                                     (unsigned)(t / size.x / size.y));
                    body();
                }
            }
    for (size_t i = offset + shared; i < memory.size(); i++)
        if (memory[i]) /* what lies behind is still as it was made */
            wrong("a kernel wrote beyond its shared memory");
}

void __syncthreads()
{
    wait_at(fiber::AT_BLOCK);
}

void __syncwarp(unsigned)
{
    wait_at(fiber::AT_WARP);
}

const void *fake_exchange(const void *mine, size_t size, size_t *ret_stride)
{
    if (!block_now)
        wrong("a warp operation in a kernel that was started with LAUNCH");
    block_state &block = *block_now;
    size_t self = block.running;
    auto &set = block.mail[self / LANES].set[block.fibers[self].exchange++ % 2];
    memcpy(set[self % LANES], mine, size);
    wait_at(fiber::AT_WARP);
    *ret_stride = PAYLOAD;
    return set;
}

static float shuffled(float value, int from)
{
    size_t stride;
    const char *all = (const char *)fake_exchange(&value, sizeof value, &stride);
    size_t first = block_now->running / LANES * LANES;
    if (from < 0 || from >= (int)LANES || first + (size_t)from >= block_now->count)
        return value;
    float got;
    memcpy(&got, all + (size_t)from * stride, sizeof got);
    return got;
}

float __shfl_xor_sync(unsigned, float value, int lane_mask)
{
    return shuffled(value, (int)(block_now ? block_now->running % LANES : 0) ^ lane_mask);
}

float __shfl_sync(unsigned, float value, int lane)
{
    return shuffled(value, lane);
}

/* ---- asynchronous copies: they arrive when they are waited for, and not before ---- */

void fake_copy_async(void *shared, const void *global, int bytes, bool has)
{
    if (((uintptr_t)shared | (uintptr_t)global) % (uintptr_t)bytes)
        wrong("an asynchronous copy that is not aligned");
    fiber &self = block_now->fibers[block_now->running];
    memset(shared, 0xFF, (size_t)bytes); /* whoever still reads the old, or already the new */
    self.copies.push_back({shared, global, bytes, has, self.groups});
}

void fake_copies_commit()
{
    block_now->fibers[block_now->running].groups++;
}

void fake_copies_wait(size_t pending)
{
    fiber &self = block_now->fibers[block_now->running];
    size_t kept = 0;
    for (const pending_copy &copy : self.copies) {
        if (copy.group + pending >= self.groups) {
            self.copies[kept++] = copy;
            continue;
        }
        if (copy.has) {
            fake_order::touch(copy.global, (size_t)copy.bytes, false);
            memcpy(copy.shared, copy.global, (size_t)copy.bytes);
        } else {
            memset(copy.shared, 0, (size_t)copy.bytes);
        }
    }
    self.copies.resize(kept);
}
