/* What the tests of the whole module share: the stand-in's functions, which are found in the module
 * that the engine has loaded (fake_cuda.h says what each does), and a network. */
#pragma once

#include "engine/graph/graph.h"
#include "tests/fake_cuda/fake_cuda.h"

struct fake_module {
    void (*reset)(int devices, size_t bytes);
    void (*fail)(int after, cudaError_t error, int sticky);
    void (*delay)(unsigned most_us);
    void (*peers)(int can);
    void (*pools)(int have);
    void (*pinned_limit)(size_t bytes);
    void (*compute_mode)(int mode);
    void (*capability)(int capability);
    void (*check_order)(int on);
    size_t (*races)(char *text, size_t size);
    void (*skip)(enum fake_cuda_skipped what, int n);
    size_t (*count)(enum fake_cuda_counter what, int device);
    size_t (*used)(int device);
    size_t (*operations)(void);
    size_t (*graph_launches)(void);
};
extern struct fake_module fake;

/* Fills `fake`, and leaves two devices of 1 GiB; .init of a suite. */
void find_fake_module(void);

/* image [?, channels, height, width] → Conv 3×3 of `features`, ReLU → GlobalAveragePool → Conv 1×1
 * as scores [?, classes, 1, 1]: own kernels and a product of cuBLASLt's. */
struct graph *small_classifier(int channels, int height, int width, int features, int classes);
