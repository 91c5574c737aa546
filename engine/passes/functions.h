/* Private to engine/passes/: rewrites of what has to be other operators once shapes are known, and
 * before it is folded: ONNX's Attention and RotaryEmbedding (functions.c), assignments by a mask
 * (masked.c). */
#pragma once

#include "engine/passes/edit.h"

/* Is it one of them, with operands of known shapes that are not empty, and of which no constants
 * are made that take hundreds of megabytes? */
bool composite_is_expanded(const struct node *node);

/* Inserts the primitive nodes in front of edit->graph->nodes[at] and kills that node. Infers their
 * shapes; folds nothing. Errors: those of the node's own inference,
 * STATUS_NO_MEMORY. */
enum status composite_expand(struct edit *edit, size_t at) MUST_USE;

/* Makes a ScatterND of one number at the places where a mask is true a Where, with nodes inserted
 * in front of edit->graph->nodes[at]. False: it is something else, or edit->status says why. */
bool masked_become_where(struct edit *edit, size_t at);
