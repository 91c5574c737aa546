/* What tests/tasks/make_golden.py has written to golden/: outputs of models, and what Ultralytics
 * and Transformers make of them. A photo of 500 x 333 in an input of 64 x 64. */
#pragma once

#include <criterion/criterion.h>
#include <stdio.h>

#include "models/tasks/rows.h"
#include "tests/unit/golden.h"

/* One output of a model. */
static inline struct task_rows golden_rows(const char *name)
{
    char path[80];
    snprintf(path, sizeof path, "models/tasks/golden/%s.npy", name);
    const struct tensor *t = golden_read(path);
    return (struct task_rows){t->data, t->shape, t->bytes / sizeof(float)};
}

/* Expected detections, best first, of `size` numbers each: class, score and what the writer says.
 * Fails the test if they are not `count`. */
static inline const float *golden_boxes(const char *name, size_t size, size_t count)
{
    const struct task_rows rows = golden_rows(name);
    cr_assert_eq(rows.count, size * count, "%zu boxes, not %zu", count, rows.count / size);
    return rows.data;
}
