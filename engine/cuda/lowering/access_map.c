/* Strided access maps of dense tensors. */
#include "engine/cuda/lowering/lowering.h"

void cuda_dense_steps(const struct shape *shape, int64_t steps[TENSOR_MAX_RANK])
{
    int64_t step = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        steps[d] = step;
        step *= shape->dims[d];
    }
}

bool cuda_map_append(struct cuda_access_map *map, int64_t dim, const int64_t steps[CUDA_OPERANDS])
{
    const int last = map->rank - 1;
    if (dim == 1)
        return true;
    bool joins = last >= 0;
    for (int o = 0; o < CUDA_OPERANDS; o++)
        joins = joins && map->steps[o][last] == steps[o] * dim;
    const int to = joins ? last : map->rank;
    if (to == CUDA_MAX_RANK)
        return false;
    map->dims[to] = joins ? map->dims[to] * dim : dim;
    for (int o = 0; o < CUDA_OPERANDS; o++)
        map->steps[o][to] = steps[o];
    map->rank = to + 1;
    return true;
}

struct cuda_access_map cuda_map_broadcast(const struct shape *y, const struct shape *operands,
                                          int count)
{
    struct cuda_access_map map = {0};
    int64_t dense[CUDA_OPERANDS][TENSOR_MAX_RANK];
    for (int o = 0; o < count; o++)
        cuda_dense_steps(&operands[o], dense[o]);
    for (int d = 0; d < y->rank; d++) {
        int64_t steps[CUDA_OPERANDS] = {0};
        for (int o = 0; o < count; o++) {
            const int from = d - (y->rank - operands[o].rank);
            steps[o] = from < 0 || operands[o].dims[from] == 1 ? 0 : dense[o][from];
        }
        (void)cuda_map_append(&map, y->dims[d], steps); /* y's rank is at most CUDA_MAX_RANK */
    }
    return map;
}
