/* The faces of DeepStack's API. Pictures for register, recognize and match go through api_predict.c
 * and a pipeline named "faces"; list and delete have none. */
#pragma once

#include "server/faces/faces.h"
#include "server/http/api/submission.h"

/* The fields of a form besides its pictures. */
struct face_question {
    char name[FACES_NAME_MAX + 1];
    float least; /* similarity, 0 … 1; 0: not given */
};

/* Sets "userid" or "min_similarity". False: `own` is neither. STATUS_INVALID through *ret. */
bool face_question_set(struct face_question *question, const char *own, const char *value,
                       enum status *ret, struct error *err);

/* Answers a completed request in the form of its dialect. Waits for the disk. */
void faces_answer(struct exchange *exchange, const struct face_question *question);
