/* OpenAI's embeddings, for images: "input" is a data: URI or a list of them (the form of Infinity),
 * or "messages" have image_url parts (the form of vLLM). Source: OpenAI's API reference,
 * "Embeddings"; vLLM's "Multimodal embeddings". */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/base64.h"
#include "proto/dialects.h"
#include "proto/writer.h"

static enum status find_in_messages(cJSON *messages, struct dialect_pictures *ret,
                                    struct error *err)
{
    cJSON *message, *part;
    cJSON_ArrayForEach(message, messages)
    {
        cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(message, "content"))
        {
            cJSON *picture = cJSON_GetObjectItemCaseSensitive(part, "image_url");
            if (!picture)
                continue; /* a text part: an instruction to a language model */
            TRY(dialect_add_pictures(picture, ret, err));
        }
    }
    return STATUS_OK;
}

static enum status openai_find(cJSON *root, struct dialect_pictures *ret, struct error *err)
{
    cJSON *input = cJSON_GetObjectItemCaseSensitive(root, "input");
    if (cJSON_GetObjectItemCaseSensitive(root, "dimensions"))
        return error_set(
            err, STATUS_INVALID,
            "\"dimensions\" is not supported; the model decides the length of its vectors");
    if (!input)
        return find_in_messages(cJSON_GetObjectItemCaseSensitive(root, "messages"), ret, err);
    TRY(dialect_add_pictures(input, ret, err));
    for (size_t i = 0; i < ret->count; i++)
        if (strncmp(ret->texts[i]->valuestring, "data:", 5) != 0 &&
            strncmp(ret->texts[i]->valuestring, "http", 4) != 0)
            return error_set(err, STATUS_INVALID,
                             "lensd does not embed texts; \"input\" must be images as data: URIs: "
                             "data:image/jpeg;base64,…");
    return STATUS_OK;
}

static void write_vector(struct writer *w, cJSON *entry, const struct answer_image *image,
                         bool is_base64)
{
    if (is_base64) { /* little-endian, like all supported machines */
        char *text = base64_text((const uint8_t *)image->embedding,
                                 image->embedding_count * sizeof *image->embedding);
        if (text)
            write_text(w, entry, "embedding", text);
        else
            w->failed = true;
        free(text);
        return;
    }
    cJSON *list = write_array(w, entry, "embedding");
    for (size_t i = 0; i < image->embedding_count; i++)
        write_float(w, list, NULL, image->embedding[i]);
}

static char *openai_write(const struct predict_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_text(&w, root, "object", "list");
    write_text(&w, root, "model", answer->model);
    cJSON *list = write_array(&w, root, "data");
    for (size_t i = 0; i < answer->image_count; i++) {
        cJSON *entry = write_object(&w, list, NULL);
        write_text(&w, entry, "object", "embedding");
        write_count(&w, entry, "index", i);
        write_vector(&w, entry, &answer->images[i], answer->is_base64);
    }
    cJSON *usage = write_object(&w, root, "usage"); /* images have no tokens */
    write_count(&w, usage, "prompt_tokens", 0);
    write_count(&w, usage, "total_tokens", 0);
    return write_finish(&w, root, ret_size);
}

static char *openai_error(int http, const char *sentence, const char *code, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject(), *error = write_object(&w, root, "error");
    write_text(&w, error, "message", sentence);
    write_text(&w, error, "type", http < 500 ? "invalid_request_error" : "server_error");
    write_float(&w, error, "param", NAN); /* null */
    write_text(&w, error, "code", code);
    return write_finish(&w, root, ret_size);
}

static const struct dialect_parameter parameters[] = {{"encoding_format", "encoding", false},
                                                      {"normalize", "normalize", false}};

const struct dialect dialect_openai = {.name = "OpenAI",
                                       .parameters = parameters,
                                       .parameter_count = COUNT_OF(parameters),
                                       .kinds = 1u << ANSWER_EMBEDDING,
                                       .takes = "a model that embeds pictures",
                                       .fails_whole = true,
                                       .model = "model",
                                       .find = openai_find,
                                       .write = openai_write,
                                       .write_error = openai_error};
