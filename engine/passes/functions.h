/* Private to engine/passes/: rewrites some operators as others once shapes are known, before
 * constants are folded: ONNX's Attention and RotaryEmbedding (functions.c), and a ScatterND that
 * fills what a mask chooses (masked_fill.c). */
#pragma once

#include "engine/passes/edit.h"

/* Is it one of them, with operands of known shapes that are not empty, and of which no constants
 * are made that take hundreds of megabytes? */
bool composite_is_expanded(const struct node *node);

/* Inserts the primitive nodes in front of edit->graph->nodes[at] and kills that node. Infers their
 * shapes; folds nothing. Errors: those of the node's own inference,
 * STATUS_NO_MEMORY. */
enum status composite_expand(struct edit *edit, size_t at) MUST_USE;

/* If edit->graph->nodes[at] is a ScatterND that writes one number wherever a mask is true, makes it
 * a Where, with nodes inserted before it. False: it is not, or edit->status is the error. */
bool masked_fill_as_where(struct edit *edit, size_t at);
