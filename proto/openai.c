/* OpenAI's embeddings: "input" is a text or a list of texts, or of their tokens. For images it is a
 * data: URI or a list of them (Infinity's form), or "messages" have image_url parts (vLLM's form).
 * Source: OpenAI's API reference, "Embeddings"; vLLM's "Multimodal embeddings". */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base64.h"
#include "proto/dialects.h"
#include "proto/writer.h"

static enum status find_in_messages(cJSON *messages, struct predict_json *ret, struct error *err)
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

static bool is_address(const cJSON *item)
{
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    return !strncmp(text, "data:", 5) || !strncmp(text, "http://", 7) ||
           !strncmp(text, "https://", 8);
}

static bool are_tokens(const cJSON *item)
{
    return cJSON_IsArray(item) && cJSON_IsNumber(item->child);
}

static enum status add_text(cJSON *item, struct predict_json *ret, struct error *err)
{
    if (is_address(item))
        return error_set(err, STATUS_INVALID,
                         "\"input\" has both texts and images; send them in two requests");
    if (!cJSON_IsString(item) && !are_tokens(item))
        return error_set(err, STATUS_INVALID,
                         "\"input\" must be a text, a list of texts, a list of tokens, a list of "
                         "those, or images as data: URIs: data:image/jpeg;base64,…");
    return dialect_add_item(item, ret, err);
}

/* Reads "input" or "messages". "input" has images if its first entry is an address or an object. */
static enum status openai_find(cJSON *root, struct predict_json *ret, struct error *err)
{
    cJSON *input = cJSON_GetObjectItemCaseSensitive(root, "input");
    if (!input)
        return find_in_messages(cJSON_GetObjectItemCaseSensitive(root, "messages"), ret, err);
    const bool is_list = cJSON_IsArray(input) && !are_tokens(input);
    cJSON *first = is_list ? input->child : input;
    if (!first)
        return STATUS_OK;
    ret->are_texts = !is_address(first) && !cJSON_IsObject(first);
    if (ret->are_texts) {
        ret->as_list = is_list;
        for (cJSON *item = first; item; item = is_list ? item->next : NULL)
            TRY(add_text(item, ret, err));
        return STATUS_OK;
    }
    TRY(dialect_add_pictures(input, ret, err));
    for (size_t i = 0; i < ret->image_count; i++)
        if (!is_address(ret->images[i].item))
            return error_set(err, STATUS_INVALID,
                             "\"input\" has both images and texts; send them in two requests");
    return STATUS_OK;
}

static void write_vector(struct writer *w, cJSON *entry, const struct answer_image *image,
                         bool is_base64)
{
    if (is_base64) { /* little-endian, like all supported machines */
        char *text = base64_text((const uint8_t *)image->embedding,
                                 image->embedding_count * sizeof *image->embedding);
        write_text(w, entry, "embedding", text);
        free(text);
        return;
    }
    write_floats(w, entry, "embedding", image->embedding, image->embedding_count);
}

static void openai_write(struct writer *w, const struct predict_answer *answer)
{
    write_members(w, w->root, "object=%s model=%s", "list", answer->model);
    cJSON *list = write_array(w, w->root, "data");
    for (size_t i = 0; i < answer->image_count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        write_members(w, entry, "object=%s index=%zu", "embedding", i);
        write_vector(w, entry, &answer->images[i], answer->is_base64);
    }
    write_members(w, w->root, "usage{prompt_tokens=%zu total_tokens=%zu}", answer->tokens,
                  answer->tokens);
}

static char *openai_error(int http, const char *sentence, const char *code)
{
    return write_document("error{message=%s type=%s param=%g code=%s}", sentence,
                          http < 500 ? "invalid_request_error" : "server_error", (double)NAN, code);
}

static const struct dialect_parameter parameters[] = {{"encoding_format", "encoding", false},
                                                      {"normalize", "normalize", false},
                                                      {"dimensions", "dimensions", false},
                                                      {"truncate", "truncate", false},
                                                      {0}};

const struct dialect dialect_openai = {.name = "OpenAI",
                                       .parameters = parameters,
                                       .kinds = 1u << ANSWER_EMBEDDING,
                                       .takes = "a model that embeds pictures or texts",
                                       .fails_whole = true,
                                       .takes_texts = true,
                                       .model = "model",
                                       .find = openai_find,
                                       .write = openai_write,
                                       .write_error = openai_error};
