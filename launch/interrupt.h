/* interrupt.h: temporary files that have a name are removed when a signal ends the command. */
#ifndef SKV_INTERRUPT_H
#define SKV_INTERRUPT_H

/* From now on SIGINT, SIGTERM and SIGHUP remove `path` (of at most 4095 bytes; a few paths at a
 * time) before they end the process as they would have. */
void skv__interrupt_remove(const char *path);
/* The path is somebody else's business again, or gone. Does nothing for one that was never given.
 */
void skv__interrupt_forget(const char *path);

#endif
