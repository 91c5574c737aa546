/* Probe images, on which precisions are compared.
 *
 * They are the images in the model folder's calibration/ (all formats that lensd reads, by name, at
 * most PROBES_FROM_FOLDER). If there are fewer than PRECISION_OWN_PROBES, lensd adds images that it
 * draws, up to PRECISION_PROBES. All are preprocessed like a client's photo. The same model gets
 * the same probes on every machine. */
#pragma once

#include "models/folder/model.h"
#include "server/image/image.h"

#define PROBES_FROM_FOLDER 256

struct probes;

/* Borrows `model` and `limits`. STATUS_NO_MEMORY; STATUS_TOO_LARGE from the preprocessing. */
enum status probes_open(const struct model *model, const struct image_limits *limits,
                        struct probes **ret, struct error *err) MUST_USE;
void probes_free(struct probes *probes); /* NULL is fine */

int probes_count(const struct probes *probes);
int probes_from_folder(const struct probes *probes);

/* Writes probe i after the model's preprocessing: [height, width, channels] float32. An unreadable
 * file is logged and replaced by a drawn image. */
enum status probes_write(struct probes *probes, int i, float *dst, struct error *err) MUST_USE;

/* Writes the folder's image i; the error for an unreadable file does not name it. */
enum status probes_read(struct probes *probes, int i, float *dst, struct error *err) MUST_USE;
const char *probes_file(const struct probes *probes, int i); /* the path of image i */
