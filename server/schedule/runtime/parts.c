/* Makes the parts of a request, and cuts images for them. */
#include "server/schedule/runtime/parts.h"

#include <stdlib.h>

#include "engine/base/size.h"

void parts_begin(struct request_parts *parts, struct predict_request *whole)
{
    parts->whole = whole;
    whole->parts = parts;
    whole->decode_only = true;
}

struct request_part *parts_add(struct request_parts *parts, const char *model, size_t count)
{
    const struct predict_request *whole = parts->whole;
    struct request_part *part = calloc(1, sizeof *part);
    struct predict_image *images = alloc_array(count, sizeof *images);
    struct image *crops = alloc_array(count, sizeof *crops);
    if (!part || !images || !crops) {
        FREE_ALL(part, images, crops);
        return NULL;
    }
    part->request =
        (struct predict_request){.images = images,
                                 .image_count = count,
                                 .model = model,
                                 .version = whole->version,
                                 .height = whole->height,
                                 .width = whole->width,
                                 .size_choice = whole->size_choice,
                                 .top_k = whole->top_k,
                                 .asks_top_k = whole->asks_top_k,
                                 .ignores_unused_options = whole->ignores_unused_options,
                                 .options = whole->options,
                                 .words = whole->words,
                                 .text_names = whole->text_names,
                                 .started = whole->started,
                                 .deadline = whole->deadline,
                                 .priority = whole->priority,
                                 .client = whole->client,
                                 .on_done = whole->on_done,
                                 .context = whole->context};
    for (size_t i = 0; i < count; i++)
        images[i].pixels = &crops[i];
    part->crops = crops;
    part->before = parts->last;
    parts->last = part;
    return part;
}

struct image parts_view(const struct image *picture, uint32_t x, uint32_t y, uint32_t width,
                        uint32_t height)
{
    return (struct image){.info = {.width = width, .height = height, .orientation = 1},
                          .width = width,
                          .height = height,
                          .stride = picture->stride,
                          .pixels = picture->pixels + y * picture->stride + (size_t)x * 3};
}

struct image parts_photo(const struct predict_image *photo)
{
    const struct image all = {.stride = (size_t)photo->width * 3, .pixels = photo->photo};
    return photo->pixels ? *photo->pixels : parts_view(&all, 0, 0, photo->width, photo->height);
}

void parts_answered_by(struct request_parts *parts, const struct request_part *part)
{
    struct predict_request *whole = parts->whole;
    struct deployment *deployment =
        part->request.deployment ? deployment_ref(part->request.deployment) : NULL;
    deployment_unref(whole->deployment);
    whole->deployment = deployment;
    whole->used_model = part->request.used_model;
    whole->write_seconds = part->request.write_seconds;
}

void parts_done(struct request_parts *parts)
{
    while (parts->last) {
        struct request_part *part = parts->last;
        parts->last = part->before;
        predict_request_free_results(&part->request);
        FREE_ALL(part->request.images, part->crops, part);
    }
}
