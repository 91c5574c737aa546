/* The table of operators: every one has all parts of its record. */
#include <criterion/criterion.h>

#include "engine/op/ops.h"

Test(op_table, has_a_whole_record_for_every_operator)
{
    for (int i = OP_NONE + 1; i < OP_COUNT; i++) {
        const enum op op = (enum op)i;
        const struct op_info *record = op_record(op);
        cr_assert_not_null(record, "%s has no record: add its row to a family in engine/op",
                           op_name(op));
        cr_expect_not_null(record->infer, "%s has no inference", op_name(op));
        cr_expect_neq(record->traits, 0, "%s has no traits", op_name(op));
        cr_expect_not_null(record->batch, "%s has no rule for batches", op_name(op));
        cr_expect_not_null(record->work, "%s has no estimate of its work", op_name(op));
        cr_expect(record->kernel, "%s has no reference kernel", op_name(op));
    }
}

Test(op_table, contradicts_itself_nowhere)
{
    for (int i = OP_NONE + 1; i < OP_COUNT; i++) {
        const enum op op = (enum op)i;
        if (!op_record(op))
            continue; /* the test above fails */
        const unsigned traits = op_record(op)->traits;
        cr_expect(!(traits & OP_PLAIN) || traits == OP_PLAIN, "%s", op_name(op));
        cr_expect(!(traits & OP_UNARY) || !(traits & OP_BROADCAST), "%s", op_name(op));
        cr_expect(!(traits & OP_DATA_SHAPE) || op_record(op)->batch == &batch_mixes, "%s",
                  op_name(op));
    }
}
