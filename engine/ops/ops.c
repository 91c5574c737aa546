/* The table of operators: the families of engine/ops/ together, looked up by operator and opset. */
#include "engine/ops/ops.h"

#include <assert.h>
#include <pthread.h>

#include "engine/base/size.h"
#include "engine/ops/families.h"

#define MAX_ENTRIES 4 /* opset ranges of one operator */

static const struct op_family *const families[] = {
    &ops_elementwise, &ops_shape,    &ops_index,    &ops_reduce,  &ops_linear,    &ops_convolution,
    &ops_norm,        &ops_resample, &ops_quantize, &ops_control, &ops_attention, &ops_transformer,
};

static const struct op_info *by_op[OP_COUNT][MAX_ENTRIES];
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void build_index(void)
{
    for (size_t f = 0; f < COUNT_OF(families); f++) {
        for (size_t i = 0; i < families[f]->count; i++) {
            const struct op_info *info = &families[f]->ops[i];
            size_t slot = 0;
            while (slot < MAX_ENTRIES && by_op[info->op][slot])
                slot++;
            assert(slot < MAX_ENTRIES); /* one more opset range of an operator: raise it */
            by_op[info->op][slot] = info;
        }
    }
}

const struct op_info *op_find(enum op op, int opset)
{
    pthread_once(&index_once, build_index);
    if (op <= OP_NONE || op >= OP_COUNT)
        return NULL;
    for (size_t i = 0; i < MAX_ENTRIES && by_op[op][i]; i++) {
        const struct op_info *info = by_op[op][i];
        if (opset >= info->since && (!info->until || opset <= info->until))
            return info;
    }
    return NULL;
}
