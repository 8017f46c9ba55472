/* blame.c: who holds everybody up. Ranks wait in chains, and their deadlines pass together: each
 * then tells the others whom it waits for, and follows these notes to the rank that is silent. */
#include <stdlib.h>

#include "comm/blame.h"
#include "comm/wait.h"

enum { TAG_NOTE = SKV__TAG_MAX + 3 };

/* How long a note may be late: deadlines that began together pass within a fraction of this. */
static const double grace_seconds = 0.5;

static bool read_note(skv__comm_t *comm, int32_t from, int32_t *note, double until) {
  skv__request_t request;
  bool done = false;
  uint32_t idle = 0;
  if (skv__comm_receive(comm, &request, from, note, sizeof *note, TAG_NOTE) != SKV_OK)
    return false;
  while (!done && skv__comm_now() < until) {
    if (skv__comm_test(comm, &request, &done) != SKV_OK)
      return false;
    skv__comm_pause(&idle);
  }
  if (!done)
    skv__comm_break(comm); /* `request` and `note` end with this call */
  return done;
}

int32_t skv__comm_blame(skv__comm_t *comm, int32_t peer) {
  skv__request_t *notes = calloc((size_t)comm->ranks, sizeof *notes);
  skv__error_t *error = comm->error;
  int32_t suspect = peer, next;
  if (!notes)
    return peer;
  comm->error = NULL; /* what fails here is not what went wrong */
  comm->waits_for = peer;
  for (int32_t rank = 0; rank < comm->ranks; rank++)
    if (rank != comm->rank)
      skv__comm_send(comm, &notes[rank], rank, &comm->waits_for, sizeof comm->waits_for, TAG_NOTE);
  double until = skv__comm_now() + grace_seconds;
  for (int32_t hops = 0; hops < comm->ranks && read_note(comm, suspect, &next, until); hops++) {
    if (next < 0 || next >= comm->ranks || next == comm->rank) {
      suspect = peer; /* a circle */
      break;
    }
    suspect = next;
  }
  skv__comm_break(comm); /* before `notes` goes */
  comm->error = error;
  free(notes);
  return suspect;
}
