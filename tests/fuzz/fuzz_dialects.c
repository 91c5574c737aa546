/* JSON bodies of other servers' APIs, and their parameters. The first byte picks the API; what
 * follows is a body, or behind a NUL the name and the value of a parameter. What is refused has a
 * sentence; pictures are no longer than their text; a parameter's new value fits its room. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "tests/fuzz/target.h"

static const struct dialect *const apis[] = {
    &dialect_roboflow,        &dialect_deepstack, &dialect_hugging_face, &dialect_openai,
    &dialect_torchserve,      &dialect_immich,    &dialect_llama_cpp,    &dialect_doods,
    &dialect_photoprism_nsfw, &dialect_cvat};

/* The part `entries` of Immich's forms. */
static void try_entries(const char *text, size_t size)
{
    struct immich_entries entries;
    struct error err = {0};
    if (immich_entries_parse(text, size, &entries, &err) != STATUS_OK) {
        HOLDS(err.message[0] && err.status == STATUS_INVALID);
        return;
    }
    HOLDS(entries.count >= 1 && entries.count <= COUNT_OF(entries.list));
    for (size_t i = 0; i < entries.count; i++) {
        const struct immich_entry *entry = &entries.list[i];
        HOLDS(entry->dialect && entry->model[0] && memchr(entry->model, 0, sizeof entry->model));
        HOLDS(!strpbrk(entry->model, "./:\\"));
        HOLDS(entry->least_box <= 1 && entry->least_text >= 0 && entry->least_text <= 1);
    }
}

static void try_parameter(const struct dialect *dialect, const char *name)
{
    const struct dialect_parameter *row = dialect_parameter(dialect, name);
    HOLDS(!row || (row->own && !strcmp(row->name, name)));
}

static void try_body(const struct dialect *dialect, const char *text, size_t size)
{
    const struct json_limits limits = {16, 1000};
    const size_t max_images = 4;
    struct predict_json *request = NULL;
    struct error err = {0};
    if (!dialect->find && !dialect->images) /* its bodies are /predict's: fuzz_request */
        return;
    if (predict_json_parse(dialect, text, size, &limits, max_images, &request, &err) != STATUS_OK) {
        HOLDS(err.message[0] && err.status != STATUS_NO_MEMORY);
        predict_json_free(request);
        return;
    }
    HOLDS(request->image_count >= 1 && request->image_count <= max_images);
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_json_image *image = &request->images[i];
        HOLDS((image->data != NULL) == (image->error.status == STATUS_OK));
        HOLDS(!image->data || image->size <= size);
    }
    for (size_t i = 0; i < request->parameter_count; i++)
        try_parameter(dialect, request->parameters[i].name);
    predict_json_free(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const struct dialect *dialect = apis[data[0] % COUNT_OF(apis)];
    /* An exact copy: a read past the end is seen. */
    const size_t length = size - 1;
    char *text = malloc(length + 1);
    HOLDS(text);
    memcpy(text, data + 1, length);
    text[length] = '\0';
    if (length && !text[0]) {
        try_parameter(dialect, text + 1);
    } else {
        char *exact = realloc(text, length + !length);
        HOLDS(exact);
        text = exact;
        if (dialect == &dialect_immich)
            try_entries(text, length);
        else
            try_body(dialect, text, length);
    }
    free(text);
    return 0;
}
