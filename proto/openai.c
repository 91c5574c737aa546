/* OpenAI's embeddings, for images: "input" is a data: URI or a list of them (the form of Infinity),
 * or "messages" have image_url parts (the form of vLLM). Source: OpenAI's API reference,
 * "Embeddings"; vLLM's "Multimodal embeddings". */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    write_floats(w, entry, "embedding", image->embedding, image->embedding_count);
}

static char *openai_write(const struct predict_answer *answer, size_t *ret_size)
{
    struct writer w = {false};
    json_node *root = write_root();
    write_members(&w, root, "object=%s model=%s", "list", answer->model);
    cJSON *list = write_array(&w, root, "data");
    for (size_t i = 0; i < answer->image_count; i++) {
        cJSON *entry = write_object(&w, list, NULL);
        write_members(&w, entry, "object=%s index=%zu", "embedding", i);
        write_vector(&w, entry, &answer->images[i], answer->is_base64);
    }
    write_members(&w, root, "usage{prompt_tokens=%d total_tokens=%d}", 0, 0); /* of texts */
    return write_finish(&w, root, ret_size);
}

static char *openai_error(int http, const char *sentence, const char *code, size_t *ret_size)
{
    return write_document(ret_size, "error{message=%s type=%s param=%g code=%s}", sentence,
                          http < 500 ? "invalid_request_error" : "server_error", (double)NAN, code);
}

static const struct dialect_parameter parameters[] = {
    {"encoding_format", "encoding", false}, {"normalize", "normalize", false}, {0}};

const struct dialect dialect_openai = {.name = "OpenAI",
                                       .parameters = parameters,
                                       .kinds = 1u << ANSWER_EMBEDDING,
                                       .takes = "a model that embeds pictures",
                                       .fails_whole = true,
                                       .model = "model",
                                       .find = openai_find,
                                       .write = openai_write,
                                       .write_error = openai_error};
