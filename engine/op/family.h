/* Private to engine/op/: what the files of the operators' families include. */
#pragma once

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/copy.h"
#include "engine/op/geometry.h"
#include "engine/op/kernel.h"
#include "engine/op/operands.h"
#include "engine/op/resolve.h"

/* Defines inference for an operator whose result is like its first operand, one of `dtypes`. */
#define INFER_LIKE(name, dtypes)                                                                   \
    static enum status name(struct node *node, struct error *err)                                  \
    {                                                                                              \
        return infer_like(node, dtypes, err);                                                      \
    }
