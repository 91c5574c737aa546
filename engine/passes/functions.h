/* Private to engine/passes/: ONNX's Attention and RotaryEmbedding become the primitives they are
 * made of, once shapes are known; see functions.c. */
#pragma once

#include "engine/passes/edit.h"

/* Is it one of them, with operands of known shapes that are not empty, and of which no constants
 * are made that take hundreds of megabytes? */
bool composite_is_expanded(const struct node *node);

/* Inserts the primitive nodes in front of edit->graph->nodes[at] and kills that node. Infers their
 * shapes; folds nothing. Errors: those of the node's own inference,
 * STATUS_NO_MEMORY. */
enum status composite_expand(struct edit *edit, size_t at) MUST_USE;
