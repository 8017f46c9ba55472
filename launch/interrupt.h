/* interrupt.h: temporary files that have a name are removed when a signal ends the command. */
#ifndef SKV_INTERRUPT_H
#define SKV_INTERRUPT_H

/* From now on SIGINT, SIGTERM and SIGHUP remove `path` (of at most 4095 bytes; two paths at most)
 * before they end the process as they would have. */
void skv__interrupt_remove(const char *path);
/* All paths are somebody else's business again. */
void skv__interrupt_forget(void);

#endif
