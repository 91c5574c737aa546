/* llama.cpp's embeddings, as requested by Frigate's semantic search: "content" is a list of texts
 * and pictures. Source: frigate/genai/plugins/llama_cpp.py. */
#include <cjson/cJSON.h>

#include "proto/dialects.h"
#include "proto/writer.h"

/* Reads [{"prompt_string": "a red car"}, {"prompt_string": MARK, "multimodal_data": [BASE64]}]. */
static enum status llama_find(cJSON *root, struct predict_json *ret, struct error *err)
{
    cJSON *entry, *list = cJSON_GetObjectItemCaseSensitive(root, "content");
    ret->as_list = true;
    cJSON_ArrayForEach(entry, list)
    {
        cJSON *pictures = cJSON_GetObjectItemCaseSensitive(entry, "multimodal_data");
        cJSON *text = cJSON_GetObjectItemCaseSensitive(entry, "prompt_string");
        const bool is_text = !pictures || !pictures->child;
        if (entry == list->child)
            ret->are_texts = is_text;
        if (is_text != ret->are_texts)
            return error_set(err, STATUS_INVALID,
                             "\"content\" has both texts and pictures; send them in two requests");
        if (!is_text) {
            TRY(dialect_add_pictures(pictures, ret, err));
        } else if (!cJSON_IsString(text)) {
            return error_set(err, STATUS_INVALID,
                             "an entry of \"content\" has neither the text \"prompt_string\" nor "
                             "\"multimodal_data\"");
        } else {
            TRY(dialect_add_item(text, ret, err));
        }
    }
    return STATUS_OK;
}

static void llama_write(struct writer *w, const struct predict_answer *answer)
{
    json_node *list = write_array(w, w->root, "data");
    for (size_t i = 0; i < answer->image_count; i++) {
        json_node *entry = write_object(w, list, NULL);
        write_members(w, entry, "index=%zu", i);
        write_floats(w, entry, "embedding", answer->images[i].embedding,
                     answer->images[i].embedding_count);
    }
}

static const struct dialect_parameter parameters[] = {
    {"normalize", "normalize", false}, {"truncate", "truncate", false}, {0}};
static const struct dialect_default defaults[] = {{"truncate", "true"}, {0}};

const struct dialect dialect_llama_cpp = {.name = "llama.cpp",
                                          .parameters = parameters,
                                          .defaults = defaults,
                                          .kinds = 1u << ANSWER_EMBEDDING,
                                          .takes = "a model that embeds pictures or texts",
                                          .fails_whole = true,
                                          .takes_texts = true,
                                          .model = "model",
                                          .find = llama_find,
                                          .write = llama_write};
