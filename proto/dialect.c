/* Reads the JSON bodies of other servers' APIs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/picture_text.h"
#include "proto/predict_json.h"

const char *dialect_parameter(const struct dialect *dialect, const char *name, const char *value,
                              char room[static 32], const char **ret_value)
{
    for (size_t i = 0; i < dialect->parameter_count; i++) {
        const struct dialect_parameter *parameter = &dialect->parameters[i];
        if (strcmp(parameter->name, name) != 0)
            continue;
        char *end = NULL;
        const double number = parameter->is_percent ? strtod(value, &end) : 0;
        *ret_value = value;
        if (number > 1 && !*end) {
            snprintf(room, 32, "%.6f", number / 100);
            *ret_value = room;
        }
        return parameter->own;
    }
    return NULL;
}

static enum status add_picture(cJSON *picture, struct dialect_pictures *ret, struct error *err)
{
    static const char *const members[] = {"value", "b64", "url"};
    for (size_t i = 0; cJSON_IsObject(picture) && i < COUNT_OF(members); i++) {
        cJSON *text = cJSON_GetObjectItemCaseSensitive(picture, members[i]);
        if (cJSON_IsString(text))
            picture = text;
    }
    if (!cJSON_IsString(picture))
        return error_set(err, STATUS_INVALID,
                         "an image must be base64 text, a data: URI, or an object with one");
    if (ret->count == ret->capacity)
        return error_set(err, STATUS_TOO_LARGE,
                         "more than %zu images in one request; that is the limit (--max-images)",
                         ret->capacity);
    ret->texts[ret->count++] = picture;
    return STATUS_OK;
}

enum status dialect_add_pictures(cJSON *member, struct dialect_pictures *ret, struct error *err)
{
    if (!cJSON_IsArray(member))
        return add_picture(member, ret, err);
    ret->as_list = true;
    cJSON *entry;
    cJSON_ArrayForEach(entry, member) TRY(add_picture(entry, ret, err));
    return STATUS_OK;
}

static enum status read_pictures(const struct dialect *dialect, cJSON *root, size_t max_images,
                                 struct predict_json *request, struct error *err)
{
    struct dialect_pictures found = {.texts = alloc_array(max_images, sizeof *found.texts),
                                     .capacity = max_images};
    enum status status =
        found.texts ? dialect->find(root, &found, err) : error_no_memory(err, "for a request");
    if (status == STATUS_OK && found.count == 0)
        status =
            error_set(err, STATUS_INVALID,
                      "the request has no picture; %s takes it as base64 in JSON", dialect->name);
    if (status == STATUS_OK) {
        request->images = alloc_array(found.count, sizeof *request->images);
        request->image_count = request->images ? found.count : 0;
        request->as_list = found.as_list;
        if (!request->images)
            status = error_no_memory(err, "for the images of a request");
    }
    for (size_t i = 0; i < request->image_count; i++) {
        struct predict_json_image *image = &request->images[i];
        char *text = found.texts[i]->valuestring;
        if (picture_text_decode(text, strlen(text), &image->data, &image->size, &image->error) !=
            STATUS_OK)
            image->data = NULL; /* an error of this image alone */
    }
    free(found.texts);
    return status;
}

static enum status read_members(const struct dialect *dialect, const cJSON *object,
                                struct predict_json *request, struct error *err)
{
    const cJSON *member;
    cJSON_ArrayForEach(member, object)
    {
        bool is_known = false;
        for (size_t i = 0; i < dialect->parameter_count; i++)
            is_known = is_known || !strcmp(dialect->parameters[i].name, member->string);
        if (is_known && !cJSON_IsNull(member))
            TRY(predict_json_parameter(member, request, err));
    }
    return STATUS_OK;
}

static enum status read_request(const struct dialect *dialect, cJSON *root, size_t max_images,
                                struct predict_json *request, struct error *err)
{
    if (!cJSON_IsObject(root))
        return error_set(err, STATUS_INVALID, "a JSON request must be an object");
    const cJSON *model =
        dialect->model ? cJSON_GetObjectItemCaseSensitive(root, dialect->model) : NULL;
    if (model && !cJSON_IsString(model))
        return error_set(err, STATUS_INVALID, "\"%s\" must be a string", dialect->model);
    request->model = model ? model->valuestring : NULL;
    TRY(read_pictures(dialect, root, max_images, request, err));
    const cJSON *nested =
        dialect->nested ? cJSON_GetObjectItemCaseSensitive(root, dialect->nested) : root;
    if (nested && !cJSON_IsNull(nested) && !cJSON_IsObject(nested))
        return error_set(err, STATUS_INVALID, "\"%s\" must be an object", dialect->nested);
    return read_members(dialect, nested, request, err);
}

enum status dialect_parse(const struct dialect *dialect, const char *text, size_t size,
                          const struct predict_json_limits *limits, struct predict_json **ret,
                          struct error *err)
{
    cJSON *root;
    struct predict_json *request = NULL;
    TRY(predict_json_tree(text, size, limits, &request, &root, err));
    const enum status status = read_request(dialect, root, limits->max_images, request, err);
    if (status != STATUS_OK)
        predict_json_free(request);
    else
        *ret = request;
    return status;
}
