/* Reads the JSON bodies of /predict and of other servers' APIs. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "proto/base64.h"
#include "proto/dialects.h"

/* ---- parameters ---- */

const struct dialect_parameter *dialect_parameter(const struct dialect *dialect, const char *name)
{
    for (const struct dialect_parameter *p = dialect->parameters; p && p->name; p++)
        if (!strcmp(p->name, name))
            return p;
    return NULL;
}

enum status error_no_tracks(const char *api, struct error *err)
{
    return error_set(err, STATUS_INVALID,
                     "answers of %s have no track_id; POST the photo to /predict to track objects",
                     api);
}

/* Writes a value as the text of a query parameter, with a backslash before each letter of
 * `escaped`. Returns false if the value is not a string, number or boolean, or memory runs out. */
static bool put_parameter(FILE *out, const cJSON *value, const char *escaped)
{
    for (const char *at = cJSON_GetStringValue(value); at && *at; at++) {
        if (strchr(escaped, *at))
            fputc('\\', out);
        fputc(*at, out);
    }
    if (cJSON_IsString(value))
        return !ferror(out);
    if (cJSON_IsBool(value))
        return fputs(cJSON_IsTrue(value) ? "true" : "false", out) >= 0;
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        return false;
    const bool is_whole = floor(value->valuedouble) >= value->valuedouble;
    return fprintf(out, is_whole ? "%.0f" : "%.9f", value->valuedouble) >= 0;
}

/* Adds a member to request->parameters: a string, a number, a boolean, a list of strings and
 * numbers, or for points also a list of lists of numbers. */
static enum status read_parameter(const cJSON *member, struct predict_json *request,
                                  struct error *err)
{
    if (!request->parameters)
        request->parameters = alloc_array(PREDICT_JSON_PARAMETERS, sizeof *request->parameters);
    if (request->parameter_count == PREDICT_JSON_PARAMETERS)
        return error_set(err, STATUS_INVALID, "the request has more than %d parameters",
                         PREDICT_JSON_PARAMETERS);
    char *text = NULL;
    size_t size;
    FILE *out = request->parameters ? open_memstream(&text, &size) : NULL;
    TRY(check_memory(out, "for a JSON request", err));
    bool is_value = true;
    if (!cJSON_IsArray(member))
        is_value = put_parameter(out, member, "");
    /* Only labels may contain commas: escape the commas and backslashes of labels. */
    const char *escaped = strstr(member->string, "labels") ? ",\\" : "";
    for (const cJSON *entry = cJSON_IsArray(member) ? member->child : NULL; entry && is_value;
         entry = entry->next) {
        const bool is_point = cJSON_IsArray(entry) && (strstr(member->string, "points") ||
                                                       !strcmp(member->string, "obj_bbox"));
        const cJSON *within = is_point ? entry->child : entry;
        for (; within && is_value; within = is_point ? within->next : NULL) {
            is_value = !cJSON_IsBool(within) && put_parameter(out, within, escaped);
            if (is_point && within->next)
                fputc(',', out);
        }
        if (entry->next)
            fputc(',', out);
    }
    TRY(check_memory(text_close(out, &text), "for a JSON request", err));
    if (!is_value) {
        free(text);
        return error_set(
            err, STATUS_INVALID,
            "\"%.40s\" must be a string, a number, true, false, or a list of strings and numbers",
            member->string);
    }
    request->parameters[request->parameter_count++] =
        (struct predict_json_parameter){member->string, text};
    return STATUS_OK;
}

/* ---- pictures and texts ---- */

enum status dialect_add_item(cJSON *item, struct predict_json *ret, struct error *err)
{
    if (ret->image_count == ret->max_images)
        return error_set(err, STATUS_TOO_LARGE,
                         "more than %zu %s in one request; that is the limit (--max-images)",
                         ret->max_images, ret->are_texts ? "texts" : "images");
    if (!array_reserve(&ret->images, &ret->room, ret->image_count + 1, sizeof *ret->images))
        return error_no_memory(err, "for the images of a request");
    ret->images[ret->image_count++] = (struct predict_json_image){.item = item};
    return STATUS_OK;
}

static enum status add_picture(cJSON *picture, struct predict_json *ret, struct error *err)
{
    static const char *const members[] = {"value", "b64", "url"};
    for (size_t i = 0; cJSON_IsObject(picture) && i < COUNT_OF(members); i++) {
        cJSON *text = cJSON_GetObjectItemCaseSensitive(picture, members[i]);
        if (cJSON_IsString(text))
            picture = text;
    }
    return cJSON_IsString(picture)
               ? dialect_add_item(picture, ret, err)
               : error_set(
                     err, STATUS_INVALID,
                     "an image must be base64 text, a data: URI, or an object with such a text");
}

enum status dialect_add_pictures(cJSON *member, struct predict_json *ret, struct error *err)
{
    if (!cJSON_IsArray(member))
        return add_picture(member, ret, err);
    ret->as_list = true;
    cJSON *entry;
    cJSON_ArrayForEach(entry, member) TRY(add_picture(entry, ret, err));
    return STATUS_OK;
}

/* Checks an image in /predict's own form: its base64 text, or {"b64": "…", "name": "…"}. */
static enum status check_image(const cJSON *image, const char *where, struct error *err)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(image, "name"), *member;
    if (!cJSON_IsString(image) && !cJSON_IsObject(image))
        return error_set(err, STATUS_INVALID,
                         "%s must be the image as base64, or an object with it: {\"b64\": \"…\"}",
                         where);
    cJSON_ArrayForEach(member, image)
    {
        if (strcmp(member->string, "b64") != 0 && strcmp(member->string, "name") != 0)
            return error_set(err, STATUS_INVALID,
                             "unknown member \"%.40s\" in %s; it takes \"b64\" and \"name\"",
                             member->string, where);
    }
    if (cJSON_IsObject(image) && !cJSON_IsString(cJSON_GetObjectItemCaseSensitive(image, "b64")))
        return error_set(err, STATUS_INVALID, "%s lacks the string \"b64\": the image as base64",
                         where);
    if (name && !cJSON_IsString(name))
        return error_set(err, STATUS_INVALID, "\"name\" in %s must be a string", where);
    return STATUS_OK;
}

static const char own_form[] =
    "{\"image\": {\"b64\": \"…\"}} or {\"images\": [{\"b64\": \"…\"}, …]}";

/* Adds the images of /predict's own form, and checks the types of its other members. */
static enum status find_images(cJSON *root, struct predict_json *ret, struct error *err)
{
    cJSON *member;
    cJSON_ArrayForEach(member, root)
    {
        const bool is_list = !strcmp(member->string, "images");
        if (!strcmp(member->string, "top_k") && !cJSON_IsNumber(member))
            return error_set(err, STATUS_INVALID, "\"top_k\" must be a number");
        if (!strcmp(member->string, "track") && !cJSON_IsString(member))
            return error_set(err, STATUS_INVALID, "\"track\" must be a string, a camera's name");
        if (!is_list && strcmp(member->string, "image") != 0)
            continue;
        if (ret->image_count)
            return error_set(err, STATUS_INVALID,
                             "the request has several members with images; send one \"image\", or "
                             "one \"images\"");
        if (is_list && (!cJSON_IsArray(member) || !member->child))
            return error_set(err, STATUS_INVALID,
                             "\"images\" must be a list of one or more objects {\"b64\": \"…\"}");
        ret->as_list = is_list;
        for (cJSON *image = is_list ? member->child : member; image;
             image = is_list ? image->next : NULL) {
            TRY(check_image(image, is_list ? "an entry of \"images\"" : "\"image\"", err));
            TRY(dialect_add_item(image, ret, err));
        }
    }
    return ret->image_count
               ? STATUS_OK
               : error_set(err, STATUS_INVALID, "the request has no image: send %s", own_form);
}

/* Decodes an image in place: its text, or the member "b64" of an object. Malformed base64 fails
 * only this image. */
static void read_picture(struct predict_json_image *ret)
{
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(ret->item, "b64");
    char *text = data ? data->valuestring : ret->item->valuestring;
    ret->name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(ret->item, "name"));
    if (picture_text_decode(text, strlen(text), &ret->data, &ret->size, &ret->error) != STATUS_OK)
        ret->data = NULL;
}

/* Reads a text, or a list of its tokens. */
static enum status read_text(struct predict_json_image *ret, struct error *err)
{
    if (cJSON_IsString(ret->item)) {
        ret->data = (uint8_t *)ret->item->valuestring;
        ret->size = strlen(ret->item->valuestring);
        return STATUS_OK;
    }
    ret->ids = alloc_array((size_t)cJSON_GetArraySize(ret->item), sizeof *ret->ids);
    TRY(check_memory(ret->ids, "for the tokens of a text", err));
    const cJSON *entry;
    cJSON_ArrayForEach(entry, ret->item)
    {
        const double value = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        if (!(value >= 0 && value <= INT32_MAX) || floor(value) != value)
            return error_set(err, STATUS_INVALID, "a token must be a whole number from 0");
        ret->ids[ret->id_count++] = (int64_t)value;
    }
    return STATUS_OK;
}

/* `dialect` NULL: /predict's own form. */
static enum status read_pictures(const struct dialect *dialect, cJSON *root,
                                 struct predict_json *request, struct error *err)
{
    TRY(!dialect ? find_images(root, request, err)
        : dialect->find
            ? dialect->find(root, request, err)
            : dialect_add_pictures(cJSON_GetObjectItemCaseSensitive(root, dialect->images), request,
                                   err));
    if (request->image_count == 0)
        return error_set(err, STATUS_INVALID,
                         "the request has no picture%s; %s takes it as base64 in JSON",
                         dialect->takes_texts ? " or text" : "", dialect->name);
    for (size_t i = 0; i < request->image_count; i++)
        if (request->are_texts)
            TRY(read_text(&request->images[i], err));
        else
            read_picture(&request->images[i]);
    return STATUS_OK;
}

/* ---- the request ---- */

static bool is_parameter(const struct dialect *dialect, const cJSON *member)
{
    return dialect
               ? !cJSON_IsNull(member) && dialect_parameter(dialect, member->string)
               : strcmp(member->string, "image") != 0 && strcmp(member->string, "images") != 0 &&
                     strcmp(member->string, "model") != 0;
}

/* `dialect` NULL: /predict's own form. */
static enum status read_request(const struct dialect *dialect, cJSON *root,
                                struct predict_json *request, struct error *err)
{
    const char *name = dialect ? dialect->model : "model";
    cJSON *nested = root, *member;
    if (!cJSON_IsObject(root))
        return error_set(err, STATUS_INVALID, "a JSON request must be an object%s%s",
                         dialect ? "" : ": ", dialect ? "" : own_form);
    if (dialect && cJSON_GetObjectItemCaseSensitive(root, "track"))
        return error_no_tracks(dialect->name, err);
    TRY(read_pictures(dialect, root, request, err)); /* may change the tree */
    const cJSON *model = name ? cJSON_GetObjectItemCaseSensitive(root, name) : NULL;
    if (model && !cJSON_IsString(model))
        return error_set(err, STATUS_INVALID, "\"%s\" must be a string", name);
    request->model = cJSON_GetStringValue(model);
    if (dialect && dialect->nested) {
        nested = cJSON_GetObjectItemCaseSensitive(root, dialect->nested);
        if (nested && !cJSON_IsNull(nested) && !cJSON_IsObject(nested))
            return error_set(err, STATUS_INVALID, "\"%s\" must be an object", dialect->nested);
        if (cJSON_GetObjectItemCaseSensitive(nested, "track"))
            return error_no_tracks(dialect->name, err);
    }
    cJSON_ArrayForEach(member, nested)
    {
        if (is_parameter(dialect, member))
            TRY(read_parameter(member, request, err));
    }
    return STATUS_OK;
}

enum status predict_json_parse(const struct dialect *dialect, const char *text, size_t size,
                               const struct json_limits *limits, size_t max_images,
                               struct predict_json **ret, struct error *err)
{
    const bool is_own = !dialect || (!dialect->find && !dialect->images);
    TRY(json_check(text, size, limits, err));
    struct predict_json *request = calloc(1, sizeof *request);
    cJSON *root = request ? cJSON_ParseWithLength(text, size) : NULL;
    if (!root) {
        free(request);
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a JSON request of %zu bytes",
                         size);
    }
    request->tree = root;
    request->max_images = max_images;
    *ret = request;
    return read_request(is_own ? NULL : dialect, root, request, err);
}

void predict_json_free(struct predict_json *request)
{
    if (!request)
        return;
    cJSON_Delete(request->tree);
    for (size_t i = 0; i < request->parameter_count; i++)
        free(request->parameters[i].text);
    free(request->parameters);
    for (size_t i = 0; i < request->image_count; i++)
        free(request->images[i].ids);
    FREE_ALL(request->images, request);
}
