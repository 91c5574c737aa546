/* Converts ONNX files: bytes to messages (onnx_wire.c, protobuf-c), messages to a graph
 * (onnx_graph.c …). */
#include "models/onnx/onnx.h"

#include <stdio.h>
#include <string.h>

#include "engine/passes/validate.h"
#include "models/onnx/onnx_import.h"

/* The newest IR version that lensd reads (ONNX 1.23). */
#define IR_VERSION_MAX 14

static enum status check_header(const Onnx__ModelProto *model, struct error *err)
{
    if (!model->graph)
        return error_set(err, STATUS_MODEL, "no graph: this is not an ONNX model");
    if (model->ir_version < 1)
        return error_set(err, STATUS_MODEL, "no IR version: this is not an ONNX model");
    if (model->ir_version > IR_VERSION_MAX) {
        (void)error_set(err, STATUS_UNSUPPORTED,
                        "IR version %lld is newer than %d, the latest that lensd reads",
                        (long long)model->ir_version, IR_VERSION_MAX);
        return error_advise(err, "re-export the model with an older IR version");
    }
    TRY(opsets_check(&(struct opsets){model->opset_import, model->n_opset_import}, err));
    if (!model->n_opset_import)
        return error_set(err, STATUS_MODEL,
                         "the model does not say which opset of ai.onnx it needs");
    return STATUS_OK;
}

static enum status copy_header(const Onnx__ModelProto *model, struct graph *graph,
                               struct onnx_model *ret, struct error *err)
{
    char producer[256];
    snprintf(producer, sizeof producer, "%.120s%s%.120s", text_or_empty(model->producer_name),
             model->producer_version && *model->producer_version ? " " : "",
             text_or_empty(model->producer_version));
    graph->ir_version = model->ir_version;
    graph->producer = arena_copy_text(graph->arena, producer, strlen(producer));
    struct onnx_metadata *metadata =
        arena_alloc(graph->arena, model->n_metadata_props, sizeof *metadata);
    bool ok = graph->producer && metadata;
    for (size_t i = 0; ok && i < model->n_metadata_props; i++) {
        const char *key = text_or_empty(model->metadata_props[i]->key);
        const char *value = text_or_empty(model->metadata_props[i]->value);
        metadata[i].key = arena_copy_text(graph->arena, key, strlen(key));
        metadata[i].value = arena_copy_text(graph->arena, value, strlen(value));
        ok = metadata[i].key && metadata[i].value;
    }
    TRY(check_memory(ok, "while building the graph", err));
    ret->metadata = metadata;
    ret->metadata_count = model->n_metadata_props;
    return STATUS_OK;
}

/* Infers types and shapes on a copy, so that the graph keeps its file's declarations. */
static enum status validate(const struct graph *graph, struct error *err)
{
    struct graph *copy;
    TRY(graph_clone(graph, &copy, err));
    enum status status = graph_validate(copy, err);
    graph_free(copy);
    return status;
}

static enum status build(struct onnx_file *file, const Onnx__ModelProto *model,
                         struct onnx_model *ret, struct error *err)
{
    if (check_header(model, err) != STATUS_OK)
        return error_advise(err, "export the model again");
    struct import import = {.file = file,
                            .model = model,
                            .make_node = import_node,
                            .err = err,
                            .keys = arena_create(0)};
    struct graph *graph = graph_create(NULL);
    struct scope scope = {.import = &import,
                          .graph = graph,
                          .opsets = {model->opset_import, model->n_opset_import},
                          .prefix = ""};
    enum status status = STATUS_OK;
    if (!graph || !import.keys)
        status = error_no_memory(err, "while building the graph");
    IF_OK(status, functions_index(&import));
    IF_OK(status, copy_header(model, graph, ret, err));
    IF_OK(status, import_graph(&scope, model->graph, false));
    IF_OK(status, validate(graph, err));
    if (status == STATUS_UNSUPPORTED)
        (void)error_advise(err, "export the model without it");
    else if (status != STATUS_OK && status != STATUS_NO_MEMORY && status != STATUS_IO)
        (void)error_advise(err, "the file contradicts itself: export the model again");
    scope_done(&scope);
    name_map_done(&import.functions);
    arena_free(import.keys);
    if (status != STATUS_OK) {
        graph_free(graph);
        return status;
    }
    ret->graph = graph;
    ret->file_bytes = file->size + file->external_bytes;
    return STATUS_OK;
}

static enum status load(struct onnx_file *file, struct onnx_model *ret, struct error *err)
{
    struct onnx_messages messages;
    TRY(onnx_unpack(file, &onnx__model_proto__descriptor, &messages, err));
    struct onnx_model model = {0};
    enum status status = build(file, (const Onnx__ModelProto *)messages.root, &model, err);
    arena_free(messages.arena);
    if (status == STATUS_OK)
        *ret = model;
    return status;
}

enum status onnx_load_file(const char *path, size_t memory_limit, struct onnx_model *ret,
                           struct error *err)
{
    struct error ignored;
    err = err ? err : &ignored;
    struct onnx_file file;
    enum status status = onnx_file_open(&file, path, memory_limit, err);
    IF_OK(status, load(&file, ret, err));
    const enum status whole = onnx_file_check(&file, status, err);
    if (status == STATUS_OK && whole != STATUS_OK)
        onnx_model_done(ret);
    onnx_file_close(&file);
    return whole == STATUS_OK ? whole : error_prefix(err, "%.200s", path);
}

enum status onnx_load_memory(const void *data, size_t size, size_t memory_limit,
                             struct onnx_model *ret, struct error *err)
{
    struct error ignored;
    struct onnx_file file;
    onnx_file_borrow(&file, data, size, memory_limit);
    enum status status = load(&file, ret, err ? err : &ignored);
    onnx_file_close(&file);
    return status;
}

void onnx_model_done(struct onnx_model *model)
{
    graph_free(model->graph);
    *model = (struct onnx_model){0};
}
