/* The faces of DeepStack's API. Photos of register, recognize and match go through api_predict.c
 * and a pipeline named "faces". list and delete take no photos. */
#pragma once

#include "server/faces/faces.h"
#include "server/http/api/submission.h"

/* The fields of a form in addition to its photos. */
struct face_question {
    char name[FACES_NAME_MAX + 1];
    float least; /* least similarity, 0 … 1; 0: not given */
};

/* Sets question->name to `size` bytes. STATUS_INVALID: too many, or one is 0. */
enum status face_set_userid(struct face_question *question, const char *name, size_t size,
                            struct error *err) MUST_USE;

/* Answers a completed request in the form of its dialect. May wait for the disk. */
void faces_answer(struct exchange *exchange, const struct face_question *question);
