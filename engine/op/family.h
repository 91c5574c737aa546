/* Private to engine/op/: includes for the files of the operators' families. */
#pragma once

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/copy.h"
#include "engine/op/geometry.h"
#include "engine/op/kernel.h"
#include "engine/op/operands.h"
#include "engine/op/resolve.h"

/* The usual row: one output, all opsets from `since` on, few multiply-adds. The row's functions are
 * infer_<infer>() and kernel_<kernel>(). */
#define OP_ROW_OF(id, since, least, most, operands, traits, attrs, infer, rule, kernel)            \
    {                                                                                              \
        OP_##id, since, 0, least, most, 1, 1, operands, traits, attrs, infer_##infer, rule,        \
            work_elements, kernel_##kernel                                                         \
    }
#define OP_ROW(id, since, least, most, operands, traits, attrs, name, rule)                        \
    OP_ROW_OF(id, since, least, most, operands, traits, attrs, name, rule, name)

/* A batch rule that only one operator has. */
#define BATCH(axis, beside) (&(const struct batch_rule){axis, beside})
