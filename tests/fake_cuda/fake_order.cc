/* Finds accesses to device memory that nothing orders: vector clocks of streams, events and the
 * host. */
#include "fake_order.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

namespace
{
constexpr size_t REGION = (size_t)4 << 30, REGIONS = fake_order::HOST_MEMORY + 1;
constexpr size_t GRANULE = 64, GRANULES = REGIONS * REGION / GRANULE;
constexpr int READERS = 3;

struct access {
    uint32_t actor, clock; /* clock 0: none */
};

/* The last write and the last reads of 64 bytes: values never share so few. */
struct cell {
    access write, reads[READERS];
};

template <typename T> T *reserve(size_t count)
{
    void *data = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? nullptr : (T *)data;
}

std::mutex lock;
unsigned char *base; /* of all regions */
cell *cells;
std::map<size_t, size_t> holes[REGIONS]; /* free ranges: offset in the region, bytes */
std::atomic<bool> checks{false};
std::atomic<int> actors{1};
size_t race_count;
char race_text[160];

void set_up_locked()
{
    if (base)
        return;
    base = reserve<unsigned char>(REGIONS * REGION);
    cells = reserve<cell>(GRANULES);
    for (auto &region : holes)
        region[0] = REGION;
}

/* What the work at hand touched, each granule once: stamps say which. */
struct work {
    int actor = -1;
    uint32_t serial = 0;
    fake_order::clocks vc;
    std::vector<size_t> reads, writes;
    uint32_t *stamps = nullptr;
    ~work()
    {
        if (stamps)
            munmap(stamps, GRANULES * sizeof *stamps);
    }
};
thread_local work now;

/* Asked for each access before anything that belongs to the thread is: finding that takes longer
 * than most kernels do. */
bool is_checking()
{
    return checks.load(std::memory_order_relaxed);
}

bool is_ordered(const access &earlier)
{
    return earlier.clock == 0 || (int)earlier.actor == now.actor ||
           (earlier.actor < now.vc.size() && earlier.clock <= now.vc[earlier.actor]);
}

void report(const char *what, const access &earlier, size_t granule)
{
    if (race_count++ == 0)
        snprintf(race_text, sizeof race_text,
                 "actor %d %s byte %zu of region %zu, which actor %u used without an order",
                 now.actor, what, granule * GRANULE % REGION, granule * GRANULE / REGION,
                 earlier.actor);
}

void note_read(size_t granule)
{
    cell &c = cells[granule];
    access self = {(uint32_t)now.actor, now.vc[(size_t)now.actor]};
    if (!is_ordered(c.write))
        report("reads", c.write, granule);
    int place = 0;
    for (int i = 0; i < READERS; i++)
        if (c.reads[i].clock == 0 || c.reads[i].actor == self.actor || is_ordered(c.reads[i]))
            place = i;
    c.reads[place] = self;
}

void note_write(size_t granule)
{
    cell &c = cells[granule];
    if (!is_ordered(c.write))
        report("writes", c.write, granule);
    for (access &read : c.reads) {
        if (!is_ordered(read))
            report("overwrites", read, granule);
        read = {};
    }
    c.write = {(uint32_t)now.actor, now.vc[(size_t)now.actor]};
}
} // namespace

namespace fake_order
{
int new_actor()
{
    return actors++;
}

void join(clocks &to, const clocks &from)
{
    if (to.size() < from.size())
        to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++)
        if (from[i] > to[i])
            to[i] = from[i];
}

void begin(int actor, const clocks &vc)
{
    if (!checks)
        return;
    now.actor = actor;
    now.vc = vc;
    now.serial++;
    if (!now.stamps)
        now.stamps = reserve<uint32_t>(GRANULES);
}

void touch(const void *data, size_t size, bool writes)
{
    if (now.actor < 0 || !size || !is_ours(data))
        return;
    size_t first = (size_t)((const unsigned char *)data - base) / GRANULE;
    size_t last = (size_t)((const unsigned char *)data - base + size - 1) / GRANULE;
    for (size_t granule = first; granule <= last; granule++) {
        uint32_t &stamp = now.stamps[granule];
        if (stamp == now.serial * 2 + 1 || (!writes && stamp == now.serial * 2))
            continue;
        stamp = now.serial * 2 + writes;
        (writes ? now.writes : now.reads).push_back(granule);
    }
}

void end()
{
    if (now.actor < 0)
        return;
    {
        std::lock_guard<std::mutex> guard(lock);
        for (size_t granule : now.reads)
            note_read(granule);
        for (size_t granule : now.writes)
            note_write(granule);
    }
    now.reads.clear();
    now.writes.clear();
    now.actor = -1;
}

void check(bool on)
{
    checks = on;
}

size_t races(char *text, size_t size)
{
    std::lock_guard<std::mutex> guard(lock);
    if (text)
        snprintf(text, size, "%s", race_text);
    return race_count;
}

void forget()
{
    std::lock_guard<std::mutex> guard(lock);
    race_count = 0;
    race_text[0] = '\0';
}

void *allocate(int region, size_t size)
{
    std::lock_guard<std::mutex> guard(lock);
    set_up_locked();
    size = (size + 255) / 256 * 256 + (size == 0) * 256;
    if (!base)
        return nullptr;
    for (auto hole = holes[region].begin(); hole != holes[region].end(); ++hole) {
        if (hole->second < size)
            continue;
        size_t offset = hole->first, left = hole->second - size;
        holes[region].erase(hole);
        if (left)
            holes[region][offset + size] = left;
        size_t at = (size_t)region * REGION + offset;
        memset((void *)&cells[at / GRANULE], 0, size / GRANULE * sizeof(cell));
        return base + at;
    }
    return nullptr;
}

void release(void *data, size_t size)
{
    std::lock_guard<std::mutex> guard(lock);
    size = (size + 255) / 256 * 256 + (size == 0) * 256;
    size_t at = (size_t)((unsigned char *)data - base), region = at / REGION;
    auto place = holes[region].emplace(at % REGION, size).first;
    auto next = std::next(place);
    if (next != holes[region].end() && place->first + place->second == next->first) {
        place->second += next->second;
        holes[region].erase(next);
    }
    if (place != holes[region].begin()) {
        auto before = std::prev(place);
        if (before->first + before->second == place->first) {
            before->second += place->second;
            holes[region].erase(place);
        }
    }
    size_t first = (at + 4095) / 4096 * 4096, last = (at + size) / 4096 * 4096;
    if (last > first) /* the system may have the pages again */
        madvise(base + first, last - first, MADV_DONTNEED);
}

bool is_ours(const void *data)
{
    return base && (const unsigned char *)data >= base &&
           (const unsigned char *)data < base + REGIONS * REGION;
}
} // namespace fake_order

/* What the compiler calls for each access of a source compiled with -fsanitize=thread. */
extern "C" {
#define ACCESS(name, size, writes)                                                                 \
    void name(void *data);                                                                         \
    void name(void *data)                                                                          \
    {                                                                                              \
        if (is_checking() && now.actor >= 0)                                                       \
            fake_order::touch(data, size, writes);                                                 \
    }
#define ACCESSES(size)                                                                             \
    ACCESS(__tsan_read##size, size, false)                                                         \
    ACCESS(__tsan_write##size, size, true)                                                         \
    ACCESS(__tsan_unaligned_read##size, size, false)                                               \
    ACCESS(__tsan_unaligned_write##size, size, true)                                               \
    ACCESS(__tsan_volatile_read##size, size, false)                                                \
    ACCESS(__tsan_volatile_write##size, size, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *);
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **);
void __tsan_vptr_read(void **)
{
}
void __tsan_read_range(void *data, size_t size);
void __tsan_read_range(void *data, size_t size)
{
    fake_order::touch(data, size, false);
}
void __tsan_write_range(void *data, size_t size);
void __tsan_write_range(void *data, size_t size)
{
    fake_order::touch(data, size, true);
}
}
