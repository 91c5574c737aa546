/* Class labels: labels.txt or imagenet_classes.txt (one line per class), index_to_name.json
 * (TorchServe) or labels.json, id2label of a Hugging Face config.json, names of Ultralytics
 * metadata. Immutable after load. */
#pragma once

#include "engine/base/status.h"

/* Classes a labels file may name. */
#define LABELS_MAX 1000000

struct labels {
    char **names; /* names[i]: class i, UTF-8; "" where a file leaves a hole */
    size_t count;
    size_t longest; /* bytes of the longest label as a JSON string */
};

/* Reads one line per class; CR and trailing blanks dropped, a trailing empty line ignored, UTF-8
 * BOM skipped, invalid UTF-8 refused. The caller frees with labels_done(), which is fine on zeroed
 * memory. Errors of all three: STATUS_MODEL (what is wrong, where), STATUS_NO_MEMORY; *ret
 * untouched. */
enum status labels_from_text(const char *text, size_t size, struct labels *ret,
                             struct error *err) MUST_USE;

/* TorchServe's {"0": "tench"} or {"0": ["n01440764", "tench"]}, a JSON list of names, or a Hugging
 * Face / timm config with "id2label" / "label_names" ("label_descriptions" name what those stand
 * for). STATUS_NOT_FOUND when the JSON has no labels. */
enum status labels_from_json(const char *text, size_t size, struct labels *ret,
                             struct error *err) MUST_USE;

/* Ultralytics' metadata "names": Python's way to write a dict, {0: 'person', 1: "cat's cradle"}. */
enum status labels_from_python(const char *text, size_t size, struct labels *ret,
                               struct error *err) MUST_USE;
void labels_done(struct labels *labels);

/* Whether one of the names equals `label`, which has `length` bytes. *ret: the index of the first
 * one. */
bool labels_find(const char *const *names, size_t count, const char *label, size_t length,
                 size_t *ret);

/* The bytes of a label as a JSON string. */
size_t labels_json_bytes(const char *name);

/* The label of class `index`; NULL where there is none. */
const char *labels_name(const struct labels *labels, size_t index);
