/* Private to engine/op/ and the reference kernels: checks of operands. Checks of operand i take the
 * operand's name in ONNX's documentation ("W", "scale") for errors, and accept an omitted
 * operand. */
#pragma once

#include "engine/graph/graph.h"

/* Checks the inputs against the row's declarations, op_info.operands:
 *
 *     X:float[NC*] scale:=[C] k:int64[1]!
 *
 * A declaration is the operand's name in ONNX's documentation, then any of these:
 *   :types   allowed dtypes, or sets of them (below, in small letters), separated by |. "=" is the
 *            dtype of input 0, "=2" that of input 2
 *   [dims]   a letter is an extent, the same in all operands; a digit is that extent; * is any
 *            number of dimensions; [1] is one element in any rank, [?] at most one element
 *   #        output shapes depend on the operand's contents, and are unknown without them
 *   !        the operand is required, although its index is at least the row's min_inputs
 * Declarations after "..." are repeated for all further inputs. Other inputs are not checked.
 * *ret_ready is false if contents are missing. STATUS_MODEL, STATUS_SHAPE. */
enum status operands_check(const struct node *node, const char *declarations, bool *ret_ready,
                           struct error *err) MUST_USE;

/* Sets of dtypes. */
#define DTYPE_BIT(name)  (1u << DTYPE_##name)
#define DTYPES_FLOAT     (DTYPE_BIT(F32) | DTYPE_BIT(F16) | DTYPE_BIT(BF16) | DTYPE_BIT(F64))
#define DTYPES_8BIT      (DTYPE_BIT(U8) | DTYPE_BIT(I8))
#define DTYPES_QUANTIZED (DTYPES_8BIT | DTYPE_BIT(U16) | DTYPE_BIT(I16))
#define DTYPES_INTEGER                                                                             \
    (DTYPES_QUANTIZED | DTYPE_BIT(U32) | DTYPE_BIT(I32) | DTYPE_BIT(U64) | DTYPE_BIT(I64))
#define DTYPES_SIGNED                                                                              \
    (DTYPES_FLOAT | DTYPE_BIT(I8) | DTYPE_BIT(I16) | DTYPE_BIT(I32) | DTYPE_BIT(I64))
#define DTYPES_INDEX  (DTYPE_BIT(I32) | DTYPE_BIT(I64))
#define DTYPES_NUMBER (DTYPES_FLOAT | DTYPES_INTEGER)
#define DTYPES_ANY    (DTYPES_NUMBER | DTYPE_BIT(BOOL))

/* Checks that the dtype is one of `allowed`. STATUS_MODEL. */
enum status operand_dtype(const struct node *node, size_t i, const char *name, unsigned allowed,
                          struct error *err) MUST_USE;

/* Checks that the operand has the dtype of operand `other`. STATUS_MODEL. */
enum status operand_same_dtype(const struct node *node, size_t i, const char *name, size_t other,
                               struct error *err) MUST_USE;

/* Checks that min <= rank <= max. STATUS_SHAPE. */
enum status operand_rank(const struct node *node, size_t i, const char *name, int min, int max,
                         struct error *err) MUST_USE;

/* Checks that the shape is `wanted`. STATUS_SHAPE. */
enum status operand_has_shape(const struct node *node, size_t i, const char *name,
                              const struct shape *wanted, struct error *err) MUST_USE;

/* Checks that the operand broadcasts to exactly `shape`. STATUS_SHAPE. */
enum status operand_broadcasts(const struct node *node, size_t i, const char *name,
                               const struct shape *shape, struct error *err) MUST_USE;

/* Checks that the operand has one element: rank 0, or all dimensions 1. STATUS_SHAPE. */
enum status operand_single(const struct node *node, size_t i, const char *name,
                           struct error *err) MUST_USE;

/* Index of the string attribute's value among `words`, which are separated by spaces. 0 if the
 * attribute is omitted, -1 if the value is none of the words. Any thread. */
int node_word(const struct node *node, const char *name, const char *words);

/* Checks that the attribute is omitted or one of the words. STATUS_MODEL. */
enum status infer_word(const struct node *node, const char *name, const char *words,
                       struct error *err) MUST_USE;
