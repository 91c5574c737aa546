/* Answers DeepStack's requests about faces. Similarity is (cosine + 1) / 2, as in DeepStack. The
 * requests list and delete have no photos. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/writer.h"
#include "server/http/api/predict_body.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/respond.h"

/* The default similarity below which a face is unknown. */
#define LEAST_SIMILARITY 0.67f

enum status face_set_userid(struct face_question *question, const char *name, size_t size,
                            struct error *err)
{
    if (size > FACES_NAME_MAX || memchr(name, '\0', size))
        return error_set(err, STATUS_INVALID, "userid has more than %d bytes, or a zero byte",
                         FACES_NAME_MAX);
    snprintf(question->name, sizeof question->name, "%.*s", (int)size, name);
    return STATUS_OK;
}

static struct deepstack_call face_call(const struct exchange *x, const char *command)
{
    return (struct deepstack_call){
        .command = command, .total_ms = clock_ms(clock_now() - x->started), .when = time(NULL)};
}

/* ---- vectors of faces ---- */

/* Returns the box's crop if the crop has a vector, else NULL. If the crop has failed, sets
 * *ret_failed to the crop. */
static const struct predict_image *face_of(const struct predict_image *image, size_t box,
                                           const struct predict_image **ret_failed)
{
    const struct predict_image *crop = image->crops ? image->crops[box] : NULL;
    if (crop && crop->status != STATUS_OK)
        *ret_failed = crop;
    return crop && crop->status == STATUS_OK && crop->answer.embedding.count ? crop : NULL;
}

/* Returns the crop of the photo's best box that has a vector; NULL if no box has one. */
static const struct predict_image *best_face(const struct predict_image *image,
                                             const struct predict_image **ret_failed)
{
    const struct predict_image *found = NULL;
    for (size_t i = 0; !found && i < image->answer.detections.count; i++)
        found = face_of(image, i, ret_failed);
    return found;
}

/* Adds a face's vector, scaled to length 1, to `sum`. */
static void add_face(const struct predict_image *face, float *sum)
{
    const struct embedding *own = &face->answer.embedding;
    double square = 0;
    for (size_t i = 0; i < own->count; i++)
        square += (double)own->values[i] * (double)own->values[i];
    const double scale = square > 0 ? 1 / sqrt(square) : 0;
    for (size_t i = 0; i < own->count; i++)
        sum[i] += (float)((double)own->values[i] * scale);
}

/* True if the model with the fingerprint `words` made the face's vector. */
static bool is_of_model(const struct predict_image *face, const uint64_t *words)
{
    return memcmp(face->request->used_model->fingerprint.words, words, 2 * sizeof *words) == 0;
}

/* Adds the unit vectors of `faces` and scales the sum to length 1. The caller frees ret->values. */
static enum status vector_of(const struct predict_image *const *faces, size_t count,
                             struct face_vector *ret, struct error *err)
{
    const struct model *model = faces[0]->request->used_model;
    const size_t numbers = faces[0]->answer.embedding.count;
    float *sum = alloc_array(numbers, sizeof *sum);
    double square = 0;
    TRY(check_memory(sum, "for the vector of a face", err));
    for (size_t i = 0; i < count; i++)
        if (faces[i]->answer.embedding.count == numbers &&
            is_of_model(faces[i], model->fingerprint.words))
            add_face(faces[i], sum);
    for (size_t i = 0; i < numbers; i++)
        square += (double)sum[i] * (double)sum[i];
    for (size_t i = 0; i < numbers; i++)
        sum[i] = (float)((double)sum[i] / sqrt(square > 0 ? square : 1));
    *ret = (struct face_vector){sum, numbers, model->fingerprint.words};
    return STATUS_OK;
}

static float similarity_of(float cosine)
{
    return fminf(fmaxf((cosine + 1) / 2, 0), 1);
}

/* ---- register, recognize, match ---- */

/* Finds the best face of each photo that has one. The caller frees *ret. */
static enum status find_faces(const struct predict_request *request,
                              const struct predict_image ***ret, size_t *ret_count,
                              struct error *err)
{
    const struct predict_image **faces = alloc_array(request->image_count, sizeof *faces);
    const struct predict_image *failed = NULL;
    size_t count = 0;
    TRY(check_memory(faces, "for faces", err));
    for (size_t i = 0; i < request->image_count; i++) {
        faces[count] = best_face(&request->images[i], &failed);
        count += faces[count] != NULL;
    }
    if (count == 0 && failed) {
        *err = failed->error;
        free(faces);
        return failed->status;
    }
    *ret = faces;
    *ret_count = count;
    return STATUS_OK;
}

static enum status register_face(struct exchange *x, const struct predict_request *request,
                                 const struct face_question *question, char **ret,
                                 struct error *err)
{
    const struct deepstack_call call = face_call(x, "register");
    const struct predict_image **faces;
    struct face_vector vector = {NULL};
    bool was_there = false;
    size_t count;
    TRY(find_faces(request, &faces, &count, err));
    enum status status = count ? vector_of(faces, count, &vector, err) : STATUS_OK;
    free(faces);
    if (status == STATUS_OK && count)
        status = faces_register(x->server->options.faces, question->name, &vector, &was_there, err);
    free((void *)(uintptr_t)vector.values);
    if (status == STATUS_OK)
        *ret = deepstack_answer_json(&call,
                                     !count      ? NULL
                                     : was_there ? "face updated"
                                                 : "face added",
                                     count ? NULL : "No face detected", -1);
    return status;
}

static enum status match_faces(struct exchange *x, const struct predict_request *request,
                               const struct face_question *question, char **ret, struct error *err)
{
    const struct deepstack_call call = face_call(x, "match");
    const struct predict_image **faces;
    struct face_vector vectors[2] = {{NULL}, {NULL}};
    float cosine = 0;
    size_t count;
    (void)question;
    if (request->image_count != 2)
        return error_set(err, STATUS_INVALID,
                         "match compares the faces of two pictures, but this form has %zu",
                         request->image_count);
    TRY(find_faces(request, &faces, &count, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; count == 2 && status == STATUS_OK && i < 2; i++)
        status = vector_of(&faces[i], 1, &vectors[i], err);
    if (status == STATUS_OK && count == 2 &&
        (vectors[0].count != vectors[1].count || !is_of_model(faces[1], vectors[0].model)))
        status = error_set(err, STATUS_NOT_READY,
                           "the model 'faces' was replaced meanwhile; send the pictures again");
    for (size_t i = 0; status == STATUS_OK && count == 2 && i < vectors[0].count; i++)
        cosine += vectors[0].values[i] * vectors[1].values[i];
    for (size_t i = 0; i < 2; i++)
        free((void *)(uintptr_t)vectors[i].values);
    free(faces);
    if (status == STATUS_OK)
        *ret = deepstack_answer_json(&call, NULL,
                                     count == 2 ? NULL : "No face found in one or both images",
                                     count == 2 ? similarity_of(cosine) : -1);
    return status;
}

/* Adds a face with the most similar name of the registry; below the similarity `least` the name is
 * "unknown". */
static enum status recognize_face(struct faces *registry, const struct predict_image *face,
                                  const struct detection *box, float least, struct writer *w,
                                  json_node *list, bool *is_known, struct error *err)
{
    char name[FACES_NAME_MAX + 1];
    struct face_vector vector;
    float cosine;
    TRY(vector_of(&face, 1, &vector, err));
    const enum status status = faces_find(registry, &vector, name, &cosine, err);
    free((void *)(uintptr_t)vector.values);
    TRY(status);
    const bool is_similar = name[0] && similarity_of(cosine) >= least;
    json_node *entry = write_object(w, list, NULL);
    write_members(w, entry, "userid=%s confidence=%g", is_similar ? name : "unknown",
                  is_similar ? (double)similarity_of(cosine) : 0.0);
    deepstack_write_box(w, entry, (const float[]){box->x1, box->y1, box->x2, box->y2});
    *is_known |= is_similar && similarity_of(cosine) > 0;
    return STATUS_OK;
}

static enum status recognize_faces(struct exchange *x, const struct predict_request *request,
                                   const struct face_question *question, char **ret,
                                   struct error *err)
{
    const struct predict_image *image = &request->images[0], *failed = NULL;
    const struct detections *found = &image->answer.detections;
    const float least = question->least > 0 ? question->least : LEAST_SIMILARITY;
    struct writer w = {.root = write_root()};
    enum status status = STATUS_OK;
    bool is_known = false;
    size_t count = 0;
    write_members(&w, w.root, "success=%hhd", true);
    json_node *list = write_array(&w, w.root, "predictions");
    for (size_t i = 0; status == STATUS_OK && i < found->count; i++) {
        const struct predict_image *face = face_of(image, i, &failed);
        if (!face)
            continue;
        count++;
        if (request->deadline && clock_now() > request->deadline)
            status = error_set(err, STATUS_TIMEOUT,
                               "the request's time limit ran out while faces were compared");
        IF_OK(status, recognize_face(x->server->options.faces, face, &found->items[i], least, &w,
                                     list, &is_known, err));
    }
    if (status == STATUS_OK && count == 0 && failed) {
        *err = failed->error;
        status = failed->status;
    }
    struct deepstack_call call = face_call(x, "recognize");
    call.forward_ms = image->times.forward_ms;
    write_members(&w, w.root, "message=%s count=%zu",
                  is_known ? "A face was recognised" : "No known faces", count);
    deepstack_write_call(&w, &call);
    *ret = write_finish(&w);
    if (status == STATUS_OK && count > 0)
        return STATUS_OK;
    free(*ret);
    *ret = status == STATUS_OK ? deepstack_answer_json(&call, NULL, "No face found in image", -1)
                               : NULL;
    return status;
}

void faces_answer(struct exchange *x, const struct face_question *question)
{
    const struct dialect *dialect = x->route->dialect;
    const struct predict_request *request = x->work;
    struct error err;
    char *text = NULL;
    enum status status;
    if (!request->parts)
        status = error_set(&err, STATUS_CONFIG,
                           "the model 'faces' returns no vectors of faces; it must be a pipeline "
                           "of a face detector and an embedding model with \"align\": \"arcface\"");
    else
        status = (dialect == &dialect_deepstack_register ? register_face
                  : dialect == &dialect_deepstack_match
                      ? match_faces
                      : recognize_faces)(x, request, question, &text, &err);
    if (status == STATUS_OK)
        respond_json(x, 200, text);
    else
        respond_error(x, &err);
}

/* ---- list, delete ---- */

enum status face_admit(struct exchange *x, struct error *err)
{
    if (!x->server->options.faces)
        return error_set(err, STATUS_NOT_FOUND,
                         "there is no registry of faces; start lensd with --faces FILE");
    if (admit_is_foreign(x))
        respond_refusal(x, 403, "forbidden",
                        "a web page of another address may not use the registry of faces; name "
                        "its address in --cors-origin");
    return STATUS_OK;
}

struct name_list {
    struct writer *w;
    json_node *list;
};

static void add_name(void *context, const char *name)
{
    const struct name_list *names = context;
    write_text(names->w, names->list, NULL, name);
}

/* list_faces() and delete_face() run on an offload thread. */
static void list_faces(struct exchange *x)
{
    const struct deepstack_call call = face_call(x, "list");
    struct writer w = {.root = write_root()};
    struct error err;
    write_members(&w, w.root, "success=%hhd", true);
    struct name_list names = {&w, write_array(&w, w.root, "faces")};
    const enum status status = faces_list(x->server->options.faces, add_name, &names, &err);
    deepstack_write_call(&w, &call);
    respond_json(x, 200, write_finish(&w));
    if (status != STATUS_OK)
        respond_error(x, &err);
    exchange_resume(x);
}

/* Reads the userid of a multipart form, or of a body "userid=Jane", as deepstack-sdk sends it. */
static enum status read_name(const struct exchange *x, struct face_question *ret, struct error *err)
{
    struct multipart form = {0};
    size_t size;
    *ret = (struct face_question){0};
    if (!multipart_is(x->content_type)) {
        const void *name = query_form_field(x->body.data, x->body.size, "userid", &size);
        return name ? face_set_userid(ret, name, size, err) : STATUS_OK;
    }
    enum status status =
        multipart_parse(x->content_type, x->body.data, x->body.size, 8, &form, err);
    for (size_t i = 0; status == STATUS_OK && i < form.count; i++)
        if (!strcmp(form.parts[i].name, "userid"))
            status =
                face_set_userid(ret, (const char *)form.parts[i].data, form.parts[i].size, err);
    multipart_done(&form);
    return status;
}

static void delete_face(struct exchange *x)
{
    const struct deepstack_call call = face_call(x, "delete");
    struct face_question question;
    struct error err;
    enum status status = read_name(x, &question, &err);
    IF_OK(status, faces_delete(x->server->options.faces, question.name, &err));
    if (status == STATUS_OK)
        respond_json(x, 200, deepstack_answer_json(&call, NULL, NULL, -1));
    else
        respond_error(x, &err);
    exchange_resume(x);
}

/* Both functions start a long job, because the job waits for the disk. */
void face_list_handle(struct exchange *x)
{
    exchange_offload(x, SIZE_MAX, list_faces);
}

void face_delete_handle(struct exchange *x)
{
    exchange_offload(x, SIZE_MAX, delete_face);
}
