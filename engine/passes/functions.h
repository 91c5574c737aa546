/* Private to engine/passes/: rewrites of operators after shapes are known and before constants are
 * folded. functions.c rewrites ONNX's Attention and RotaryEmbedding, masked_fill.c a ScatterND that
 * fills masked elements. */
#pragma once

#include "engine/passes/edit.h"

/* True for an Attention or RotaryEmbedding that composite_expand() can rewrite: all operands have
 * known, non-empty shapes (past keys and values may be empty), and no constant would exceed 256
 * MiB. */
bool composite_is_expanded(const struct node *node);

/* Inserts the primitive nodes before edit->graph->nodes[at] and marks that node dead. Infers their
 * shapes but folds nothing. Errors: those of the node's own inference, STATUS_NO_MEMORY. */
enum status composite_expand(struct edit *edit, size_t at) MUST_USE;

/* If edit->graph->nodes[at] is a ScatterND that writes one number wherever a mask is true, turns it
 * into a Where and inserts nodes before it. Returns false for another node, and after an error,
 * which is in edit->status. */
bool masked_fill_as_where(struct edit *edit, size_t at);
