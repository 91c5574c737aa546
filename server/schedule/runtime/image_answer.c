/* Computes the photo's position in the model's input, and calls the task's decoder. */
#include "server/schedule/runtime/image_answer.h"

#include "server/image/frame.h"

enum status image_place(const struct preprocess *p, const struct predict_image *image,
                        struct task_geometry *ret, struct error *err)
{
    const struct source_frame source = frame_source(p, image->width, image->height);
    const uint32_t larger = source.width > source.height ? source.width : source.height;
    struct crop_frame frame;
    TRY(frame_of(p, source.width, source.height, &frame, err));
    const float gain_x =
        (float)frame.resized_width / (float)(p->pads_square ? larger : source.width);
    const float gain_y =
        (float)frame.resized_height / (float)(p->pads_square ? larger : source.height);
    *ret = (struct task_geometry){.gain_x = gain_x,
                                  .gain_y = gain_y,
                                  .left = (float)frame.left - gain_x * (float)source.left,
                                  .top = (float)frame.top - gain_y * (float)source.top,
                                  .photo_width = (float)image->width,
                                  .photo_height = (float)image->height,
                                  .input_width = (float)p->width,
                                  .input_height = (float)p->height};
    if (p->resize == RESIZE_BODY) {
        ret->gain_x = (float)(1 / frame.map[0]);
        ret->gain_y = (float)(1 / frame.map[4]);
        ret->left = (float)(-frame.map[2] / frame.map[0]);
        ret->top = (float)(-frame.map[5] / frame.map[4]);
    }
    return STATUS_OK;
}

enum status image_answer_of(const struct model *model, const struct tensor *const *outputs,
                            int batch, int row, struct task_buffer *buffers,
                            struct predict_image *image)
{
    const struct task *task = &model->task;
    const struct task_options *asked = image->request->options;
    struct task_options options = asked ? task_options_merge(asked, &task->options) : task->options;
    options.words = image->request->words ? &image->request->words->words : NULL;
    const struct preprocess *p = &model->preprocess;
    struct task_geometry geometry = {
        1, 1, 0, 0, (float)p->width, (float)p->height, (float)p->width, (float)p->height};
    if (image->request->place)
        geometry = *image->request->place;
    else if (!image->request->tensors) /* a raw tensor already has the model's input size */
        TRY(image_place(&model->preprocess, image, &geometry, &image->error));
    const enum status status = task_answer_of(task, outputs, batch, row, &options, &geometry,
                                              buffers, &image->answer, &image->error);
    if (status != STATUS_OK) /* a failed image has no answer */
        task_answer_done(&image->answer);
    return status;
}

const char *predict_class_name(const struct predict_request *request, size_t index)
{
    return request->text_names ? request->text_names[index]
                               : labels_name(&request->used_model->labels, index);
}
