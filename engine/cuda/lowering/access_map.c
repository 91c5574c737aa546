/* Strided access maps of dense tensors. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/op/strided.h"

_Static_assert(CUDA_MAX_RANK == TENSOR_MAX_RANK, "an access map has room for a tensor");

void cuda_dense_steps(const struct shape *shape, int64_t steps[TENSOR_MAX_RANK])
{
    int64_t step = 1;
    for (int d = shape->rank - 1; d >= 0; d--) {
        steps[d] = step;
        step *= shape->dims[d];
    }
}

bool cuda_map_append(struct cuda_access_map *map, int64_t dim, int64_t step)
{
    const int last = map->rank - 1;
    if (dim == 1)
        return true;
    const bool joins = last >= 0 && map->steps[0][last] == step * dim;
    const int to = joins ? last : map->rank;
    if (to == CUDA_MAX_RANK)
        return false;
    map->dims[to] = joins ? map->dims[to] * dim : dim;
    map->steps[0][to] = step;
    map->rank = to + 1;
    return true;
}

struct cuda_access_map cuda_map_broadcast(const struct shape *y,
                                          const struct shape *const *operands, int count)
{
    struct broadcast merged;
    broadcast_start(&merged, y, operands, count);
    struct cuda_access_map map = {.rank = merged.rows.rank + 1};
    for (int d = 0; d < map.rank; d++) {
        map.dims[d] = (int64_t)merged.rows.extent[d];
        for (int o = 0; o < count; o++)
            map.steps[o][d] = (int64_t)merged.rows.step[o][d];
    }
    return map;
}
