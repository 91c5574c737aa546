/* Finds the names of a file's inputs and outputs. The message NamesProto (proto/onnx.proto) has
 * fields only for these names, so all other data in the file is skipped by its length. */
#include "models/onnx/onnx_file.h"

/* Models have at most a few thousand names. */
#define NAMES_MEMORY ((size_t)64 << 20)

static void visit_names(Onnx__NamedProto *const *named, size_t count, bool is_output,
                        onnx_name_visitor visit, void *context)
{
    for (size_t i = 0; i < count; i++)
        visit(context, is_output, named[i]->name ? named[i]->name : "");
}

void onnx_visit_names(const char *path, onnx_name_visitor visit, void *context)
{
    struct onnx_file file;
    struct onnx_messages messages;
    struct error ignored;
    if (onnx_file_open(&file, path, NAMES_MEMORY, &ignored) == STATUS_OK &&
        onnx_unpack(&file, &onnx__names_proto__descriptor, &messages, &ignored) == STATUS_OK) {
        const Onnx__NamesProto__Graph *graph = ((const Onnx__NamesProto *)messages.root)->graph;
        if (graph) {
            visit_names(graph->input, graph->n_input, false, visit, context);
            visit_names(graph->output, graph->n_output, true, visit, context);
        }
        arena_free(messages.arena);
    }
    onnx_file_close(&file);
}
