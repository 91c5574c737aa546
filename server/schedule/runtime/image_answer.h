/* Makes an image's answer from a pass's outputs, for tasks other than classification. */
#pragma once

#include "models/folder/model.h"
#include "server/schedule/runtime/model_host.h"

/* Sets image->answer. `outputs` are all outputs of a pass of `batch` images, in which this image
 * was number `row`. `buffers` is an array of TASK_MAX_OUTPUTS. Any thread may call it if it owns
 * the image. Errors: those of task_answer_of() and image_place(), with the sentence in
 * image->error. */
enum status image_answer_of(const struct model *model, const struct tensor *const *outputs,
                            int batch, int row, struct task_buffer *buffers,
                            struct predict_image *image) MUST_USE;

/* The position of a photo of image->width x image->height pixels in the model's input. Errors:
 * those of frame_of(). */
enum status image_place(const struct preprocess *p, const struct predict_image *image,
                        struct task_geometry *ret, struct error *err) MUST_USE;

/* Returns the name of a class in a request's answers: the request's text, or the model's label.
 * NULL: the class has no name. */
const char *predict_class_name(const struct predict_request *request, size_t index);
