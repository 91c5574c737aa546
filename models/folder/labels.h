/* Class labels. Sources: labels.txt, imagenet_classes.txt, Triton's label file or characters.txt
 * (one line per class), index_to_name.json (TorchServe) or labels.json, a Hugging Face or timm
 * config.json, metadata of Ultralytics or rapidocr. Labels do not change after loading. */
#pragma once

#include "engine/base/status.h"

/* The most classes in a labels file. */
#define LABELS_MAX 1000000

struct cJSON;

struct labels {
    const char **names; /* names[i]: label of class i, UTF-8; "" if the file lacks the class */
    size_t count;
    size_t longest;      /* bytes of the longest label as a JSON string */
    size_t capacity;     /* private */
    struct arena *texts; /* private: memory of the names */
};

/* Reads one line per class. Drops CR, trailing blanks, empty lines at the end and a UTF-8 BOM;
 * refuses invalid UTF-8. *ret must be zeroed; the caller frees it with labels_done(), also after an
 * error. Errors of all readers: STATUS_MODEL (what is wrong, and where), STATUS_NO_MEMORY. */
enum status labels_from_text(const char *text, size_t size, struct labels *ret,
                             struct error *err) MUST_USE;

/* Reads TorchServe's {"0": "tench"} or {"0": ["n01440764", "tench"]}, a JSON list of names, a
 * Hugging Face config with "id2label" or "label2id", or a timm config with "label_names" and
 * perhaps their "label_descriptions". STATUS_NOT_FOUND when the JSON has no labels. */
enum status labels_from_json(const struct cJSON *json, struct labels *ret,
                             struct error *err) MUST_USE;

/* Reads "names" of Ultralytics' metadata, a Python dict: {0: 'person', 1: "cat's cradle"}. Stops at
 * the end of the dict or list. */
enum status labels_from_python(const char *text, struct labels *ret, struct error *err) MUST_USE;
void labels_done(struct labels *labels);

/* True if one of the names equals `label` of `length` bytes. *ret is the index of the first. */
bool labels_find(const char *const *names, size_t count, const char *label, size_t length,
                 size_t *ret);

/* Returns the size in bytes of a label as a JSON string, with the quotation marks. */
size_t labels_json_bytes(const char *name);

/* Returns the label of class `index`; NULL if it has none. */
const char *labels_name(const struct labels *labels, size_t index);
