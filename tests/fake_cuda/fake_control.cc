/* Failures that a file orders for a whole server's devices. */
#include "fake_control.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace
{
constexpr int MAX_DEVICES = 8;
std::atomic<int> broken[MAX_DEVICES], failing[MAX_DEVICES];
} // namespace

void fake_control_read(int *devices, size_t *memory, unsigned *delay_us)
{
    const char *path = getenv("FAKE_CUDA_ORDERS");
    FILE *file = path ? fopen(path, "re") : nullptr;
    if (!file)
        return;
    char word[16], line[128];
    int fails[MAX_DEVICES] = {};
    while (fgets(line, sizeof line, file)) {
        long long first = 0, second = 0;
        if (sscanf(line, "%15s %lld %lld", word, &first, &second) < 2)
            continue;
        const bool is_device = first >= 0 && first < MAX_DEVICES;
        if (!strcmp(word, "devices") && first <= MAX_DEVICES)
            *devices = (int)first;
        else if (!strcmp(word, "memory"))
            *memory = (size_t)first;
        else if (!strcmp(word, "delay"))
            *delay_us = (unsigned)first;
        else if (!strcmp(word, "break") && is_device)
            broken[first] = (int)second;
        else if (!strcmp(word, "fail") && is_device)
            fails[first] = (int)second;
    }
    fclose(file);
    for (int i = 0; i < MAX_DEVICES; i++)
        failing[i] = fails[i];
}

cudaError_t fake_control_error(int device)
{
    if (broken[device])
        return (cudaError_t)(int)broken[device];
    return (cudaError_t)(int)failing[device];
}
