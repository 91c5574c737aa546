/* What clients send, taken to pieces. The first byte picks the parser. Whatever comes is refused
 * with a sentence, or the pieces lie inside it: parts of a form within the body, decoded images no
 * longer than their text, names and parameters UTF-8; and what the JSON checker lets pass, cJSON
 * can read. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "models/tasks/task.h"
#include "proto/answers.h"
#include "proto/base64.h"
#include "proto/json.h"
#include "server/http/transport/multipart.h"
#include "server/http/transport/query.h"
#include "tests/fuzz/target.h"

#define MAX_PARTS 8

static void try_multipart(const uint8_t *body, size_t size)
{
    struct multipart multipart = {0};
    struct error err = {0};
    if (multipart_parse("multipart/form-data; boundary=B", body, size, MAX_PARTS, &multipart,
                        &err) != STATUS_OK) {
        HOLDS(err.message[0] && !multipart.parts);
        return;
    }
    HOLDS(multipart.count >= 1 && multipart.count <= MAX_PARTS);
    const uint8_t *last = body;
    for (size_t i = 0; i < multipart.count; i++) {
        const struct multipart_part *part = &multipart.parts[i];
        HOLDS(part->data >= last && part->size <= (size_t)(body + size - part->data));
        HOLDS(strlen(part->name) < MULTIPART_NAME_MAX);
        HOLDS(strlen(part->filename) < MULTIPART_NAME_MAX);
        last = part->data + part->size;
    }
    multipart_done(&multipart);
}

static void try_option(const char *name, const char *text)
{
    struct task_options options = TASK_OPTIONS_NONE;
    struct error err = {0};
    if (task_option_set(&options, name, text, &err) != STATUS_OK)
        HOLDS(err.message[0]);
    else
        HOLDS(options.confidence <= 1 && options.iou <= 1 &&
              options.max_detections <= TASK_MAX_DETECTIONS &&
              options.class_count <= TASK_MAX_CLASSES);
}

static void try_query(char *text)
{
    struct query query;
    struct error err = {0};
    if (query_parse(text, &query, &err) != STATUS_OK) {
        HOLDS(err.message[0]);
        return;
    }
    for (size_t i = 0; i < query.count; i++) {
        const struct query_parameter *p = &query.parameters[i];
        HOLDS(p->name[0] && query_value(&query, p->name) == p->value);
        HOLDS(utf8_valid(p->name, strlen(p->name)) && utf8_valid(p->value, strlen(p->value)));
        try_option(p->name, p->value);
    }
}

static void try_form(unsigned char *form, size_t size)
{
    size_t found = 0;
    const unsigned char *value = query_form_field(form, size, "data", &found);
    HOLDS(!value || (value > form && value + found <= form + size));
}

static void try_request(const char *text, size_t size)
{
    const struct json_limits limits = {16, 1000};
    const size_t max_images = 4;
    struct predict_json *request = NULL;
    struct error err = {0};
    enum status status = predict_json_parse(NULL, text, size, &limits, max_images, &request, &err);
    if (status != STATUS_OK) {
        HOLDS(err.message[0] && status != STATUS_NO_MEMORY);
        predict_json_free(request);
        return;
    }
    HOLDS(request->image_count >= 1 && request->image_count <= 4);
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_json_image *image = &request->images[i];
        HOLDS((image->data != NULL) == (image->error.status == STATUS_OK));
        HOLDS(!image->data || image->size <= size);
    }
    predict_json_free(request);
}

static enum status on_setting(void *context, const char *key, const char *text, struct error *err)
{
    (void)err;
    *(size_t *)context += strlen(key) + strlen(text);
    return STATUS_OK;
}

static void try_settings(const char *text, size_t size)
{
    struct error err = {0};
    size_t seen = 0;
    enum status status = json_settings(text, size, on_setting, &seen, &err);
    HOLDS(status == STATUS_OK || (status == STATUS_CONFIG && err.message[0]));
}

static void try_logging(const char *text, size_t size)
{
    struct error err = {0};
    struct logging_settings settings = {.verbose = 7};
    if (logging_json_read(text, size, &settings, &err) != STATUS_OK)
        HOLDS(err.message[0]);
    else
        HOLDS(settings.verbose >= 0);
}

static void try_base64(char *text, size_t size)
{
    struct error err = {0};
    size_t decoded = 0;
    /* In place, as requests are decoded. */
    if (base64_decode(text, size, (uint8_t *)text, &decoded, &err) == STATUS_OK)
        HOLDS(decoded <= size / 4 * 3 + 2);
    else
        HOLDS(err.message[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    /* An exact copy: a read past the end is seen. Only addresses are terminated texts. */
    size_t length = size - 1, terminator = data[0] % 6 == 1;
    char *text = malloc(length + terminator + !length);
    HOLDS(text);
    memcpy(text, data + 1, length);
    if (terminator)
        text[length] = '\0';
    switch (data[0] % 6) {
    case 0:
        try_multipart((const uint8_t *)text, length);
        try_form((unsigned char *)text, length);
        break;
    case 1:
        try_query(text);
        break;
    case 2:
        try_request(text, length);
        break;
    case 3:
        try_settings(text, length);
        break;
    case 4:
        try_base64(text, length);
        break;
    default:
        try_logging(text, length);
    }
    free(text);
    return 0;
}
