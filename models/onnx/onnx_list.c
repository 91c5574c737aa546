/* Lists the operators of a file without building its graph, so that all missing operators are
 * reported at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/op/ops.h"
#include "models/onnx/onnx_forms.h"
#include "models/onnx/onnx_import.h"

struct list {
    struct import import; /* import.functions distinguishes calls of functions from operators */
    struct onnx_op_use *uses;
    size_t count, capacity;
    struct name_map index; /* "domain\nname\nopset" to position + 1 */
    struct arena *keys;
};

static struct onnx_op_use *add_use(struct list *list, const char *key)
{
    const char *kept = arena_copy_text(list->keys, key, strlen(key));
    if (!array_reserve(&list->uses, &list->capacity, list->count + 1, sizeof *list->uses) ||
        !kept || !name_map_put(&list->index, kept, (void *)(uintptr_t)(list->count + 1)))
        return NULL;
    struct onnx_op_use *use = &list->uses[list->count++];
    *use = (struct onnx_op_use){0};
    return use;
}

static enum status list_node(struct list *list, const Onnx__NodeProto *node,
                             const struct opsets *opsets)
{
    const char *domain = plain_domain(node->domain), *name = text_or_empty(node->op_type);
    int opset = opset_of(opsets, domain);
    bool supported = opset && onnx_spec(domain, name, opset);
    if (!supported && function_find(&list->import, domain, name, text_or_empty(node->overload)))
        return STATUS_OK;
    char *key;
    if (asprintf(&key, "%s\n%s\n%d", domain, name, opset) < 0)
        return error_no_memory(list->import.err, "while listing operators");
    const struct name_slot *slot = name_map_find(&list->index, key);
    struct onnx_op_use *use = slot ? &list->uses[(uintptr_t)slot->value - 1] : add_use(list, key);
    free(key);
    TRY(check_memory(use, "while listing operators", list->import.err));
    if (!use->count) {
        snprintf(use->name, sizeof use->name, "%s", name);
        snprintf(use->domain, sizeof use->domain, "%s", domain);
        use->opset = opset;
        use->supported = supported;
    }
    use->count++;
    return STATUS_OK;
}

/* Recursion follows the nesting of bodies in the file, which wire_slim() bounds. */
static enum status list_nodes(struct list *list, Onnx__NodeProto *const *nodes, size_t count,
                              const struct opsets *opsets)
{
    for (size_t i = 0; i < count; i++) {
        TRY(list_node(list, nodes[i], opsets));
        for (size_t a = 0; a < nodes[i]->n_attribute; a++) {
            const Onnx__AttributeProto *attribute = nodes[i]->attribute[a];
            if (attribute->g)
                TRY(list_nodes(list, attribute->g->node, attribute->g->n_node, opsets));
        }
    }
    return STATUS_OK;
}

static enum status list_model(struct list *list, const Onnx__ModelProto *model)
{
    struct error *err = list->import.err;
    if (!model->graph)
        return error_set(err, STATUS_MODEL, "no graph: this is not an ONNX model");
    TRY(functions_index(&list->import));
    const struct opsets opsets = {model->opset_import, model->n_opset_import};
    if (opsets.count > IMPORT_MAX_OPSETS)
        return error_set(err, STATUS_MODEL,
                         "%zu operator sets are imported; at most %d are accepted", opsets.count,
                         IMPORT_MAX_OPSETS);
    TRY(list_nodes(list, model->graph->node, model->graph->n_node, &opsets));
    for (size_t i = 0; i < model->n_functions; i++) {
        const Onnx__FunctionProto *function = model->functions[i];
        const struct opsets own = {function->opset_import, function->n_opset_import};
        TRY(list_nodes(list, function->node, function->n_node, &own));
    }
    return STATUS_OK;
}

static enum status list_file(struct onnx_file *file, struct onnx_op_use **ret, size_t *ret_count,
                             struct error *err)
{
    struct onnx_messages messages;
    TRY(onnx_unpack(file, &onnx__model_proto__descriptor, &messages, err));
    const Onnx__ModelProto *model = (const Onnx__ModelProto *)messages.root;
    struct list list = {.keys = arena_create(0)};
    list.import = (struct import){.file = file, .model = model, .keys = list.keys, .err = err};
    enum status status =
        list.keys ? list_model(&list, model) : error_no_memory(err, "while listing operators");
    name_map_done(&list.index);
    name_map_done(&list.import.functions);
    arena_free(list.keys);
    arena_free(messages.arena);
    if (status != STATUS_OK) {
        free(list.uses);
        return status;
    }
    *ret = list.uses;
    *ret_count = list.count;
    return STATUS_OK;
}

enum status onnx_list_ops(const char *path, const void *data, size_t size, struct onnx_op_use **ret,
                          size_t *ret_count, struct error *err)
{
    struct error ignored;
    err = err ? err : &ignored;
    struct onnx_file file;
    enum status status = STATUS_OK;
    if (path)
        status = onnx_file_open(&file, path, 0, err);
    else
        onnx_file_borrow(&file, data, size, 0);
    IF_OK(status, list_file(&file, ret, ret_count, err));
    const enum status whole = onnx_file_check(&file, status, err);
    if (status == STATUS_OK && whole != STATUS_OK)
        free(*ret);
    onnx_file_close(&file);
    return whole == STATUS_OK ? whole : error_prefix(err, "%.200s", path ? path : "embedded");
}
