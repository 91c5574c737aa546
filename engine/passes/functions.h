/* Private to engine/passes/: ONNX's Attention and RotaryEmbedding become the primitives they are
 * made of, once shapes are known; see functions.c. */
#pragma once

#include "engine/passes/edit.h"

/* Is it one of them, with operands of known shapes that are not empty, and of which no constants
 * are made that take hundreds of megabytes? */
bool function_is_expanded(const struct node *node);

/* Puts the primitives at edit->graph->nodes[at], in front of the node that is there, which is
 * killed. They are inferred; nothing is folded. Errors: those of the node's own inference,
 * STATUS_NO_MEMORY. */
enum status function_expand(struct edit *edit, size_t at) MUST_USE;
