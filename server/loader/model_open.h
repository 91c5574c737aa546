/* Opens the model that an option names: a file, a folder, or the embedded one. */
#pragma once

#include "models/folder/model.h"

/* The model of an option: NULL, and "digits" unless there is such a file, is the embedded one. */
bool model_is_embedded(const char *model);
/* `name` replaces the model's own; may be NULL. */
enum status model_open(const char *model, const char *name, struct model **ret,
                       struct error *err) MUST_USE;
